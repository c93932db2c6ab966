"""Receipts: chains of signed statements, and the rows to which they refer."""
