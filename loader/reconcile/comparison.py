"""Compares source and lake: checksums of buckets first, then the keys of buckets that differ.

The lake's side is the newest version of each key in raw, by the loader's own order: the rows of a
snapshot table, whichever model built it. Rows stay in Spark; only sums come to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.lake.lake import Lake
from loader.lake.raw_table import plan_drift
from loader.lake.schema_evolution import ColumnMapping, conform
from loader.lake.type_widening import bare
from loader.rows.bookkeeping import DELETED, HASH, is_tombstone
from loader.rows.version_order import quote_name, version_column
from loader.rows.window import Window
from loader.sources.contents import (
    BUCKET,
    CHECKSUM,
    COUNT,
    KEY,
    WANTED,
    Contents,
    KeySelection,
    is_wanted,
    sum_buckets,
)
from loader.sync.ownership import select_own_rows
from loader.sync.table_plan import TablePlan

UPDATE = "missed update"
ROW = "missed row"
DELETE = "missed delete"
KIND = "_cq_kind"
THERE = "_cq_there"
"""The source's checksum of a row; null if the source does not have the row."""

GONE = "_cq_gone"
"""Whether a row is a tombstone that holds only the key."""

_INSIDE = "_cq_inside"
_ROWS_PER_PART = 250
_PARTS = 65_536
_NAMED = 4_000  # parts in an SQL list; if there are more, the query selects whole buckets


@dataclass(frozen=True)
class Bucket:
    """A bucket that was compared.

    Attributes:
        parts: the numbers of its parts that differ.
    """

    number: int
    rows_source: int
    rows_snapshot: int
    parts: tuple[int, ...]


def parts_per_bucket(rows: int, buckets: int) -> int:
    """Returns into how many parts each bucket is split, so that little is read if one differs."""
    parts = 1
    while buckets * parts * _ROWS_PER_PART < rows and buckets * parts * 2 <= _PARTS:
        parts *= 2
    return parts


def key_names(plan: TablePlan) -> list[str]:
    """Returns names for the key's columns in a comparison, independent of their own names."""
    return [f"_cq_key_{i}" for i in range(len(plan.key))]


