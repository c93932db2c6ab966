"""The lake's raw tables and their commits, the locks of tables, and the ledger."""
