"""Sources of rows: the interface of a connector, databases, and files."""
