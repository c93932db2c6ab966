"""Strandline's loader: incremental append from databases and files into Iceberg tables."""

from __future__ import annotations

__version__ = "0.1.0"
