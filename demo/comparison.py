"""Computes counts and checksums, to compare a latest table with its source."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f


@dataclass(frozen=True)
class Sums:
    """Count and checksums of a table.

    Attributes:
        rows: the number of rows.
        total: the sum of the checksums of all rows.
        columns: for each column, the sum of the checksums of its values.
    """

    rows: int
    total: int
    columns: dict[str, int]


def sums(frame: DataFrame, columns: list[str]) -> Sums:
    """Computes the sums of a table in Spark, which do not depend on the order of rows."""
    texts = {name: _text(f.col(name)) for name in columns}
    [row] = frame.agg(
        f.count(f.lit(1)).alias("rows"),
        f.sum(f.crc32(f.concat_ws("\x1f", *texts.values()))).alias("total"),
        *(f.sum(f.crc32(text)).alias(f"column {name}") for name, text in texts.items()),
    ).collect()
    by_column = {name: row[f"column {name}"] or 0 for name in columns}
    return Sums(row["rows"], row["total"] or 0, by_column)


def _text(column: Column) -> Column:
    # NULL becomes a text that no value has.
    return f.coalesce(column.cast("string"), f.lit("\x01"))
