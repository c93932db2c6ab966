"""Specific to MariaDB and MySQL: open transactions, late rows of theirs and of replaced tables."""
