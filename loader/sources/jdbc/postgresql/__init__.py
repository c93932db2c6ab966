"""PostgreSQL's own ways: the exported snapshot, its horizon, who wrote each row."""
