"""Rows and their versions: which to read, which is the newest, which are the same."""
