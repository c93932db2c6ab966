"""Finds redelivered rows and rows that override the cursor order.

A row is redelivered if it is identical to the newest version of its key in the raw table. Older
versions are irrelevant, so a value that changes back (A, B, A) is a new version.

A source that declares the key returns only the current version of each key. This version is newer
than all versions in the raw table, even if its cursor is not higher: its transaction may have
started earlier but committed later (`now()` is the start of the transaction), or an update may have
set the cursor back or left it unchanged. Such a row overrides the order of cursors: its batch
starts a new generation (``_cq_generation``), whose versions are newer than all versions of earlier
generations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.rows.bookkeeping import DELETED, HASH
from loader.rows.literal import cursor_literal
from loader.rows.version_order import (
    BATCH,
    GENERATION,
    SEQUENCE,
    Generations,
    quote_name,
    version_column,
)
from loader.rows.window import Bounds, Window

REDELIVERED = "_cq_redelivered"
OVERRULES = "_cq_overrules"
CURSOR_UNMOVED = "_cq_cursor_unmoved"


def flag_redelivered(
    rows: DataFrame,
    raw: DataFrame,
    key: Sequence[str],
    window: Window,
    bounds: Bounds,
    generations: Generations,
    is_authoritative: bool,
    has_base: bool = False,
) -> DataFrame:
    """Adds three boolean columns, which compare a row with its key's newest version in `raw`.

    - ``_cq_redelivered``: the newest version is identical.
    - ``_cq_overrules``: the row is newer, but its cursor does not show it, because the newest
      version's cursor is higher, or because both have the same cursor and it is below the window.
    - ``_cq_cursor_unmoved``: the newest version has the same cursor but different values.

    From the raw table, only rows at or above the window's lower bound are read, so the cost depends
    only on the size of the window. If the cursor is a string that the source does not order by
    bytes, all rows are read.

    Args:
        key: the primary key. If it is empty, the function compares how often each row occurs, and
            only ``_cq_redelivered`` can be true.
        is_authoritative: whether the source returns only the current version of each key. If false,
            :func:`assign_generation` must be called first.
        has_base: whether the window may contain versions of the base generation. If true, the raw
            table need not be queried for versions of older generations.
    """
    in_window = _select_window(raw, window, bounds)
    raw_rows = _select_comparable(raw, in_window, generations, has_base)
    if not key:
        return _flag_by_multiplicity(rows, raw_rows)
    cursor = window.cursor.name if window.cursor else None
    cursor_value = f.col(quote_name(cursor)) if cursor else f.lit(None).cast("string")
    payload = f.struct(f.col(HASH), f.col(DELETED))
    parts = [f"_cq_key_{i}" for i in range(len(key))]
    newest = (
        raw_rows.select(
            *(f.col(quote_name(name)).alias(part) for name, part in zip(key, parts, strict=False)),
            payload.alias("payload"),
            cursor_value.alias("cursor"),
            version_column(cursor).alias("version"),
            f.struct(f.col(GENERATION), payload).alias("placed"),
        )
        .groupBy(*parts)
        .agg(
            f.max_by(f.struct("payload", "cursor"), "version").alias("_cq_newest"),
            f.collect_set("placed").alias("_cq_placed"),
        )
    )
    same_key = [
        f.col(quote_name(n)).eqNullSafe(f.col(part)) for n, part in zip(key, parts, strict=False)
    ]
    joined = rows.join(newest, reduce(and_, same_key), "left")
    newest_version = f.col("_cq_newest")
    same_cursor = cursor_value.eqNullSafe(newest_version["cursor"])
    same_payload = payload.eqNullSafe(newest_version["payload"])
    if is_authoritative:
        redelivered = newest_version.isNotNull() & same_cursor & same_payload
    else:
        # Only rows of the same generation count as existing.
        exists = f.array_contains("_cq_placed", f.struct(f.col(GENERATION), payload))
        in_raw = f.coalesce(exists, f.lit(False))
        # If several rows of a key have the newest version's cursor, either all are dropped or all
        # are appended. If A and B were reread and only B were dropped, A would become the newest
        # version.
        group = Over.partitionBy(*(f.col(quote_name(name)) for name in key), same_cursor)
        all_in_raw = f.min(in_raw).over(group)
        last = f.max(f.struct(f.col(SEQUENCE), payload.alias("payload"))).over(group)["payload"]
        redelivered = (
            f.when(newest_version.isNull(), f.lit(False))
            .when(same_cursor, all_in_raw & last.eqNullSafe(newest_version["payload"]))
            .otherwise(in_raw)
        )
    # A null cursor sorts below all other cursors.
    newest_cursor = newest_version["cursor"]
    is_below = newest_cursor.isNotNull() & (cursor_value.isNull() | (cursor_value < newest_cursor))
    if cursor is not None and window.low is not None:
        # If an update did not change a cursor below the window, only a new generation shows that
        # the row is newer.
        low = cursor_literal(window.low, rows.schema[cursor].dataType)
        is_below |= same_cursor & (cursor_value < low)
    overrules = f.coalesce(is_below, f.lit(False)) if is_authoritative else f.lit(False)
    return joined.select(
        *(f.col(quote_name(name)) for name in rows.columns),
        redelivered.alias(REDELIVERED),
        overrules.alias(OVERRULES),
        (newest_version.isNotNull() & same_cursor & ~same_payload).alias(CURSOR_UNMOVED),
    )


def has_lost_cursor(new_rows: DataFrame, raw: DataFrame, key: Sequence[str], cursor: str) -> bool:
    """Returns whether a new row has a null cursor although its key has a cursor in the raw table.

    This is expensive, because it reads all keys in the raw table.
    """
    lost = new_rows.where(f.col(quote_name(cursor)).isNull())
    with_cursor = raw.where(f.col(quote_name(cursor)).isNotNull())
    return bool(select_keys(with_cursor, lost, key).take(1))


def select_keys(raw: DataFrame, rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Returns the rows of the raw table that have the key of one of `rows`.

    There should be few `rows`, because their keys are broadcast.
    """
    names = [quote_name(name) for name in key]
    keys = rows.select(*(f.col(name).alias(f"_cq_key_{i}") for i, name in enumerate(names)))
    same_key = [f.col(name).eqNullSafe(f.col(f"_cq_key_{i}")) for i, name in enumerate(names)]
    return raw.join(f.broadcast(keys), reduce(and_, same_key), "left_semi")


