"""Spark literals; for database literals see :mod:`loader.sources.jdbc.dialect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader.rows.cursor import Cursor, CursorType

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as t


def literal(cursor: Cursor, data_type: t.DataType) -> Column:
    """Returns a cursor as a literal of its column's type: casts would keep Iceberg from pruning."""
    from pyspark.sql import functions as f  # here, as `loader status` needs no Spark
    from pyspark.sql import types as t

    wide = t.LongType() if cursor.type is CursorType.INTEGER else data_type
    if cursor.type is CursorType.INTEGER and isinstance(data_type, t.DecimalType):
        wide = data_type
    return f.lit(cursor.text).cast(wide)


def text_literal(value: str) -> str:
    """Quotes a text for Spark's parser, which interprets backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
