"""Specific to MariaDB and MySQL: open transactions, replaced tables and late rows."""
