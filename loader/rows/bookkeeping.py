"""Stamps a batch's rows with the loader's bookkeeping columns, whose names begin with ``_cq_``."""

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
    """The sync's details that every row of a batch carries.

    Attributes:
        deleted: the source's column that marks deleted rows; see :func:`tombstone`.
    """

    source: str
    sync_time: dt.datetime
    batch: int
    generation: int
    deleted: str | None = None


def stamp_rows(rows: DataFrame, stamp: Stamp) -> DataFrame:
    """Adds the ``_cq_`` columns, in their order.

    ``_cq_seq`` numbers the rows in the order in which the source emitted them: unique, increasing,
    with gaps.

    Args:
        rows: a column `_cq_deleted`, if there is one, marks rows that are tombstones, too; a column
            `_cq_seq` numbers them if partitions are not in order.
    """
    own = rows.drop(DELETED, SEQUENCE)
    numbered = SEQUENCE in rows.columns
    gone = f.col(DELETED) if DELETED in rows.columns else f.lit(False)
    return rows.select(
        *(f.col(quote_name(name)) for name in own.columns),
        f.lit(stamp.source).alias(SOURCE_NAME),
        f.lit(stamp.sync_time).cast("timestamp").alias("_cq_sync_time"),
        f.lit(stamp.batch).cast("bigint").alias(BATCH),
        f.col(SEQUENCE) if numbered else f.monotonically_increasing_id().alias(SEQUENCE),
        row_hash(own.schema).alias(HASH),
        (tombstone(rows, stamp.deleted) | gone).alias(DELETED),
        f.lit(stamp.generation).cast("bigint").alias(GENERATION),
    )


def tombstone(rows: DataFrame, column: str | None) -> Column:
    """Returns whether a row is a tombstone; never null.

    Args:
        column: the column that marks deleted rows: a boolean (true), a date or time (not null) or
            a number (not 0); None if the source has no such column.
    """
    if column is None:
        return f.lit(False)
    value, data_type = f.col(quote_name(column)), rows.schema[column].dataType
    if isinstance(data_type, (t.DateType, t.TimestampType, t.TimestampNTZType)):
        return value.isNotNull()
    if not isinstance(data_type, t.BooleanType):
        value = value != 0
    return f.coalesce(value, f.lit(False))
