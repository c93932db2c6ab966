"""Extracts one batch: reads its rows, stamps them, compares them with raw, and counts them.

Nothing is written here: :mod:`loader.sync.publish` appends the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord, now
from loader.lake.schema_evolution import Drift
from loader.rows.bookkeeping import Stamp, stamp_rows
from loader.rows.redelivery import (
    OVERRULES,
    REDELIVERED,
    Generations,
    assign_generation,
    flag_redelivered,
    hides_a_cursor,
    number_versions,
)
from loader.rows.version_order import GENERATION, quote_name
from loader.spark.session import hold_rows, plan_simply
from loader.state import TableState
from loader.sync.deletions import correct_deleted, find_deleted, tombstones
from loader.sync.ownership import own_rows
from loader.sync.plan_window import PlannedBatch
from loader.sync.table_plan import FULL_REFRESH, TablePlan
from loader.sync.table_sync import TableSync

_FEW = 5_000
"""Of so many rows Spark's preparations take longer than the work."""

_LIGHT = 4 << 20
"""So many bytes of them the driver holds. Spark sends them to a task in one message, which may have
128 MB, and several tables have one at a time."""


@dataclass(frozen=True)
class Batch:
    """The rows to append, and what their commit carries.

    Attributes:
        rows: stamped, in the source's columns and ours; None if there are none to append.
        drift: how raw follows the source's columns.
        record: the ledger row.
        state: the state, once the rows are published.
        idle_state: the state to store if no row is appended.
        counted: how many rows the source counted, if the number read must match and has not been
            checked yet.
        is_followed: returns whether the table has another batch after this one.
    """

    rows: DataFrame | None
    drift: Drift
    record: SyncRecord
    state: TableState
    idle_state: TableState
    counted: int | None
    is_followed: Callable[[], bool]


@dataclass(frozen=True)
class _Extracted:
    """Stamped rows, and what reading them has shown.

    Attributes:
        rows: None if there are none to append: all were redelivered.
        generation: the newest of the rows; None if it is the planned one.
        read, redelivered, nulls: how many rows were read, were left out, and have no cursor; None
            if they were not counted.
        counted: as in :class:`Batch`.
    """

    rows: DataFrame | None
    generation: int | None = None
    read: int | None = None
    redelivered: int | None = None
    nulls: int | None = None
    counted: int | None = None

    def overrule(self, planned: TableState, which: Column | None = None) -> _Extracted:
        """Returns the same with rows in a new generation.

        Args:
            which: the rows that overrule; the others stay in theirs. All by default.
        """
        assert self.rows is not None
        generation = planned.generation + 1
        newest = f.lit(generation).cast("bigint")
        if which is not None:
            newest = f.when(which, newest).otherwise(f.col(GENERATION))
        return replace(self, rows=self.rows.withColumn(GENERATION, newest), generation=generation)


@contextmanager
def extract(sync: TableSync, planned: PlannedBatch) -> Iterator[Batch]:
    """Yields a planned batch, without the rows that raw has already.

    The rows may be cached; they are freed on exit.

    Raises:
        TableError: if the source delivers more or fewer rows than it counted.
    """
    began = now()
    if not _has_rows(sync, planned):
        redelivered = planned.bounds.rows if planned.unchanged else None
        yield _describe(sync, planned, began, _Extracted(None, redelivered=redelivered))
        return
    state = planned.state
    stamp = Stamp(sync.plan.source, began, state.batch, state.generation, sync.plan.deleted)
    with _read(sync, planned, stamp) as extracted:
        batch = _describe(sync, planned, began, extracted)
        sync.report_step("extracted")
        yield batch


def _has_rows(sync: TableSync, planned: PlannedBatch) -> bool:
    if planned.unchanged:
        return False
    deletes = planned.bounds.deletions > 0 and sync.lake.exists(sync.plan.lake_table)
    return planned.correction is not None or planned.bounds.rows != 0 or deletes


def _describe(
    sync: TableSync, planned: PlannedBatch, began: dt.datetime, extracted: _Extracted
) -> Batch:
    """Completes a batch: its ledger row and its state are settled here, and nowhere else."""
    plan, window, bounds, state = sync.plan, planned.window, planned.bounds, planned.state
    if extracted.generation is not None:
        base = state.base or state.generation
        state = replace(state, generation=extracted.generation, base=base)
    floor, low, high = window.floor(bounds), window.low, window.end(bounds)
    nulls = bounds.nulls if extracted.nulls is None else extracted.nulls
    log, lookback = bounds.log, plan.options.lookback
    record = SyncRecord(
        run_id=sync.run_id,
        source_name=plan.source,
        table_name=plan.lake_table,
        batch=state.batch,
        generation=state.generation,
        mode=planned.mode,
        cursor_field=state.cursor_field,
        cursor_type=plan.cursor.type.value if plan.cursor else None,
        cursor_low=log.low if log else floor.text if floor else None,
        cursor_high=log.high if log else state.cursor.text if state.cursor else None,
        read_from=low.text if low else None,
        read_to=high.text if high else None,
        rows_read=extracted.read,
        rows_redelivered=extracted.redelivered or 0,
        rows_null_cursor=nulls if plan.cursor and not planned.correction else None,
        lookback=lookback.text if lookback and window.bounded else None,
        started_at=began,
        schema_changes="; ".join(planned.drift.notes) or None,
        log_bytes=log.kept if log else None,
    )
    return Batch(
        extracted.rows,
        planned.drift,
        record,
        state,
        planned.idle_state,
        extracted.counted,
        planned.is_followed,
    )


