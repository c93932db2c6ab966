"""Adds the loader's ``_cq_`` columns to the rows of a batch."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.row_hash import row_hash
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, SOURCE_NAME, quote_name

HASH = "_cq_row_hash"
DELETED = "_cq_deleted"
COLUMNS: dict[str, t.DataType] = {
    SOURCE_NAME: t.StringType(),
    "_cq_sync_time": t.TimestampType(),
    BATCH: t.LongType(),
    SEQUENCE: t.LongType(),
    HASH: t.LongType(),
    DELETED: t.BooleanType(),
    GENERATION: t.LongType(),
}


@dataclass(frozen=True)
class Stamp:
    """The values that all rows of a batch share.

    Attributes:
        deleted: the source's column that flags deleted rows; see :func:`is_tombstone`.
    """

    source: str
    sync_time: dt.datetime
    batch: int
    generation: int
    deleted: str | None = None


def stamp_rows(rows: DataFrame, stamp: Stamp) -> DataFrame:
    """Adds the ``_cq_`` columns.

    ``_cq_seq`` contains unique numbers that increase in the source's order, possibly with gaps.

    Args:
        rows: the source's rows. An optional column `_cq_deleted` flags additional tombstones. If
            the partitions are not in the source's order, a column `_cq_seq` is required.
    """
    source_rows = rows.drop(DELETED, SEQUENCE)
    is_numbered = SEQUENCE in rows.columns
    is_deleted = f.col(DELETED) if DELETED in rows.columns else f.lit(False)
    return rows.select(
        *(f.col(quote_name(name)) for name in source_rows.columns),
        f.lit(stamp.source).alias(SOURCE_NAME),
        f.lit(stamp.sync_time).cast("timestamp").alias("_cq_sync_time"),
        f.lit(stamp.batch).cast("bigint").alias(BATCH),
        f.col(SEQUENCE) if is_numbered else f.monotonically_increasing_id().alias(SEQUENCE),
        row_hash(source_rows.schema).alias(HASH),
        (is_tombstone(rows, stamp.deleted) | is_deleted).alias(DELETED),
        f.lit(stamp.generation).cast("bigint").alias(GENERATION),
    )


def is_tombstone(rows: DataFrame, column: str | None) -> Column:
    """Returns a boolean column without nulls that is true for tombstones.

    Args:
        column: the source's column that flags deleted rows; None if there is none. A row is deleted
            if the value is true, a date, a time, or a number other than 0.
    """
    if column is None:
        return f.lit(False)
    value, data_type = f.col(quote_name(column)), rows.schema[column].dataType
    if isinstance(data_type, (t.DateType, t.TimestampType, t.TimestampNTZType)):
        return value.isNotNull()
    if not isinstance(data_type, t.BooleanType):
        value = value != 0
    return f.coalesce(value, f.lit(False))
