"""Row sources: the connector interface, databases, and files."""
