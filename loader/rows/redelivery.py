"""Prepares a window's rows for the append: stamps them and finds redelivered rows.

A row is redelivered if it is identical to its key's newest version in raw. A value that goes
back to an earlier one at the same cursor (A, B, A) is a new version, so only the newest counts.

If the source itself declares the key, it has each key once, as it is now. Then a row whose cursor
is lower than the cursor of its key's newest version is not an older version but the current one: a
transaction that began earlier has committed later (`now()` is its start), or a user set the
clock column back. Such a read overrules the order of cursors, and its batch begins a generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.rows.bookkeeping import DELETED, HASH
from loader.rows.literal import literal
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, quote_name, version_column
from loader.rows.window import Bounds, Window

REDELIVERED = "_cq_redelivered"
OVERRULES = "_cq_overrules"


@dataclass(frozen=True)
class Generations:
    """The generations of raw that a window's rows are compared with.

    Attributes:
        base: the newest that began with a complete read; older ones are history.
        current: the newest. It is above `base` if a later read overruled a cursor.
    """

    base: int
    current: int


def flag_redelivered(
    rows: DataFrame,
    raw: DataFrame,
    key: Sequence[str],
    window: Window,
    bounds: Bounds,
    generations: Generations,
    authoritative: bool,
) -> DataFrame:
    """Adds two booleans to stamped rows.

    ``_cq_redelivered``: raw's newest version is identical. ``_cq_overrules``: raw's newest
    version has a higher cursor, but is out of date.

    Reads only raw rows that the window could deliver again (cursor at or above its lower bound, a
    literal that Iceberg prunes files by), so the cost depends only on the rows near the boundary.
    If the source does not order the cursor's texts by bytes, reads all of raw.

    Args:
        raw: the raw table.
        key: the primary key; if empty, compares whole rows, as many times as raw holds them.
        window, bounds: the request to the source, and its answer.
        authoritative: the source has each key once, as it is now. Otherwise the rows are
            :func:`assign_generation` first.
    """
    region = _region(raw, window, bounds)
    known = _comparable(raw, region, generations)
    if not key:
        return _flag_by_multiplicity(rows, known)
    cursor = window.cursor.name if window.cursor else None
    at = f.col(quote_name(cursor)) if cursor else f.lit(None).cast("string")
    payload = f.struct(f.col(HASH), f.col(DELETED))
    parts = [f"_cq_key_{i}" for i in range(len(key))]
    newest = (
        known.select(
            *(f.col(quote_name(name)).alias(part) for name, part in zip(key, parts, strict=False)),
            payload.alias("payload"),
            at.alias("cursor"),
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
    found = f.col("_cq_newest")
    ties = at.eqNullSafe(found["cursor"])
    same = payload.eqNullSafe(found["payload"])
    if authoritative:
        redelivered = found.isNotNull() & ties & same
    else:
        # A version in an older generation no longer counts.
        there = f.array_contains("_cq_placed", f.struct(f.col(GENERATION), payload))
        in_raw = f.coalesce(there, f.lit(False))
        # Rows of one key that share raw's newest cursor are dropped or kept together: if (A, B)
        # are read again, dropping only B would make A the newest.
        group = Over.partitionBy(*(f.col(quote_name(name)) for name in key), ties)
        all_in_raw = f.min(in_raw).over(group)
        last = f.max(f.struct(f.col(SEQUENCE), payload.alias("payload"))).over(group)["payload"]
        redelivered = (
            f.when(found.isNull(), f.lit(False))
            .when(ties, all_in_raw & last.eqNullSafe(found["payload"]))
            .otherwise(in_raw)
        )
    # A null cursor sorts lowest, so it is below any other.
    below = found["cursor"].isNotNull() & (at.isNull() | (at < found["cursor"]))
    overrules = f.coalesce(below, f.lit(False)) if authoritative else f.lit(False)
    return joined.select(
        *(f.col(quote_name(name)) for name in rows.columns),
        redelivered.alias(REDELIVERED),
        overrules.alias(OVERRULES),
    )


def assign_generation(
    rows: DataFrame, raw: DataFrame, key: Sequence[str], generations: Generations
) -> DataFrame:
    """Moves each stamped row to the generation that its key has in raw.

    For sources that may deliver several versions of a key, in any order. There the cursor decides
    which version is newest, unless a read has overruled it (a repair). A repair does so only for
    the keys that it wrote: their later rows join its generation and are compared with it there.
    Rows of all other keys stay in the base generation, where versions with a higher cursor still
    outrank late rows.

    Reads only raw's rows above the base: repaired rows, and later rows of the same keys.

    Args:
        raw: the raw table.
    """
    parts = [f"_cq_key_{i}" for i in range(len(key))]
    repaired = (
        raw.where(f.col(GENERATION) > f.lit(generations.base))
        .groupBy(
            *(f.col(quote_name(name)).alias(part) for name, part in zip(key, parts, strict=True))
        )
        .agg(f.max(GENERATION).alias("_cq_key_generation"))
    )
    same = [f.col(quote_name(n)).eqNullSafe(f.col(p)) for n, p in zip(key, parts, strict=True)]
    base = f.lit(generations.base).cast("bigint")
    return (
        rows.join(repaired, reduce(and_, same), "left")
        .withColumn(GENERATION, f.coalesce("_cq_key_generation", base))
        .select(*(f.col(quote_name(name)) for name in rows.columns))
    )


def number_versions(rows: DataFrame, key: Sequence[str], generation: int) -> DataFrame:
    """Gives each version of a key a generation of its own, in the order of their positions.

    For versions in the order of the source's log: a later one is newer, regardless of its cursor.

    Args:
        rows: stamped rows.
        generation: the newest that raw has.
    """
    order = Over.partitionBy(*(f.col(quote_name(name)) for name in key)).orderBy(SEQUENCE)
    number = f.row_number().over(order).cast("bigint")
    return rows.withColumn(GENERATION, f.lit(generation) + number)


def hides_a_cursor(fresh: DataFrame, raw: DataFrame, key: Sequence[str], cursor: str) -> bool:
    """Returns whether a row has no cursor, though some version of its key in raw has one.

    Reads raw's keys, so call it only for rows without a cursor that raw does not have yet.
    """
    names = [quote_name(name) for name in key]
    keys = fresh.where(f.col(quote_name(cursor)).isNull()).select(
        *(f.col(name).alias(f"_cq_key_{i}") for i, name in enumerate(names))
    )
    same = [f.col(name).eqNullSafe(f.col(f"_cq_key_{i}")) for i, name in enumerate(names)]
    dated = raw.where(f.col(quote_name(cursor)).isNotNull())
    return bool(dated.join(f.broadcast(keys), reduce(and_, same), "left_semi").take(1))


def _comparable(raw: DataFrame, region: Column, generations: Generations) -> DataFrame:
    """Returns the raw rows needed to find each key's newest version in a region.

    A version of an older generation counts only together with all later batches: its key's newest
    version may be in a newer generation, with a cursor below the region.
    """
    generation = f.col(GENERATION)
    if generations.base < generations.current:
        older = raw.where(region).where(
            (generation >= generations.base) & (generation < generations.current)
        )
        [row] = older.agg(f.min(BATCH).alias("first")).collect()
        if row["first"] is not None:
            return raw.where(generation >= generations.base).where(
                region | (f.col(BATCH) >= f.lit(row["first"]))
            )
    return raw.where((generation == f.lit(generations.current)) & region)


def _flag_by_multiplicity(rows: DataFrame, known: DataFrame) -> DataFrame:
    said = f.struct(HASH, DELETED)
    counts = known.groupBy(said.alias("_cq_known")).agg(f.count(f.lit(1)).alias("_cq_held"))
    number = f.row_number().over(Over.partitionBy(HASH, DELETED).orderBy(SEQUENCE))
    return (
        rows.withColumn("_cq_number", number)
        .join(counts, said.eqNullSafe(f.col("_cq_known")), "left")
        .select(
            *(f.col(quote_name(name)) for name in rows.columns),
            (f.col("_cq_number") <= f.coalesce(f.col("_cq_held"), f.lit(0))).alias(REDELIVERED),
            f.lit(False).alias(OVERRULES),
        )
    )


def _region(raw: DataFrame, window: Window, bounds: Bounds) -> Column:
    floor = window.floor(bounds)
    if window.cursor is None or floor is None or window.cursor.collated:
        return f.lit(True)  # only the source knows the order of collated texts
    name = window.cursor.name
    # Raw keeps a column's name if only its case changes in the source.
    [data_type] = [c.dataType for c in raw.schema.fields if c.name.lower() == name.lower()]
    column = f.col(quote_name(name))
    above = column >= literal(floor, data_type)
    return above | column.isNull() if bounds.nulls else above
