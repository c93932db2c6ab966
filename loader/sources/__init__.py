"""The connector interface, and the connectors for databases and files."""
