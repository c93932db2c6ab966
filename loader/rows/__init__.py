"""Selects the rows to read, and orders and compares their versions."""
