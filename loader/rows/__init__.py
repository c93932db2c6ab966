"""Selects the rows to read, and orders and compares the versions of rows."""
