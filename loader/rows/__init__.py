"""Rows and their versions: which rows to read, which version is newest, which are the same."""
