"""Suggests cursor and deletion columns in messages, based on column names and types."""

from __future__ import annotations

import re

from pyspark.sql import types as t

from loader.rows.cursor import CursorType
from loader.sources.interface import SourceTable

MARKS = (t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType, t.NumericType)
"""Types that a `deleted_field` can have; see :func:`loader.rows.bookkeeping.is_tombstone`."""

UPDATE_COLUMN = re.compile(r"updat|modif|chang|mtime|(^|_)rowversion$", re.IGNORECASE)
"""Matches names of columns that applications or triggers usually set when they change a row."""


def suggest_cursors(table: SourceTable) -> list[str]:
    """Returns likely cursor columns, best first."""

    def score(name: str) -> int:
        type_ = CursorType.of(table.schema[name].dataType)
        words = ("updated", "modified", "changed", "_at", "date", "time", "version", "seq", "id")
        if type_ is None or type_ is CursorType.STRING:
            return 0
        rank = next((len(words) - i for i, word in enumerate(words) if word in name.lower()), 0)
        return rank + (10 if type_.is_time else 0)

    return sorted((n for n in table.schema.names if score(n) > 1), key=score, reverse=True)


def suggest_deletion_columns(table: SourceTable) -> list[str]:
    """Returns columns that may flag deleted rows, likeliest first."""

    def score(name: str) -> int:
        data_type, lowered = table.schema[name].dataType, name.lower()
        if not isinstance(data_type, MARKS) or lowered.endswith(("_by", "_id")):
            return 0
        words = ("deleted", "is_delete", "isdelete", "removed", "tombstone")
        rank = next((len(words) - i for i, word in enumerate(words) if word in lowered), 0)
        return rank and rank + (0 if isinstance(data_type, t.NumericType) else 10)

    return sorted((n for n in table.schema.names if score(n)), key=score, reverse=True)
