"""Builds Spark literals. :mod:`loader.sources.jdbc.dialect` builds literals for databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader.rows.cursor import Cursor, CursorType

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as t


def cursor_literal(cursor: Cursor, data_type: t.DataType) -> Column:
    """Converts a cursor to a literal of a column's type, so that Iceberg can prune files."""
    from pyspark.sql import functions as f  # imported late, because `loader status` needs no Spark
    from pyspark.sql import types as t

    target = t.LongType() if cursor.type is CursorType.INTEGER else data_type
    if cursor.type is CursorType.INTEGER and isinstance(data_type, t.DecimalType):
        target = data_type
    return f.lit(cursor.text).cast(target)


def text_literal(value: str) -> str:
    """Quotes a string for Spark SQL, which interprets backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
