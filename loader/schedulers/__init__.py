"""Plug-ins for schedulers that start runs and want to know the result of each table."""
