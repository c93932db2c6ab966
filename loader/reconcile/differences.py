"""Confirms differences by rereading rows and by searching the source for missing keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.reconcile.comparison import (
    DELETE,
    KEY_ONLY,
    KIND,
    RAW_CURSOR,
    ROW,
    SOURCE_CHECKSUM,
    UPDATE,
    Comparison,
    bucket_of,
    key_names,
)
from loader.reconcile.history import VerifiedBucket
from loader.rows.bookkeeping import DELETED, HASH, is_tombstone
from loader.rows.row_hash import row_hash
from loader.rows.version_order import quote_name
from loader.sources.contents import KEY, Contents, KeySelection
from loader.sources.interface import Snapshot
from loader.sync.table_plan import TablePlan

SAMPLE_SIZE = 10
_SPARK_KEY = "_cq_spark_key"
"""The column that contains Spark's hash of a row's key. KEY may contain the database's hash."""

_MAX_LISTED = 2_000  # keys in an SQL list; if there are more, their buckets are selected


@dataclass(frozen=True)
class Differences:
    """The confirmed differences of a table.

    Attributes:
        rows: the source's rows for missed updates and missed rows, with KEY, KIND and RAW_CURSOR.
        deleted: KEY, KIND and the key columns of missed deletes.
        changed: the hashes of keys that appeared to be missing from the source, but were found
            later, with rows that differ from the raw table.
    """

    rows: DataFrame
    deleted: DataFrame
    changed: tuple[str, ...] = ()


def narrow_share(candidates: DataFrame, share: KeySelection) -> KeySelection | None:
    """Returns a selection of the candidates' keys, or None if there are no candidates.

    If there are too many keys for an SQL list, returns `share` unchanged. `share` must contain all
    candidates.
    """
    keys = [row[KEY] for row in candidates.select(KEY).limit(_MAX_LISTED + 1).collect()]
    if not keys:
        return None
    return KeySelection(share.of, keys=tuple(keys)) if len(keys) <= _MAX_LISTED else share


def keep_unchanged(before: DataFrame, after: DataFrame) -> DataFrame:
    """Returns the rows of `after` that are also in `before` and have not changed in the source."""
    earlier = before.select(
        f.col(KEY).alias("_cq_earlier_key"), f.col(SOURCE_CHECKSUM).alias("_cq_earlier")
    )
    is_same = (f.col(KEY) == f.col("_cq_earlier_key")) & f.col(SOURCE_CHECKSUM).eqNullSafe(
        f.col("_cq_earlier")
    )
    return after.join(earlier, is_same, "left_semi")


def confirm_differences(
    comparison: Comparison, snapshot: Snapshot, candidates: DataFrame, share: KeySelection
) -> Differences:
    """Confirms candidates: rereads and compares their rows, and searches for missing keys.

    Rows that match may have different checksums if they contain a time that only the database can
    format. They are not missed updates. A key that exists in the source is not a missed delete. It
    may appear to be missing if the database and Spark hash it differently, or if it was inserted
    after the comparison had read the table. `share` must contain all candidates.

    Raises a TableError if a row in the source contains a value that the lake cannot store.
    """
    plan, contents = comparison.plan, comparison.contents
    missed = candidates.where(f.col(KIND) != DELETE).select(KEY, KIND, HASH, DELETED, RAW_CURSOR)
    contents.check_storable(share)
    rows = contents.rows(share).join(missed, KEY).withColumn(_SPARK_KEY, contents.key_hash())
    rows = _find_by_spark_key(comparison, materialize(rows))
    is_equal = (
        (f.col(KIND) == UPDATE)
        & row_hash(plan.table.schema).eqNullSafe(f.col(HASH))
        & is_tombstone(rows, plan.deleted).eqNullSafe(f.col(DELETED))
    )
    deleted, changed = _confirm_deletes(
        plan, comparison.lake.spark, snapshot, candidates.where(f.col(KIND) == DELETE)
    )
    changed = _drop_other_hashes(contents, changed)
    return Differences(materialize(rows.where(~is_equal).drop(HASH, DELETED)), deleted, changed)


