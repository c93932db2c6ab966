"""The lake: raw tables and their commits, one writer each, the ledger."""