@contextmanager
def _read(sync: TableSync, planned: PlannedBatch, stamp: Stamp) -> Iterator[_Extracted]:
    """Reads a batch's rows; compares them with raw if raw may hold some of them already."""
    plan, snapshot, lake, bounds = sync.plan, sync.snapshot, sync.lake, planned.bounds
    if planned.correction is not None:
        yield _Extracted(planned.correction(stamp)).overrule(planned.state)
        return
    window, fresh = planned.window, planned.append_only
    if fresh is not None:
        window, bounds = fresh.window, fresh.bounds
    sync.report_phase("reading", bounds.rows)
    few = bounds.rows is not None and bounds.rows <= _FEW
    if few:
        plan_simply(lake.spark)
    rows = stamp_rows(snapshot.read(lake.spark, plan.table, window, bounds), stamp)
    counted = bounds.rows if snapshot.is_steady(plan.table) else None
    if bounds.log is not None and bounds.log.low is not None and not bounds.log.continued:
        with _number_log_versions(rows, plan, planned.state.generation) as extracted:
            yield extracted
        return
    if fresh is not None:
        yield _Extracted(rows, redelivered=fresh.redelivered, counted=counted)
        return
    if planned.mode == FULL_REFRESH or bounds.log or not lake.exists(plan.lake_table):
        yield _Extracted(rows, counted=counted)
        return
    with _compare(sync, planned, stamp, rows, counted, few) as extracted:
        yield extracted


@contextmanager
def _compare(
    sync: TableSync,
    planned: PlannedBatch,
    stamp: Stamp,
    rows: DataFrame,
    counted: int | None,
    few: bool,
) -> Iterator[_Extracted]:
    """Compares stamped rows with raw; yields those that are new, with tombstones."""
    plan, state, keeps = sync.plan, planned.state, sync.plan.keeps_redeliveries
    window, bounds = planned.window, planned.bounds
    raw = own_rows(plan, sync.lake.frame(plan.lake_table))
    generations = Generations(state.base or state.generation, state.generation)
    if generations.base < generations.current and plan.key and not plan.authoritative:
        rows = assign_generation(rows, raw, plan.key, generations)
    gone = find_deleted(plan, raw, sync.snapshot.deletions(sync.lake.spark, plan.table))
    if keeps and not plan.authoritative and gone is None:
        yield _Extracted(rows, counted=counted)
        return
    judged = flag_redelivered(rows, raw, plan.key, window, bounds, generations, plan.authoritative)
    if gone is not None:
        judged = correct_deleted(judged, gone, plan)
    size = sync.snapshot.estimate_bytes(plan.table, window, bounds) if few else None
    light = size is not None and size <= _LIGHT
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
        check_row_count(plan, counted, counts["read"])
        new, which = judged.where(~again) if counts["redelivered"] else judged, None
        is_empty = counts["read"] == counts["redelivered"]
        overrules = counts["overruling"] > 0
        if gone is not None:
            stones = tombstones(judged, gone, plan, stamp).withColumn(OVERRULES, f.lit(True))
            if not stones.isEmpty():
                new = new.drop(REDELIVERED).unionByName(stones)
                is_empty, overrules = False, True
            overrules, which = overrules and plan.cursor is not None, f.col(OVERRULES)
        elif plan.authoritative and not overrules:
            # A row that differs only by an ALTER does not contradict its earlier version.
            overrules = bool(planned.drift.notes)
            if not overrules and counts["new_nulls"] and plan.cursor:
                unknown = judged.where(~f.col(REDELIVERED))
                overrules = hides_a_cursor(unknown, raw, plan.key, plan.cursor.name)
        found = _Extracted(
            None if is_empty else new,
            read=counts["read"],
            redelivered=counts["redelivered"],
            nulls=counts["nulls"],
        )
        if overrules and not is_empty:
            found = found.overrule(state, which)
        if found.rows is not None:
            found = replace(found, rows=found.rows.drop(REDELIVERED, OVERRULES))
        yield found


def check_row_count(plan: TablePlan, counted: int | None, read: int) -> None:
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
def _number_log_versions(rows: DataFrame, plan: TablePlan, base: int) -> Iterator[_Extracted]:
    """Yields versions from the source's log: all of them are new, and each overrules its key's."""
    rows = number_versions(rows, plan.key, base).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        [counts] = rows.agg(
            f.count(f.lit(1)).alias("read"), f.max(GENERATION).alias("newest")
        ).collect()
        read = counts["read"]
        yield _Extracted(rows if read else None, counts["newest"] or base, read)
    finally:
        rows.unpersist()
