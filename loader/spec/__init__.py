"""Parses a spec's YAML, expands variables, validates options and redacts secrets."""
