"""Plug-ins for schedulers, which start runs and show the result of each table."""
