"""Strandline's loader: incrementally appends rows from databases and files to Iceberg tables.

The command line is the main interface. Programs use :mod:`loader.api`, which also lists the
interfaces for plug-ins.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

# The library logs nothing unless the program that imports it adds a handler.
logging.getLogger(__name__).addHandler(logging.NullHandler())
