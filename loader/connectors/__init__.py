"""Plug-ins: found by entry points only, imported by nothing else in the loader."""