class Comparison:
    """Compares one table in the source and in the lake.

    Args:
        window: the rows that the spec means to load.
        missing_means_deleted: whether a row that is missing from the source was deleted.
    """

    def __init__(
        self,
        plan: TablePlan,
        lake: Lake,
        contents: Contents,
        window: Window,
        missing_means_deleted: bool,
    ) -> None:
        self.plan = plan
        self.lake = lake
        self.contents = contents
        self.window = window
        self.missing_means_deleted = missing_means_deleted

    def buckets(self, of: int, chosen: Sequence[int]) -> tuple[list[Bucket], KeySelection | None]:
        """Compares the chosen buckets; returns them, and the smallest share with all differences.

        The share is None if nothing differs.
        """
        share = KeySelection(of, None if len(chosen) == of else tuple(chosen))
        parts = parts_per_bucket(self._raw().count(), of)
        source = self.contents.sums(share, parts)
        newest = self.newest(share).where(~f.col(GONE) & f.col(_INSIDE))
        snapshot = sum_buckets(newest, of * parts)
        counted = {name: f.coalesce(f.col(name), f.lit(0)) for name in ("source", "snapshot")}
        differs = ~(f.col("source_sum").eqNullSafe(f.col("snapshot_sum"))) | (
            counted["source"] != counted["snapshot"]
        )
        rows = (
            source.select(BUCKET, f.col(COUNT).alias("source"), f.col(CHECKSUM).alias("source_sum"))
            .join(
                snapshot.select(
                    BUCKET, f.col(COUNT).alias("snapshot"), f.col(CHECKSUM).alias("snapshot_sum")
                ),
                BUCKET,
                "full_outer",
            )
            .groupBy(f.pmod(f.col(BUCKET), f.lit(of)).alias("number"))
            .agg(
                f.sum(counted["source"]).alias("source"),
                f.sum(counted["snapshot"]).alias("snapshot"),
                f.collect_list(f.when(differs, f.col(BUCKET))).alias("parts"),
            )
            .collect()
        )
        found = {
            row["number"]: Bucket(
                row["number"], row["source"], row["snapshot"], tuple(sorted(row["parts"]))
            )
            for row in rows
        }
        buckets = [found.get(number, Bucket(number, 0, 0, ())) for number in chosen]
        return buckets, smallest(buckets, of, parts)

    def differences(self, share: KeySelection) -> DataFrame:
        """Finds the keys that differ: returns KEY, KIND, THERE, HASH, DELETED and key columns.

        HASH and DELETED are those of raw's newest version.
        """
        source = self.contents.hashes(share).select(KEY, f.col(CHECKSUM).alias(THERE), WANTED)
        snapshot = self.newest(share)
        gone = f.coalesce(f.col(GONE), f.lit(True))
        # A tombstone that still holds its row's values is one that the source itself has marked.
        deletable = ~gone & ~f.col(DELETED) & f.col(_INSIDE) & f.lit(self.missing_means_deleted)
        kind = (
            f.when(f.col(WANTED).isNull() & deletable, f.lit(DELETE))
            .when(f.col(WANTED) & gone, f.lit(ROW))
            .when(f.col(WANTED) & ~f.col(THERE).eqNullSafe(f.col(CHECKSUM)), f.lit(UPDATE))
        )
        joined = source.join(snapshot, KEY, "full_outer").withColumn(KIND, kind)
        return joined.where(f.col(KIND).isNotNull()).select(
            KEY, KIND, THERE, HASH, DELETED, *key_names(self.plan)
        )

    def newest(self, share: KeySelection) -> DataFrame:
        """Returns each key's newest version in raw: KEY, CHECKSUM, HASH, DELETED, key columns.

        Also GONE, and _INSIDE: whether the spec means to load the row.
        """
        plan, table = self.plan, self.plan.table
        rows = self._as_source().where(share.contains(self.contents.key_hash()))
        empty = [
            f.col(quote_name(name)).isNull() for name in table.schema.names if name not in plan.key
        ]
        deleted = f.coalesce(f.col(DELETED), f.lit(False))
        # If deleted_field was set or removed since, a row that it marks counts as changed.
        counts = deleted == is_tombstone(rows, plan.deleted)
        says = f.struct(
            f.when(counts, self.contents.row_checksum()).otherwise(f.lit(-1)).alias(CHECKSUM),
            f.col(HASH),
            deleted.alias(DELETED),
            reduce(and_, empty, deleted).alias(GONE),
            is_wanted(table.schema, self.window).alias(_INSIDE),
        )
        keys = [f.col(quote_name(name)) for name in plan.key]
        cursor = plan.cursor.name if plan.cursor else None
        return (
            rows.groupBy(*keys)
            .agg(f.max_by(says, version_column(cursor)).alias("_cq_says"))
            .select(
                self.contents.key_hash().alias(KEY),
                *(key.alias(name) for key, name in zip(keys, key_names(plan), strict=True)),
                "_cq_says.*",
            )
        )

    def _raw(self) -> DataFrame:
        return select_own_rows(self.plan, self.lake.frame(self.plan.lake_table))

    def _as_source(self) -> DataFrame:
        """Returns raw in the source's columns and types, by the routes that sync rows take."""
        plan, raw = self.plan, self._raw()
        drift = plan_drift(self.lake, plan.lake_table, plan.table.schema, plan.policy)
        there = {field.name.lower(): field for field in raw.schema.fields}
        back = [
            ColumnMapping(field.name, bare(field.dataType), route.source, route.source_type)
            for route in drift.routes
            if (field := there.get(route.raw.lower())) is not None
        ]
        rows = conform(raw, back, f"table {plan.name}")
        # Columns that raw does not have yet are null.
        known = {route.raw for route in back}
        new = {
            route.source: f.lit(None).cast(route.source_type)
            for route in drift.routes
            if route.source not in known
        }
        return rows.withColumns(new) if new else rows


def bucket_of(number: int) -> Column:
    """Returns KEY's bucket, out of `number` buckets."""
    return KeySelection(number).bucket(f.col(KEY))


def smallest(buckets: Sequence[Bucket], of: int, parts: int) -> KeySelection | None:
    """Returns the smallest share of the keys that has all differences; None if there are none.

    Args:
        of: the number of buckets.
        parts: the number of parts of each bucket.
    """
    differing = [bucket.number for bucket in buckets if bucket.parts]
    if not differing:
        return None
    named = tuple(part for bucket in buckets for part in bucket.parts)
    if len(named) <= _NAMED:
        return KeySelection(of * parts, named)
    return KeySelection(of, None if len(differing) == of else tuple(differing))
