"""The lake: raw tables and their commits, the locks that keep one writer each, the ledger."""
