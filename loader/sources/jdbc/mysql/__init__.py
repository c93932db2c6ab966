"""Detects open transactions, replaced tables and late rows in MariaDB and MySQL."""