def _select_comparable(
    raw: DataFrame, in_window: Column, generations: Generations, has_base: bool
) -> DataFrame:
    """Returns rows of the raw table that include the newest version of each key in a window.

    The newest version may be in a newer generation and have a cursor below the window. If the
    window contains versions of an older generation, all batches since the first of these versions
    are therefore included.
    """
    generation = f.col(GENERATION)
    if has_base:
        newer = generation > f.lit(generations.base)
        return raw.where(generation >= generations.base).where(in_window | newer)
    if generations.base < generations.current:
        older = raw.where(in_window).where(
            (generation >= generations.base) & (generation < generations.current)
        )
        [row] = older.agg(f.min(BATCH).alias("first")).collect()
        if row["first"] is not None:
            return raw.where(generation >= generations.base).where(
                in_window | (f.col(BATCH) >= f.lit(row["first"]))
            )
    return raw.where((generation == f.lit(generations.current)) & in_window)


def _flag_by_multiplicity(rows: DataFrame, raw_rows: DataFrame) -> DataFrame:
    payload = f.struct(HASH, DELETED)
    counts = raw_rows.groupBy(payload.alias("_cq_known")).agg(f.count(f.lit(1)).alias("_cq_held"))
    number = f.row_number().over(Over.partitionBy(HASH, DELETED).orderBy(SEQUENCE))
    return (
        rows.withColumn("_cq_number", number)
        .join(counts, payload.eqNullSafe(f.col("_cq_known")), "left")
        .select(
            *(f.col(quote_name(name)) for name in rows.columns),
            (f.col("_cq_number") <= f.coalesce(f.col("_cq_held"), f.lit(0))).alias(REDELIVERED),
            f.lit(False).alias(OVERRULES),
            f.lit(False).alias(CURSOR_UNMOVED),
        )
    )


def _select_window(raw: DataFrame, window: Window, bounds: Bounds) -> Column:
    floor = window.floor(bounds)
    if window.cursor is None or floor is None or window.cursor.collated:
        return f.lit(True)  # only the source can order collated strings
    name = window.cursor.name
    # If the case of a column's name changes in the source, the raw table keeps the old spelling.
    [data_type] = [c.dataType for c in raw.schema.fields if c.name.lower() == name.lower()]
    column = f.col(quote_name(name))
    above = column >= cursor_literal(floor, data_type)
    return above | column.isNull() if bounds.nulls else above
