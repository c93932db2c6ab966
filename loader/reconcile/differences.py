"""From keys that differ to what was missed for certain: rows read again, and keys that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.delta import DELETED, HASH, row_hash, tombstone
from loader.order import quoted
from loader.plan import Plan
from loader.reconcile.comparison import DELETE, KIND, ROW, THERE, UPDATE, bucket_of, key_names
from loader.reconcile.reconciled import Verified
from loader.sources.contents import KEY, Contents, Share

SAMPLE = 10
_NAMED = 2_000  # keys in an SQL list; beyond it their buckets are asked for


@dataclass(frozen=True)
class Differences:
    """What differs for certain.

    Attributes:
        rows: missed updates and missed rows as the source has them, with KEY and KIND.
        gone: missed deletes: KEY, KIND and the key's columns.
    """

    rows: DataFrame
    gone: DataFrame


def named(candidates: DataFrame, share: Share) -> Share | None:
    """The candidates by their keys where these fit a list, else `share`; None where there are none.

    Args:
        share: what has all of them.
    """
    keys = [row[KEY] for row in candidates.select(KEY).limit(_NAMED + 1).collect()]
    if not keys:
        return None
    return Share(share.of, keys=tuple(keys)) if len(keys) <= _NAMED else share


def still(before: DataFrame, after: DataFrame) -> DataFrame:
    """What differed before and differs now, of rows that the source has not changed meanwhile."""
    then = before.select(f.col(KEY).alias("_cq_then_key"), f.col(THERE).alias("_cq_then"))
    same = (f.col(KEY) == f.col("_cq_then_key")) & f.col(THERE).eqNullSafe(f.col("_cq_then"))
    return after.join(then, same, "left_semi")


def certain(plan: Plan, contents: Contents, candidates: DataFrame, share: Share) -> Differences:
    """The candidates, the rows among them read again.

    A row that is what raw says already was not missed: a checksum may differ where the row does
    not, of a time that only the database can write.

    Args:
        share: what has all candidates.
    """
    missed = candidates.where(f.col(KIND) != DELETE).select(KEY, KIND, HASH, DELETED)
    rows = contents.rows(share).withColumn(KEY, contents.key_hash()).join(missed, KEY)
    same = (
        (f.col(KIND) == UPDATE)
        & row_hash(plan.table.schema).eqNullSafe(f.col(HASH))
        & tombstone(rows, plan.deleted).eqNullSafe(f.col(DELETED))
    )
    gone = candidates.where(f.col(KIND) == DELETE)
    return Differences(rows.where(~same).drop(HASH, DELETED), gone)


def counted(verified: Sequence[Verified], differences: Differences, buckets: int) -> list[Verified]:
    """The buckets with their differences, by kind."""
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


def sample(plan: Plan, differences: Differences) -> tuple[tuple[str, str], ...]:
    """Some keys that differ and how, for people."""
    rows = differences.rows.select(KIND, *(_shown(plan, name, name) for name in plan.key))
    names = zip(plan.key, key_names(plan), strict=True)
    gone = differences.gone.select(KIND, *(_shown(plan, name, own) for name, own in names))
    found = rows.union(gone).limit(SAMPLE).collect()
    return tuple(sorted((kind, ", ".join(key)) for kind, *key in found))


def kept(frame: DataFrame) -> DataFrame:
    """The rows as they are now, whole.

    Not by a cache: Spark fills every cache that has read a table anew once the table was written.
    """
    return frame.localCheckpoint(eager=True)


def _shown(plan: Plan, name: str, column: str) -> Column:
    value = f.col(quoted(column))
    if isinstance(plan.table.schema[name].dataType, t.BinaryType):
        value = f.lower(f.hex(value))
    return f.concat(f.lit(f"{name}="), f.coalesce(value.cast("string"), f.lit("null")))
