"""Chooses the fetch size of a reader: as many rows as its memory is sure to hold.

A driver keeps the fetched rows until the reader has used them, whether a row has a hundred bytes or
a hundred megabytes. Drivers that adapt to what they have seen so far fail at a wide row after
narrow ones; the database's statistics know both.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

MOST_ROWS = 10_000
"""More at once saves nothing."""

UNKNOWN = 1_000
"""Rows at once where values may be long, and the database does not tell how long they are."""

SAMPLE = 100
"""Rows of which the lengths are asked, as a table may store them compressed."""

_BYTES = 8 << 20  # for each reader
_COLUMN = 16  # bytes of a value that is not long, for the driver's own objects
_FEW = 20


class Extent(NamedTuple):
    """A table's size by the database's statistics.

    Attributes:
        size: its bytes, long values included.
        rows: its rows; 0 if that was never counted.
    """

    size: int
    rows: int


def asks(schema: StructType, rows: int | None) -> bool:
    """Returns whether to ask the database how wide rows are: if they may be of any length.

    Args:
        rows: how many are read; None if that is not known.
    """
    if rows is not None and rows <= _FEW:
        return False
    return any(isinstance(c.dataType, (StringType, BinaryType, ArrayType)) for c in schema.fields)


def fetch_size(
    schema: StructType,
    rows: int | None,
    extent: Extent | None = None,
    sampled: int = 0,
    *,
    whole: bool = False,
) -> int:
    """Returns how many rows to fetch at once.

    Args:
        rows: how many are read; None if that is not known.
        extent: the table's statistics; None if there are none.
        sampled: how many bytes some of its rows have on average; 0 if that was not asked.
        whole: whether all rows of the table are read.
    """
    width = max(_COLUMN * len(schema.fields), sampled)
    most = MOST_ROWS
    if asks(schema, rows):
        counted = extent and (extent.rows or (rows if whole else 0))
        if extent is not None and counted:
            width = max(width, extent.size // counted)
        else:
            most = UNKNOWN
    return max(1, min(most, _BYTES // width))
