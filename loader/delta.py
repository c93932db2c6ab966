"""What becomes of a window's rows before they are appended: stamped, and rid of redeliveries.

A row is a redelivery where it is identical to its key's newest version in raw. A value that goes
back to an earlier one at the same cursor (A, B, A) is a new version, so only the newest counts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window as Over

from loader.literal import literal
from loader.order import BATCH, GENERATION, SEQUENCE, quoted, version_column
from loader.window import Window

HASH = "_cq_row_hash"
DELETED = "_cq_deleted"
COLUMNS: dict[str, t.DataType] = {
    "_cq_source_name": t.StringType(),
    "_cq_sync_time": t.TimestampType(),
    BATCH: t.LongType(),
    SEQUENCE: t.LongType(),
    HASH: t.LongType(),
    DELETED: t.BooleanType(),
    GENERATION: t.LongType(),
}
REDELIVERED = "_cq_redelivered"


@dataclass(frozen=True)
class Stamp:
    """What every row of one batch says of its sync."""

    source: str
    sync_time: dt.datetime
    batch: int
    generation: int


def stamped(rows: DataFrame, stamp: Stamp) -> DataFrame:
    """Adds the ``_cq_`` columns, in their order.

    ``_cq_seq`` numbers the rows in the order in which they were emitted: unique, increasing, with
    holes between partitions.
    """
    return rows.select(
        *(f.col(quoted(name)) for name in rows.columns),
        f.lit(stamp.source).alias("_cq_source_name"),
        f.lit(stamp.sync_time).cast("timestamp").alias("_cq_sync_time"),
        f.lit(stamp.batch).cast("bigint").alias(BATCH),
        f.monotonically_increasing_id().alias(SEQUENCE),
        row_hash(rows.schema).alias(HASH),
        f.lit(False).alias(DELETED),
        f.lit(stamp.generation).cast("bigint").alias(GENERATION),
    )


def row_hash(schema: t.StructType) -> Column:
    """xxhash64 over a row's columns: by name, and null-safe.

    Spark's xxhash64 passes over nulls, so (null, 'a') and ('a', null) would be one; each value is
    therefore preceded by its column's name. A column that is null counts for nothing: one that
    the source adds later makes no old row look changed. Widths do not count either (int and
    bigint, float and double, decimals of one scale hash alike).
    """
    parts: list[Column] = []
    for field in sorted(schema.fields, key=lambda field: field.name):
        value = _hashable(f.col(quoted(field.name)), field.dataType)
        parts += [f.when(value.isNotNull(), f.lit(field.name)), value]
    return f.xxhash64(*parts)


def _hashable(value: Column, data_type: t.DataType) -> Column:
    if isinstance(data_type, (t.ByteType, t.ShortType, t.IntegerType)):
        return value.cast("bigint")
    if isinstance(data_type, t.FloatType):
        return value.cast("double")
    if isinstance(data_type, t.DecimalType):
        return value.cast("string")
    if isinstance(data_type, t.MapType):
        # A map has no order, so Spark refuses to hash it; its sorted entries have one.
        return f.to_json(f.array_sort(f.map_entries(value)))
    if "map<" in data_type.simpleString():
        return f.to_json(f.struct(value))
    return value


def marked(
    rows: DataFrame,
    raw: DataFrame,
    key: Sequence[str],
    window: Window,
    nulls: bool,
    generation: int,
) -> DataFrame:
    """Adds a boolean ``_cq_redelivered`` to stamped rows: raw's newest version says the same.

    Only raw rows that the window could deliver again are read (cursor at or above its lower
    bound, by a literal that Iceberg prunes files with), so the cost is the boundary's.

    Args:
        raw: the raw table.
        key: the primary key; empty compares whole rows, as many times as raw holds them.
        nulls: whether any of the rows has no cursor.
        generation: the current one; a match in an older one is appended again, as a version of
            the newer generation may lie outside of the window.
    """
    known = raw.where(f.col(GENERATION) == f.lit(generation)).where(_region(raw, window, nulls))
    if not key:
        return _marked_by_multiplicity(rows, known)
    cursor = window.cursor.name if window.cursor else None
    at = f.col(quoted(cursor)) if cursor else f.lit(None).cast("string")
    payload = f.struct(f.col(HASH), f.col(DELETED))
    parts = [f"_cq_key_{i}" for i in range(len(key))]
    newest = (
        known.select(
            *(f.col(quoted(name)).alias(part) for name, part in zip(key, parts, strict=False)),
            payload.alias("payload"),
            at.alias("cursor"),
            version_column(cursor).alias("version"),
        )
        .groupBy(*parts)
        .agg(
            f.max_by(f.struct("payload", "cursor"), "version").alias("_cq_newest"),
            f.collect_set("payload").alias("_cq_payloads"),
        )
    )
    same_key = [
        f.col(quoted(n)).eqNullSafe(f.col(part)) for n, part in zip(key, parts, strict=False)
    ]
    joined = rows.join(newest, reduce(and_, same_key), "left")
    in_raw = f.coalesce(f.array_contains("_cq_payloads", payload), f.lit(False))
    ties = at.eqNullSafe(f.col("_cq_newest.cursor"))
    # Rows of one key that share raw's newest cursor stand or fall together: of (A, B) read
    # again, dropping B alone would make A the newest.
    group = Over.partitionBy(*(f.col(quoted(name)) for name in key), ties)
    all_in_raw = f.min(in_raw).over(group)
    last = f.max(f.struct(f.col(SEQUENCE), payload.alias("payload"))).over(group)["payload"]
    redelivered = (
        f.when(f.col("_cq_newest").isNull(), f.lit(False))
        .when(ties, all_in_raw & last.eqNullSafe(f.col("_cq_newest.payload")))
        .otherwise(in_raw)
    )
    return joined.select(
        *(f.col(quoted(name)) for name in rows.columns),
        redelivered.alias(REDELIVERED),
    )


def _marked_by_multiplicity(rows: DataFrame, known: DataFrame) -> DataFrame:
    counts = known.groupBy(f.col(HASH).alias("_cq_known")).agg(f.count(f.lit(1)).alias("_cq_held"))
    number = f.row_number().over(Over.partitionBy(HASH).orderBy(SEQUENCE))
    return (
        rows.withColumn("_cq_number", number)
        .join(counts, f.col(HASH) == f.col("_cq_known"), "left")
        .select(
            *(f.col(quoted(name)) for name in rows.columns),
            (f.col("_cq_number") <= f.coalesce(f.col("_cq_held"), f.lit(0))).alias(REDELIVERED),
        )
    )


def _region(raw: DataFrame, window: Window, nulls: bool) -> Column:
    floor = window.floor
    if window.cursor is None or floor is None:
        return f.lit(True)
    column = f.col(quoted(window.cursor.name))
    above = column >= literal(floor, raw.schema[window.cursor.name].dataType)
    return above | column.isNull() if nulls else above
