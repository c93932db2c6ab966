"""Plug-ins, which the loader loads through entry points. No other package imports them."""
