"""Confirms keys that seem to differ: reads their rows again, and looks for missing keys again."""

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
    GONE,
    KIND,
    ROW,
    THERE,
    UPDATE,
    Comparison,
    bucket_of,
    key_names,
)
from loader.reconcile.verified_buckets import VerifiedBucket
from loader.rows.bookkeeping import DELETED, HASH, is_tombstone
from loader.rows.row_hash import row_hash
from loader.rows.version_order import quote_name
from loader.sources.contents import KEY, Contents, KeySelection
from loader.sources.interface import Snapshot
from loader.sync.table_plan import TablePlan

SAMPLE = 10
_OWN = "_cq_own_key"
_NAMED = 2_000  # keys in an SQL list; if there are more, the query selects their buckets


@dataclass(frozen=True)
class Differences:
    """The confirmed differences.

    Attributes:
        rows: missed updates and missed rows as the source has them, with KEY and KIND.
        gone: missed deletes: KEY, KIND and the key's columns.
        changed: hashes of keys that were gone and are there again, with rows that differ from raw.
    """

    rows: DataFrame
    gone: DataFrame
    changed: tuple[str, ...] = ()


def narrow_share(candidates: DataFrame, share: KeySelection) -> KeySelection | None:
    """Returns the candidates' keys as a share if they fit a list, else `share`; None if none.

    Args:
        share: one that contains all candidates.
    """
    keys = [row[KEY] for row in candidates.select(KEY).limit(_NAMED + 1).collect()]
    if not keys:
        return None
    return KeySelection(share.of, keys=tuple(keys)) if len(keys) <= _NAMED else share


def still(before: DataFrame, after: DataFrame) -> DataFrame:
    """Returns what differed before and still differs, if the source's row has not changed since."""
    then = before.select(f.col(KEY).alias("_cq_then_key"), f.col(THERE).alias("_cq_then"))
    same = (f.col(KEY) == f.col("_cq_then_key")) & f.col(THERE).eqNullSafe(f.col("_cq_then"))
    return after.join(then, same, "left_semi")


def certain(
    comparison: Comparison, snapshot: Snapshot, candidates: DataFrame, share: KeySelection
) -> Differences:
    """Confirms candidates by value: reads their rows again, and looks for their keys again.

    A row that equals raw's was not missed: checksums may differ for equal rows, with a time that
    only the database can write. A key that the source has was not deleted: the two sides may hash
    it differently, or the comparison read the table in an older state.

    Args:
        share: one that contains all candidates.

    Raises:
        TableError: a row of the source holds a value that the lake cannot.
    """
    plan, contents = comparison.plan, comparison.contents
    missed = candidates.where(f.col(KIND) != DELETE).select(KEY, KIND, HASH, DELETED)
    contents.check_storable(share)
    rows = contents.rows(share).join(missed, KEY).withColumn(_OWN, contents.key_hash())
    rows = _by_value(comparison, materialize(rows))
    same = (
        (f.col(KIND) == UPDATE)
        & row_hash(plan.table.schema).eqNullSafe(f.col(HASH))
        & is_tombstone(rows, plan.deleted).eqNullSafe(f.col(DELETED))
    )
    gone = candidates.where(f.col(KIND) == DELETE)
    gone, changed = _sought(plan, comparison.lake.spark, snapshot, gone)
    changed = _drop_other_hashes(contents, changed)
    return Differences(materialize(rows.where(~same).drop(HASH, DELETED)), gone, changed)


def _by_value(comparison: Comparison, rows: DataFrame) -> DataFrame:
    """Compares rows by value with raw's, if the source and Spark hash their keys differently.

    Args:
        rows: with KEY as the source hashes it, and _OWN as Spark does.
    """
    odd = rows.where(f.col(KEY) != f.col(_OWN))
    own = [row[_OWN] for row in odd.select(_OWN).limit(_NAMED + 1).collect()]
    if not own:
        return rows.drop(_OWN)
    share = KeySelection(1, keys=tuple(own)) if len(own) <= _NAMED else KeySelection(1)
    held = comparison.newest(share).where(~f.col(GONE))
    held = held.select(f.col(KEY).alias(_OWN), HASH, DELETED)
    odd = odd.drop(HASH, DELETED).join(held, _OWN, "left")
    odd = odd.withColumn(KIND, f.when(f.col(DELETED).isNull(), ROW).otherwise(UPDATE))
    even = rows.where(f.col(KEY) == f.col(_OWN))
    return even.unionByName(odd).drop(_OWN)


