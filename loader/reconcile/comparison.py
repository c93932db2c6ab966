"""Compares source and lake: first the checksums of buckets, then the keys of buckets that differ.

A bucket contains the keys that have the same hash modulo the number of buckets. On the lake's side,
the newest version of each key in the raw table is compared, according to the loader's version
order. So the result does not depend on the model that builds the latest table. The rows stay in
Spark; only sums are collected.
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
from loader.rows.row_hash import row_hash
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
from loader.sync.deletions import lacks_key
from loader.sync.ownership import select_own_rows
from loader.sync.table_plan import TablePlan

UPDATE = "missed update"
ROW = "missed row"
DELETE = "missed delete"
KIND = "_cq_kind"
SOURCE_CHECKSUM = "_cq_source_checksum"
"""The column that contains the source's checksum of a row; null if the source lacks the row."""

KEY_ONLY = "_cq_key_only"
"""The column that flags tombstones in which all columns except the key are null."""

RAW_CURSOR = "_cq_raw_cursor"
"""The column that contains the cursor of the newest version in the raw table."""

_IN_WINDOW = "_cq_in_window"
_ROWS_PER_PART = 250
_MAX_PARTS = 65_536
_MAX_LISTED = 4_000  # parts in an SQL list; if there are more, whole buckets are selected


@dataclass(frozen=True)
class Bucket:
    """A compared bucket of keys.

    Attributes:
        parts: the numbers of the bucket's parts that differ.
    """

    number: int
    rows_source: int
    rows_snapshot: int
    parts: tuple[int, ...]


def parts_per_bucket(rows: int, buckets: int) -> int:
    """Returns the number of parts per bucket. The more parts, the fewer rows must be reread."""
    parts = 1
    while buckets * parts * _ROWS_PER_PART < rows and buckets * parts * 2 <= _MAX_PARTS:
        parts *= 2
    return parts


def key_names(plan: TablePlan) -> list[str]:
    """Returns names for the key columns that are unique within a comparison."""
    return [f"_cq_key_{i}" for i in range(len(plan.key))]


