"""Specific to PostgreSQL: the exported snapshot, its horizon, which transaction wrote each row."""
