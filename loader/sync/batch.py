"""The rows of one batch: read, stamped, compared with what raw holds, counted.

Nothing is written here: :mod:`loader.sync.protocol` appends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord, now
from loader.rows.delta import (
    OVERRULES,
    REDELIVERED,
    Generations,
    Stamp,
    assign_generation,
    flag_redelivered,
    hides_a_cursor,
    number_versions,
    stamp_rows,
)
from loader.rows.order import GENERATION, quote_name
from loader.rows.window import Bounds, Window
from loader.spark.session import hold_rows, plan_simply
from loader.state import TableState
from loader.sync.attempt import TableSync
from loader.sync.boundary_digest import AppendOnlyWindow
from loader.sync.deletions import correct_deleted, find_deleted, tombstones
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.sharing import own_rows

_FEW = 5_000
"""Of so many rows Spark's preparations take longer than the work."""

_LIGHT = 4 << 20
"""So many bytes of them the driver holds. Spark sends them to a task in one message, which may have
128 MB, and several tables have one at a time."""


@dataclass(frozen=True)
class CommitMetadata:
    """The ledger row and state that a batch's commit carries; valid once it is published.

    Attributes:
        record: the ledger row.
        after: the state.
    """

    record: SyncRecord
    after: TableState

    def overruling(self) -> CommitMetadata:
        """Returns the same in a new generation."""
        generation = self.after.generation + 1
        base = self.after.base or self.after.generation
        return CommitMetadata(
            replace(self.record, generation=generation),
            replace(self.after, generation=generation, base=base),
        )


@dataclass(frozen=True)
class Batch:
    """The rows to append.

    Attributes:
        rows: stamped, in the source's columns and ours.
        intent: the ledger row and state to commit with them.
        empty: there are no rows to append: all were redelivered.
        counted: how many rows the source counted, if the number read must match and has not been
            checked yet.
    """

    rows: DataFrame
    intent: CommitMetadata
    empty: bool = False
    counted: int | None = None

    def overruling(self, which: Column | None = None) -> Batch:
        """Returns the same batch in a new generation.

        Args:
            which: the rows that overrule; the others stay in theirs. All by default.
        """
        intent = self.intent.overruling()
        newest = f.lit(intent.after.generation).cast("bigint")
        if which is not None:
            newest = f.when(which, newest).otherwise(f.col(GENERATION))
        return replace(self, rows=self.rows.withColumn(GENERATION, newest), intent=intent)


def whole(plan: Plan, counted: int | None, read: int) -> None:
    """Refuses a batch with too few or too many rows.

    Args:
        counted: how many rows the source counted; None if the numbers may differ.

    Raises:
        TableError: if they differ: the table was changed by DDL that is not MVCC-safe.
    """
    if counted is None or read == counted:
        return
    raise TableError(
        f"{read} rows were read where {counted} were counted in the same snapshot: the table "
        "was changed during the run by DDL that is not MVCC-safe (TRUNCATE, ALTER, ATTACH)",
        where=f"table {plan.name}",
        remedy="Nothing was published, and the cursor has not moved; run again",
    )