@dataclass(frozen=True)
class Comparison:
    """Compares one table's contents in the source with those in the lake.

    Attributes:
        window: the rows that the spec selects.
        missing_means_deleted: whether to treat a row that is missing from the source as deleted.
    """

    plan: TablePlan
    lake: Lake
    contents: Contents
    window: Window
    missing_means_deleted: bool

    def compare_buckets(
        self, of: int, numbers: Sequence[int]
    ) -> tuple[list[Bucket], KeySelection | None]:
        """Compares the buckets `numbers` of all `of` buckets.

        Returns them and the smallest key selection with all differences, or None if there are none.
        """
        share = KeySelection(of, None if len(numbers) == of else tuple(numbers))
        parts = parts_per_bucket(self._read_raw().count(), of)
        source = self.contents.sums(share, parts)
        newest = self.newest_versions(share).where(~f.col(KEY_ONLY) & f.col(_IN_WINDOW))
        newest = newest.where(~lacks_key(self.plan, key_names(self.plan)))
        snapshot = sum_buckets(newest, of * parts)
        by_number = {each.number: each for each in compare_sums(source, snapshot, of)}
        buckets = [by_number.get(number, Bucket(number, 0, 0, ())) for number in numbers]
        return buckets, find_smallest_share(buckets, of, parts)

    def compare_keys(self, share: KeySelection) -> DataFrame:
        """Compares keys. Returns a row for each key that differs.

        A row contains KEY, KIND, SOURCE_CHECKSUM and the key columns, and HASH, DELETED and
        RAW_CURSOR of the newest version in the raw table.
        """
        source = self.contents.hashes(share).select(
            KEY, f.col(CHECKSUM).alias(SOURCE_CHECKSUM), WANTED
        )
        snapshot = self.newest_versions(share)
        is_missing = f.coalesce(f.col(KEY_ONLY), f.lit(True))
        # If a tombstone has values in columns other than the key, the source itself flagged the row
        # as deleted.
        can_be_deleted = (
            ~is_missing & ~f.col(DELETED) & f.col(_IN_WINDOW) & f.lit(self.missing_means_deleted)
        )
        can_be_deleted &= ~lacks_key(self.plan, key_names(self.plan))
        kind = (
            f.when(f.col(WANTED).isNull() & can_be_deleted, f.lit(DELETE))
            .when(f.col(WANTED) & is_missing, f.lit(ROW))
            .when(
                f.col(WANTED) & ~f.col(SOURCE_CHECKSUM).eqNullSafe(f.col(CHECKSUM)), f.lit(UPDATE)
            )
        )
        joined = source.join(snapshot, KEY, "full_outer").withColumn(KIND, kind)
        return joined.where(f.col(KIND).isNotNull()).select(
            KEY, KIND, SOURCE_CHECKSUM, HASH, DELETED, RAW_CURSOR, *key_names(self.plan)
        )

    def newest_versions(self, share: KeySelection) -> DataFrame:
        """Returns KEY, CHECKSUM, HASH, DELETED and the key columns of each key's newest version.

        HASH is computed from the raw table's values, converted to the source's types. The result
        also contains KEY_ONLY, _IN_WINDOW (whether the spec selects the row) and RAW_CURSOR.
        """
        plan, table = self.plan, self.plan.table
        rows = self._read_raw_as_source().where(share.contains(self.contents.key_hash()))
        nulls = [
            f.col(quote_name(name)).isNull() for name in table.schema.names if name not in plan.key
        ]
        deleted = f.coalesce(f.col(DELETED), f.lit(False))
        cursor = plan.cursor.name if plan.cursor else None
        # If the `deleted_field` option was added to or removed from the spec, the rows that this
        # field flags count as changed.
        is_same_mark = deleted == is_tombstone(rows, plan.deleted)
        version = f.struct(
            f.when(is_same_mark, self.contents.row_checksum()).otherwise(f.lit(-1)).alias(CHECKSUM),
            # Recomputed, because the stored hash does not reflect later changes to values in the
            # raw table.
            row_hash(table.schema).alias(HASH),
            deleted.alias(DELETED),
            reduce(and_, nulls, deleted).alias(KEY_ONLY),
            is_wanted(table.schema, self.window).alias(_IN_WINDOW),
            (f.col(quote_name(cursor)) if cursor else f.lit(None)).alias(RAW_CURSOR),
        )
        keys = [f.col(quote_name(name)) for name in plan.key]
        return (
            rows.groupBy(*keys)
            .agg(f.max_by(version, version_column(cursor)).alias("_cq_newest"))
            .select(
                self.contents.key_hash().alias(KEY),
                *(key.alias(name) for key, name in zip(keys, key_names(plan), strict=True)),
                "_cq_newest.*",
            )
        )

    def _read_raw(self) -> DataFrame:
        return select_own_rows(self.plan, self.lake.frame(self.plan.lake_table))

    def _read_raw_as_source(self) -> DataFrame:
        plan, raw = self.plan, self._read_raw()
        drift = plan_drift(self.lake, plan.lake_table, plan.table.schema, plan.policy)
        raw_fields = {field.name.lower(): field for field in raw.schema.fields}
        mappings = [
            ColumnMapping(field.name, bare(field.dataType), each.source, each.source_type)
            for each in drift.mappings
            if (field := raw_fields.get(each.raw.lower())) is not None
        ]
        rows = conform(raw, mappings, f"table {plan.name}")
        # Columns that the raw table lacks are null.
        mapped = {mapping.raw for mapping in mappings}
        missing = {
            each.source: f.lit(None).cast(each.source_type)
            for each in drift.mappings
            if each.source not in mapped
        }
        return rows.withColumns(missing) if missing else rows


def compare_sums(source: DataFrame, other: DataFrame, of: int) -> list[Bucket]:
    """Compares counts and checksums of parts of buckets. Returns the buckets that contain rows.

    Args:
        source: BUCKET (the number of a part), COUNT and CHECKSUM of the source.
        other: the same columns of the table to compare with it.
        of: the number of buckets.
    """
    renamed = other.select(BUCKET, f.col(COUNT).alias("count"), f.col(CHECKSUM).alias("checksum"))
    rows_source, rows_other = (f.coalesce(f.col(name), f.lit(0)) for name in (COUNT, "count"))
    is_same = (rows_source == rows_other) & f.col(CHECKSUM).eqNullSafe(f.col("checksum"))
    found = (
        source.join(renamed, BUCKET, "full_outer")
        .groupBy(f.pmod(f.col(BUCKET), f.lit(of)))
        .agg(
            f.sum(rows_source),
            f.sum(rows_other),
            f.collect_list(f.when(~is_same, f.col(BUCKET))),
        )
        .collect()
    )
    return [
        Bucket(number, in_source, in_other, tuple(sorted(parts)))
        for number, in_source, in_other, parts in found
    ]


def bucket_of(buckets: int) -> Column:
    """Returns a column expression for the bucket of KEY."""
    return KeySelection(buckets).bucket(f.col(KEY))


def find_smallest_share(buckets: Sequence[Bucket], of: int, parts: int) -> KeySelection | None:
    """Returns the smallest key selection with all differences, or None if there are none."""
    differing = [bucket.number for bucket in buckets if bucket.parts]
    if not differing:
        return None
    numbers = tuple(part for bucket in buckets for part in bucket.parts)
    if len(numbers) <= _MAX_LISTED:
        return KeySelection(of * parts, numbers)
    return KeySelection(of, None if len(differing) == of else tuple(differing))