def _find_by_spark_key(comparison: Comparison, rows: DataFrame) -> DataFrame:
    """Finds the raw table's rows for keys that the database and Spark hash differently.

    Args:
        rows: the source's rows with KEY (the database's hash) and _SPARK_KEY (Spark's hash).
    """
    different = rows.where(f.col(KEY) != f.col(_SPARK_KEY))
    keys = [row[0] for row in different.select(_SPARK_KEY).limit(_MAX_LISTED + 1).collect()]
    if not keys:
        return rows.drop(_SPARK_KEY)
    share = KeySelection(1, keys=tuple(keys)) if len(keys) <= _MAX_LISTED else KeySelection(1)
    raw = comparison.newest_versions(share).where(~f.col(KEY_ONLY))
    raw = raw.select(f.col(KEY).alias(_SPARK_KEY), HASH, DELETED, RAW_CURSOR)
    different = different.drop(HASH, DELETED, RAW_CURSOR).join(raw, _SPARK_KEY, "left")
    different = different.withColumn(KIND, f.when(f.col(DELETED).isNull(), ROW).otherwise(UPDATE))
    same = rows.where(f.col(KEY) == f.col(_SPARK_KEY))
    return same.unionByName(different).drop(_SPARK_KEY)


def _drop_other_hashes(contents: Contents, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Drops keys that the database and Spark hash differently.

    Each of these keys is compared as part of the bucket that its database hash falls into.
    """
    if not 0 < len(keys) <= _MAX_LISTED:
        return keys
    spark_key = contents.key_hash()
    rows = contents.rows(KeySelection(1)).where((f.col(KEY) != spark_key) & spark_key.isin(*keys))
    return tuple(set(keys) - {row[0] for row in rows.select(spark_key).collect()})


def _confirm_deletes(
    plan: TablePlan, spark: SparkSession, snapshot: Snapshot, missing: DataFrame
) -> tuple[DataFrame, tuple[str, ...]]:
    """Searches the source for missing keys.

    Returns the rows of `missing` whose keys the source still lacks, and the hashes of keys whose
    rows exist but differ from the raw table.
    """
    if not missing.take(1):
        return missing, ()
    names = [quote_name(name) for name in plan.key]
    columns = zip(plan.key, key_names(plan), strict=True)
    keys = missing.select(KEY, HASH, *(f.col(column).alias(name) for name, column in columns))
    aliases = [(name, f"_cq_source_key_{i}") for i, name in enumerate(names)]

    def join_source(keys: DataFrame, *more: Column) -> DataFrame:
        rows = snapshot.read_current_rows(spark, plan.table, keys.select(*names))
        rows = rows.select(*(f.col(name).alias(alias) for name, alias in aliases), *more)
        is_same_key = [keys[name].eqNullSafe(rows[alias]) for name, alias in aliases]
        return keys.join(rows, reduce(and_, is_same_key))

    existing = materialize(join_source(keys).select(KEY, HASH, *names).distinct())
    if not existing.take(1):
        return missing, ()
    current = join_source(existing, row_hash(plan.table.schema).alias("_cq_current"))
    equal = materialize(current.where(f.col("_cq_current") == f.col(HASH)).select(KEY).distinct())
    changed = [row[KEY] for row in existing.join(equal, KEY, "left_anti").select(KEY).collect()]
    return missing.join(existing, KEY, "left_anti"), tuple(changed)


def count_differences(
    verified: Sequence[VerifiedBucket], differences: Differences, buckets: int
) -> list[VerifiedBucket]:
    """Returns the buckets, each with its number of differences of each kind."""
    keys = differences.rows.select(KEY, KIND).union(differences.deleted.select(KEY, KIND))
    rows = keys.groupBy(bucket_of(buckets).alias("number"), KIND).count().collect()
    counts = {(row["number"], row[KIND]): row["count"] for row in rows}
    return [
        replace(
            each,
            missed_updates=counts.get((each.bucket, UPDATE), 0),
            missed_rows=counts.get((each.bucket, ROW), 0),
            missed_deletes=counts.get((each.bucket, DELETE), 0),
        )
        for each in verified
    ]


def sample_differences(plan: TablePlan, differences: Differences) -> tuple[tuple[str, str], ...]:
    """Returns the kinds and keys of a few differences as strings, for display."""
    rows = differences.rows.select(KIND, *(_format_key(plan, name, name) for name in plan.key))
    names = zip(plan.key, key_names(plan), strict=True)
    deleted = differences.deleted.select(
        KIND, *(_format_key(plan, name, column) for name, column in names)
    )
    sample = rows.union(deleted).limit(SAMPLE_SIZE).collect()
    return tuple(sorted((kind, ", ".join(key)) for kind, *key in sample))


def materialize(frame: DataFrame) -> DataFrame:
    """Computes and stores the rows immediately.

    Not cached, because Spark recomputes a cached frame after a write to one of its tables.
    """
    return frame.localCheckpoint(eager=True)


def _format_key(plan: TablePlan, name: str, column: str) -> Column:
    value = f.col(quote_name(column))
    if isinstance(plan.table.schema[name].dataType, t.BinaryType):
        value = f.lower(f.hex(value))
    return f.concat(f.lit(f"{name}="), f.coalesce(value.cast("string"), f.lit("null")))