@contextmanager
def extract_batches(
    attempt: TableSync,
    window: Window,
    bounds: Bounds,
    intent: CommitMetadata,
    beyond: AppendOnlyWindow | None = None,
) -> Iterator[Batch]:
    """Yields the window's rows, stamped; if raw may hold some already, without the redelivered.

    Args:
        beyond: the rows of the window that are new, if that is known before they are read.
    """
    plan, snapshot, lake = attempt.plan, attempt.snapshot, attempt.lake
    if beyond is not None:
        window, bounds = beyond.window, beyond.bounds
    attempt.phase("reading", bounds.rows)
    few = bounds.rows is not None and bounds.rows <= _FEW
    if few:
        plan_simply(lake.spark)
    record, after = intent.record, intent.after
    began = record.started_at or now()
    stamp = Stamp(plan.source, began, after.batch, after.generation, plan.deleted)
    rows = stamp_rows(snapshot.read(lake.spark, plan.table, window, bounds), stamp)
    keeps = plan.keeps_redeliveries
    counted = bounds.rows if snapshot.steady(plan.table) else None
    if bounds.log is not None and bounds.log.low is not None and not bounds.log.continued:
        with _extract_log(Batch(rows, intent), plan) as batch:
            yield batch
        return
    if beyond is not None:
        record = replace(record, rows_redelivered=beyond.redelivered)
        yield Batch(rows, CommitMetadata(record, after), counted=counted)
        return
    if record.mode == FULL_REFRESH or bounds.log or not lake.exists(plan.lake_table):
        yield Batch(rows, intent, counted=counted)
        return
    raw = own_rows(plan, lake.frame(plan.lake_table))
    generations = Generations(after.base or after.generation, after.generation)
    if generations.base < generations.current and plan.key and not plan.authoritative:
        rows = assign_generation(rows, raw, plan.key, generations)
    gone = find_deleted(plan, raw, snapshot.deletions(lake.spark, plan.table))
    if keeps and not plan.authoritative and gone is None:
        yield Batch(rows, intent, counted=counted)
        return
    judged = flag_redelivered(rows, raw, plan.key, window, bounds, generations, plan.authoritative)
    if gone is not None:
        judged = correct_deleted(judged, gone, plan)
    weight = snapshot.weight(plan.table, window, bounds) if few else None
    light = weight is not None and weight <= _LIGHT
    with _once(judged, light) as judged:
        again = f.lit(False) if keeps else f.col(REDELIVERED)
        null = f.col(quote_name(plan.cursor.name)).isNull() if plan.cursor else f.lit(False)
        counts = _count_rows(
            judged,
            light,
            read=f.lit(True),
            redelivered=again,
            nulls=null,
            new_nulls=null & ~f.col(REDELIVERED),
            overruling=f.col(OVERRULES) & ~f.col(REDELIVERED),
        )
        whole(plan, counted, counts["read"])
        record = replace(
            record,
            rows_read=counts["read"],
            rows_redelivered=counts["redelivered"],
            rows_null_cursor=counts["nulls"] if plan.cursor else None,
        )
        new = judged.where(~again) if counts["redelivered"] else judged
        fresh = new.drop(REDELIVERED, OVERRULES)
        empty = counts["read"] == counts["redelivered"]
        batch = Batch(fresh, CommitMetadata(record, after), empty)
        if gone is not None:
            fresh = new.drop(REDELIVERED)
            stones = tombstones(judged, gone, plan, stamp)
            yield _deleting(batch, fresh, stones, plan, counts["overruling"] > 0)
            return
        # A row that differs only by an ALTER does not contradict its earlier version.
        altered = bool(lake.drift(plan.lake_table, plan.table.schema, plan.terms).notes)
        overrules = counts["overruling"] > 0 or (altered and plan.authoritative)
        if not overrules and counts["new_nulls"] and plan.authoritative and plan.cursor:
            unknown = judged.where(~f.col(REDELIVERED))
            overrules = hides_a_cursor(unknown, raw, plan.key, plan.cursor.name)
        yield batch.overruling() if overrules else batch


@contextmanager
def _once(rows: DataFrame, light: bool) -> Iterator[DataFrame]:
    """Yields the rows so that they are read and compared once: counts then match what is written.

    Args:
        light: the driver may hold them.
    """
    if light:
        yield hold_rows(rows)
        return
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def _count_rows(rows: DataFrame, light: bool, **conditions: Column) -> dict[str, int]:
    """Returns for how many rows each condition holds; of rows that are held, without a job."""
    if light:
        found = rows.select(*(column.alias(name) for name, column in conditions.items())).collect()
        return {name: sum(bool(row[name]) for row in found) for name in conditions}
    [row] = rows.agg(*(f.count_if(column).alias(n) for n, column in conditions.items())).collect()
    return dict(row.asDict())


@contextmanager
def _extract_log(batch: Batch, plan: Plan) -> Iterator[Batch]:
    """Yields versions from the source's log: all of them are new, and each overrules its key's."""
    record, after = batch.intent.record, batch.intent.after
    base = after.generation
    rows = number_versions(batch.rows, plan.key, base).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        [counts] = rows.agg(
            f.count(f.lit(1)).alias("read"), f.max(GENERATION).alias("newest")
        ).collect()
        generation = counts["newest"] or base
        yield Batch(
            rows,
            CommitMetadata(
                replace(record, generation=generation, rows_read=counts["read"]),
                replace(after, generation=generation, base=after.base or base),
            ),
            empty=not counts["read"],
        )
    finally:
        rows.unpersist()


def _deleting(
    batch: Batch, fresh: DataFrame, stones: DataFrame, plan: Plan, overrules: bool
) -> Batch:
    """Adds tombstones to a batch.

    Args:
        fresh: the batch's rows, with those marked that overrule what raw has.
        stones: the tombstones.
        overrules: whether there are such rows.
    """
    buried = not stones.isEmpty()
    rows = fresh.unionByName(stones.withColumn(OVERRULES, f.lit(True))) if buried else fresh
    found = replace(batch, rows=rows, empty=batch.empty and not buried)
    if plan.cursor is not None and (buried or overrules):
        found = found.overruling(f.col(OVERRULES))
    return replace(found, rows=found.rows.drop(OVERRULES))