def _drop_other_hashes(contents: Contents, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Drops keys (by Spark's hash) that the source has under another hash of its own.

    Those are compared with the bucket that they have in the source.
    """
    if not 0 < len(keys) <= _NAMED:
        return keys
    own = contents.key_hash()
    odd = contents.rows(KeySelection(1)).where((f.col(KEY) != own) & own.isin(*keys))
    return tuple(set(keys) - {row[_OWN] for row in odd.select(own.alias(_OWN)).collect()})


def _sought(
    plan: TablePlan, spark: SparkSession, snapshot: Snapshot, gone: DataFrame
) -> tuple[DataFrame, tuple[str, ...]]:
    """Looks for missed deletes in the source: returns those still gone, and keys back but changed.

    For all others, the source has exactly the row that raw holds: nothing was deleted.
    """
    if not gone.take(1):
        return gone, ()
    names = [quote_name(name) for name in plan.key]
    parts = dict(zip(plan.key, key_names(plan), strict=True))
    keys = gone.select(KEY, HASH, *(f.col(own).alias(name) for name, own in parts.items()))

    def there(keys: DataFrame, *more: Column) -> DataFrame:
        rows = snapshot.read_current_rows(spark, plan.table, keys.select(*names))
        found = rows.select(*(f.col(name).alias(own) for name, own in _aliases(plan)), *more)
        same = [keys[name].eqNullSafe(found[own]) for name, own in _aliases(plan)]
        return keys.join(found, reduce(and_, same))

    alive = materialize(there(keys).select(KEY, HASH, *names).distinct())
    if not alive.take(1):
        return gone, ()
    now = there(alive, row_hash(plan.table.schema).alias("_cq_now"))
    equal = materialize(now.where(f.col("_cq_now") == f.col(HASH)).select(KEY).distinct())
    changed = [row[KEY] for row in alive.join(equal, KEY, "left_anti").select(KEY).collect()]
    return gone.join(alive, KEY, "left_anti"), tuple(changed)


def _aliases(plan: TablePlan) -> list[tuple[str, str]]:
    return [(quote_name(name), f"_cq_there_{i}") for i, name in enumerate(plan.key)]


def count_differences(
    verified: Sequence[VerifiedBucket], differences: Differences, buckets: int
) -> list[VerifiedBucket]:
    """Returns the buckets with their counts of differences, by kind."""
    each = differences.rows.select(KEY, KIND).union(differences.gone.select(KEY, KIND))
    rows = each.groupBy(bucket_of(buckets).alias("number"), KIND).count().collect()
    found = {(row["number"], row[KIND]): row["count"] for row in rows}
    return [
        replace(
            one,
            missed_updates=found.get((one.bucket, UPDATE), 0),
            missed_rows=found.get((one.bucket, ROW), 0),
            missed_deletes=found.get((one.bucket, DELETE), 0),
        )
        for one in verified
    ]


def sample(plan: TablePlan, differences: Differences) -> tuple[tuple[str, str], ...]:
    """Returns a few differing keys and the kind of each difference, formatted for display."""
    rows = differences.rows.select(KIND, *(_format_key(plan, name, name) for name in plan.key))
    names = zip(plan.key, key_names(plan), strict=True)
    gone = differences.gone.select(KIND, *(_format_key(plan, name, own) for name, own in names))
    found = rows.union(gone).limit(SAMPLE).collect()
    return tuple(sorted((kind, ", ".join(key)) for kind, *key in found))


def materialize(frame: DataFrame) -> DataFrame:
    """Materializes the rows as they are now.

    A cache would not do: once a table is written, Spark refills every cache that has read it.
    """
    return frame.localCheckpoint(eager=True)


def _format_key(plan: TablePlan, name: str, column: str) -> Column:
    value = f.col(quote_name(column))
    if isinstance(plan.table.schema[name].dataType, t.BinaryType):
        value = f.lower(f.hex(value))
    return f.concat(f.lit(f"{name}="), f.coalesce(value.cast("string"), f.lit("null")))
