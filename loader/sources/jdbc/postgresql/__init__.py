"""Specific to PostgreSQL: exported snapshots, open transactions, failovers and late rows."""
