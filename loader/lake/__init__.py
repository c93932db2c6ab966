"""The lake's raw tables and their commits, table locks, and the ledger."""
