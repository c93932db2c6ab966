"""Raw tables and their commits, table locks, and the ledger."""
