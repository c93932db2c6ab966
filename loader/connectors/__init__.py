"""Plug-ins, which the loader finds by entry points; no other package of the loader imports them."""
