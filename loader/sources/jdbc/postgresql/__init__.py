"""Specific to PostgreSQL: the exported snapshot, its transactions, which of them wrote each row."""
