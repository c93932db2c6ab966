"""Bounds a table's cursors by the statistics of its files, without reading rows."""

from __future__ import annotations

from loader.lake.lake import Lake
from loader.rows.cursor import Cursor, CursorType

_ZONED = "+00:00"


def may_exceed(tables: Lake, table: str, column: str, cursor: Cursor) -> bool:
    """Returns whether a row may have a higher cursor than this one.

    Also true if there are no statistics, or if the column has another type by now.
    """
    handle = tables.handle(table)
    field = handle.schema().caseInsensitiveFindField(column)
    value = _value(cursor, field.type().toString()) if field is not None else None
    if value is None:
        return True
    above = tables.jvm.org.apache.iceberg.expressions.Expressions.greaterThan(field.name(), value)
    files = handle.newScan().filter(above).ignoreResiduals().planFiles()
    try:
        return bool(files.iterator().hasNext())
    finally:
        files.close()


def _value(cursor: Cursor, kind: str) -> str | int | None:
    """Returns a cursor as Iceberg reads it for a column of a type; None if it does not fit."""
    if cursor.type is CursorType.INTEGER and kind in ("int", "long"):
        return int(cursor.text)
    if cursor.type is CursorType.DATE and kind == "date":
        return cursor.text
    if cursor.type is CursorType.TIMESTAMP and kind == "timestamp":
        return cursor.text.replace(" ", "T")
    if cursor.type is CursorType.TIMESTAMPTZ and kind == "timestamptz":
        return f"{cursor.text.replace(' ', 'T')}{_ZONED}"
    return None
