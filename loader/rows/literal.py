"""Spark literals; for database literals see :mod:`loader.sources.jdbc.dialect`."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.cursor import Cursor, CursorType


def literal(cursor: Cursor, data_type: t.DataType) -> Column:
    """Returns a cursor as a literal of its column's type: casts would keep Iceberg from pruning."""
    wide = t.LongType() if cursor.type is CursorType.INTEGER else data_type
    if cursor.type is CursorType.INTEGER and isinstance(data_type, t.DecimalType):
        wide = data_type
    return f.lit(cursor.text).cast(wide)


def text_literal(value: str) -> str:
    """Quotes a text for Spark's parser, which interprets backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
