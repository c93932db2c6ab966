"""Literals of Spark's; those of databases are in :mod:`loader.sources.jdbc.dialect`."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.cursor import Cursor, CursorType


def literal(cursor: Cursor, data_type: t.DataType) -> Column:
    """A cursor as a literal of its column's type, so that no cast keeps Iceberg from pruning."""
    wide = t.LongType() if cursor.type is CursorType.INTEGER else data_type
    if cursor.type is CursorType.INTEGER and isinstance(data_type, t.DecimalType):
        wide = data_type
    return f.lit(cursor.text).cast(wide)


def text_literal(value: str) -> str:
    """A text for Spark's parser, which reads backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
