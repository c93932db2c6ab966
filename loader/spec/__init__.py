"""The spec: parses its YAML, expands variables, validates options and redacts secrets."""
