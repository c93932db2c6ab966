"""Plug-ins. The loader finds them by entry points; none of its other packages imports them."""
