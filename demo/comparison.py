"""Compares a snapshot with its source: counts, checksums of each column and of whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f


@dataclass(frozen=True)
class Sums:
    """The sums of a table.

    Attributes:
        rows: how many rows.
        whole: the sum of the rows' checksums; equal only if every row is.
        columns: for each column, the sum of its values' checksums.
    """

    rows: int
    whole: int
    columns: dict[str, int]


def sums(frame: DataFrame, columns: list[str]) -> Sums:
    """Adds up a table, in Spark; the order of its rows does not matter."""
    texts = {name: _text(f.col(name)) for name in columns}
    [found] = frame.agg(
        f.count(f.lit(1)).alias("rows"),
        f.sum(f.crc32(f.concat_ws("\x1f", *texts.values()))).alias("whole"),
        *(f.sum(f.crc32(text)).alias(f"column {name}") for name, text in texts.items()),
    ).collect()
    by_column = {name: found[f"column {name}"] or 0 for name in columns}
    return Sums(found["rows"], found["whole"] or 0, by_column)


def _text(column: Column) -> Column:
    # A NULL counts as a text that no value is.
    return f.coalesce(column.cast("string"), f.lit("\x01"))
