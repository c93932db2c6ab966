"""Reads the rows of a batch, adds the ``_cq_`` columns, and compares the rows with the raw table.

Writes nothing; :mod:`loader.sync.publish` appends the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord, now
from loader.lake.raw_table import may_reach
from loader.lake.schema_evolution import Drift
from loader.rows.bookkeeping import Stamp, stamp_rows
from loader.rows.cursor import Cursor
from loader.rows.literal import cursor_literal
from loader.rows.redelivery import (
    CURSOR_UNMOVED,
    OVERRULES,
    REDELIVERED,
    flag_redelivered,
    has_lost_cursor,
    select_keys,
)
from loader.rows.version_order import (
    GENERATION,
    Generations,
    assign_generation,
    number_versions,
    quote_name,
)
from loader.rows.window import Bounds, Window
from loader.spark.session import generate_code, hold_rows, plan_simply
from loader.state import TableState
from loader.sync.counted_rows import check_row_count, find_reached_cursor
from loader.sync.deletions import (
    are_too_many,
    build_tombstones,
    correct_deleted,
    find_deleted,
    list_live_keys,
)
from loader.sync.ownership import select_own_rows
from loader.sync.plan_window import LostRows, PlannedBatch, has_plain_cursor
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH, INCREMENTAL, TablePlan

_FEW_ROWS = 5_000
"""Up to this number of rows, Spark's optimizations cost more time than they save."""

_MANY_ROWS = 300_000
"""If the raw table has more rows, compiling Spark's generated code pays off."""

_MAX_BROADCAST = 100_000
"""The maximum number of deletions that Spark sends to every executor."""

_DRIVER_BYTES = 4 << 20
"""The maximum size in bytes of the rows that the driver caches.

Spark sends them to a task in one message of at most 128 MB, and several tables sync in parallel.
"""


@dataclass(frozen=True)
class Batch:
    """The rows to append and the metadata of their commit.

    Attributes:
        rows: the rows, with the source's columns and the ``_cq_`` columns; None if there are
            no rows.
        drift: the schema changes that the batch makes in the raw table.
        record: the ledger row.
        state: the state to store if the rows are published.
        idle_state: the state to store if no row is appended.
        expected_rows: the number of rows that the source counted, if exactly this number must be
            read; else None.
        counted_rows: the number of rows that the source counted, if the rows have not been read
            yet and fewer of them may be read, because the source may change; else None.
        find_cursor: returns the cursor to store if fewer rows were read than counted; see
            :func:`find_reached_cursor`.
        rows_read: all cached rows that the source returned; None if `rows` contains all of them.
        is_followed: returns whether another batch follows.
        check_staged: see :class:`~loader.sync.plan_window.PlannedBatch`.
    """

    rows: DataFrame | None
    drift: Drift
    record: SyncRecord
    state: TableState
    idle_state: TableState
    expected_rows: int | None
    counted_rows: int | None
    find_cursor: Callable[[DataFrame], Cursor | None]
    rows_read: DataFrame | None
    is_followed: Callable[[], bool]
    check_staged: Callable[[], None]


@dataclass(frozen=True)
class _Extracted:
    """The rows of a batch and their counts. A count is None if it is unknown.

    Attributes:
        rows: the rows to append; None if there are none.
        generation: the newest generation of the rows; None means the planned generation.
        read: the number of rows that were read.
        redelivered: the number of redelivered rows, which are dropped.
        nulls: the number of rows whose cursor is null.
        lost_rows: how many rows a plain cursor query would have missed.
        expected_rows, rows_read: see :class:`Batch`.
    """

    rows: DataFrame | None
    generation: int | None = None
    read: int | None = None
    redelivered: int | None = None
    nulls: int | None = None
    lost_rows: LostRows = field(default_factory=LostRows)
    expected_rows: int | None = None
    rows_read: DataFrame | None = None

    def overrule(self, state: TableState, condition: Column | None = None) -> _Extracted:
        """Returns a copy whose rows are in a new generation, so that they override the raw table.

        Args:
            condition: selects the rows that get the new generation. By default, all rows get it.
        """
        assert self.rows is not None
        generation = state.generation + 1
        newest = f.lit(generation).cast("bigint")
        if condition is not None:
            newest = f.when(condition, newest).otherwise(f.col(GENERATION))
        return replace(self, rows=self.rows.withColumn(GENERATION, newest), generation=generation)


@contextmanager
def extract(sync: SyncContext, planned: PlannedBatch) -> Iterator[Batch]:
    """Reads a planned batch, and yields it without the rows that the raw table already contains.

    Cached rows are freed on exit. Raises a TableError if the source returns more or fewer rows than
    it counted.
    """
    began = now()
    if not _has_rows(sync, planned):
        redelivered = planned.bounds.rows if planned.is_unchanged else None
        extracted = _Extracted(
            None, redelivered=redelivered, lost_rows=_no_lost_rows(sync, planned)
        )
        yield _complete_batch(sync, planned, began, extracted)
        return
    state = planned.state
    stamp = Stamp(sync.plan.source, began, state.batch, state.generation, sync.plan.deleted)
    with _read_rows(sync, planned, stamp) as extracted:
        batch = _complete_batch(sync, planned, began, extracted)
        sync.report_step("extracted")
        yield batch


def _has_rows(sync: SyncContext, planned: PlannedBatch) -> bool:
    if planned.is_unchanged:
        return False
    deletes = planned.bounds.deletions > 0 and sync.lake.exists(sync.plan.lake_table)
    return planned.correction is not None or planned.bounds.rows != 0 or deletes


def _complete_batch(
    sync: SyncContext, planned: PlannedBatch, began: dt.datetime, extracted: _Extracted
) -> Batch:
    plan, window, bounds, state = sync.plan, planned.window, planned.bounds, planned.state
    idle_state = planned.idle_state
    counted, read, rows_read = bounds.rows, extracted.read, extracted.rows_read
    if counted is not None and read is not None and rows_read is not None and read < counted:
        cursor = find_reached_cursor(planned, rows_read)
        if idle_state.cursor == state.cursor:
            idle_state = replace(idle_state, cursor=cursor)
        state = replace(state, cursor=cursor)
    if extracted.generation is not None:
        base = state.base or state.generation
        state = replace(state, generation=extracted.generation, base=base)
    floor, low, high = window.floor(bounds), window.low, window.end(bounds)
    reads_new_rows = window.cursor is not None and window.high is None and bounds.log is None
    is_uncertain = extracted.read is None and extracted.expected_rows is None
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
        rows_below_cursor=extracted.lost_rows.below_cursor,
        rows_at_cursor=extracted.lost_rows.at_cursor,
        rows_cursor_unmoved=extracted.lost_rows.cursor_unmoved,
        complete_until=bounds.complete_until,
        lookback=lookback.text if lookback and window.has_lookback else None,
        started_at=began,
        schema_changes="; ".join(planned.drift.notes) or None,
        log_bytes=log.retained_bytes if log else None,
    )
    return Batch(
        extracted.rows,
        planned.drift,
        record,
        state,
        idle_state,
        extracted.expected_rows,
        bounds.rows if is_uncertain and reads_new_rows else None,
        partial(find_reached_cursor, planned),
        rows_read,
        planned.is_followed,
        planned.check_staged,
    )


@contextmanager
def _read_rows(sync: SyncContext, planned: PlannedBatch, stamp: Stamp) -> Iterator[_Extracted]:
    """Reads a batch's rows, and compares them with the raw table if it may contain some of them."""
    plan, snapshot, lake, bounds = sync.plan, sync.snapshot, sync.lake, planned.bounds
    if planned.correction is not None:
        extracted = _Extracted(planned.correction(stamp), lost_rows=planned.corrected)
        yield extracted.overrule(planned.state)
        return
    window, append_only = planned.window, planned.append_only
    if append_only is not None:
        window, bounds = append_only.window, append_only.bounds
    sync.report_phase("reading", bounds.rows)
    has_few_rows = bounds.rows is not None and bounds.rows <= _FEW_ROWS
    if has_few_rows:
        plan_simply(lake.spark)
    rows = stamp_rows(snapshot.read(lake.spark, plan.table, window, bounds), stamp)
    expected_rows = bounds.rows if snapshot.is_steady(plan.table) else None
    if bounds.log is not None and bounds.log.low is not None and not bounds.log.is_first_load_chunk:
        with _number_log_versions(rows, plan, planned.state.generation) as extracted:
            yield extracted
        return
    if append_only is not None:
        yield _Extracted(
            rows,
            redelivered=append_only.redelivered,
            lost_rows=_no_lost_rows(sync, planned),
            expected_rows=expected_rows,
        )
        return
    if planned.deletes_missing and lake.exists(plan.lake_table):
        with _add_tombstones(sync, planned, rows, stamp, expected_rows) as extracted:
            yield extracted
        return
    if planned.mode == FULL_REFRESH or bounds.log or not lake.exists(plan.lake_table):
        yield _Extracted(rows, expected_rows=expected_rows)
        return
    with _compare_with_raw(sync, planned, stamp, rows, expected_rows, has_few_rows) as extracted:
        yield extracted


@contextmanager
def _add_tombstones(
    sync: SyncContext,
    planned: PlannedBatch,
    rows: DataFrame,
    stamp: Stamp,
    expected_rows: int | None,
) -> Iterator[_Extracted]:
    """Yields all rows of the source, and a tombstone for each key that the source no longer has."""
    plan = sync.plan
    live_keys = list_live_keys(plan, select_own_rows(plan, sync.lake.frame(plan.lake_table)))
    with _cache_rows(rows, False) as rows_read:
        rows, read = rows_read, rows_read.count()
        check_row_count(plan, expected_rows, read)
        if not read:
            raise TableError(
                f"the source returned no row, although it had counted {planned.bounds.rows}: it "
                "was emptied or replaced while it was read",
                where=f"table {plan.name}",
                remedy="Nothing was published, and the cursor has not moved; run again",
            )
        if live_keys is not None:
            tombstones = build_tombstones(rows, live_keys, plan, stamp)
            if planned.allows_mass_deletes or not _has_too_many_deletes(
                sync, tombstones, live_keys
            ):
                rows = rows.unionByName(tombstones)
        yield _Extracted(rows, read=read, rows_read=rows_read)


def _has_too_many_deletes(sync: SyncContext, tombstones: DataFrame, live_keys: DataFrame) -> bool:
    """Returns whether too many keys are missing to be treated as deleted, and warns if so."""
    deletes, keys = tombstones.count(), live_keys.count()
    if not are_too_many(deletes, keys):
        return False
    sync.warn(
        f"no tombstones are appended, because {deletes} of the {keys} keys in the raw table (more "
        "than a tenth) are missing from the source. Check the source; if the rows were deleted or "
        "are no longer selected, run `loader reconcile --repair --allow-deletes --select "
        f"{sync.plan.name}`"
    )
    return True


@contextmanager
def _compare_with_raw(
    sync: SyncContext,
    planned: PlannedBatch,
    stamp: Stamp,
    rows: DataFrame,
    expected_rows: int | None,
    has_few_rows: bool,
) -> Iterator[_Extracted]:
    """Compares a batch with the raw table, and yields its new rows and tombstones."""
    plan, state, keeps_redeliveries = sync.plan, planned.state, sync.plan.keeps_redeliveries
    window, bounds = planned.window, planned.bounds
    raw = select_own_rows(plan, sync.lake.frame(plan.lake_table))
    generations = Generations(state.base or state.generation, state.generation)
    if generations.base < generations.current and plan.key and not plan.is_authoritative:
        rows = assign_generation(rows, raw, plan.key, generations)
    deletions = sync.snapshot.deletions(sync.lake.spark, plan.table)
    deleted = find_deleted(plan, raw, deletions, bounds.deletions <= _MAX_BROADCAST)
    if keeps_redeliveries and not plan.is_authoritative and deleted is None:
        yield _Extracted(rows, expected_rows=expected_rows)
        return
    size = sync.snapshot.estimate_bytes(plan.table, window, bounds) if has_few_rows else None
    fits_driver = size is not None and size <= _DRIVER_BYTES
    is_late = fits_driver and bool(plan.key) and _reaches_below(window, bounds)
    has_base = False
    with ExitStack() as scan:
        if is_late:
            # A late row may have an old cursor, so most rows of the raw table may be in the window.
            # So only the rows with the batch's keys are compared.
            rows = hold_rows(rows)
            raw = select_keys(raw, rows, plan.key)
            if sync.lake.records(plan.lake_table).rows() > _MANY_ROWS:
                scan.enter_context(generate_code(sync.lake.spark))
            has_base = _may_reach_base(sync, window, bounds, generations)
        flagged = flag_redelivered(
            rows, raw, plan.key, window, bounds, generations, plan.is_authoritative, has_base
        )
        flagged = hold_rows(flagged) if is_late else flagged
    if deleted is not None:
        flagged = correct_deleted(flagged, deleted, plan)
    with _cache_rows(flagged, fits_driver) as flagged:
        is_redelivered = f.lit(False) if keeps_redeliveries else f.col(REDELIVERED)
        is_null = f.col(quote_name(plan.cursor.name)).isNull() if plan.cursor else f.lit(False)
        lost_rows = _select_lost_rows(sync, planned, rows)
        counts = _count_rows(
            flagged,
            fits_driver,
            read=f.lit(True),
            redelivered=is_redelivered,
            nulls=is_null,
            new_nulls=is_null & ~f.col(REDELIVERED),
            overruling=f.col(OVERRULES) & ~f.col(REDELIVERED),
            **lost_rows,
        )
        check_row_count(plan, expected_rows, counts["read"])
        new_rows = flagged.where(~is_redelivered) if counts["redelivered"] else flagged
        condition = None
        is_empty = counts["read"] == counts["redelivered"]
        overrules = counts["overruling"] > 0
        if deleted is not None:
            tombstones = build_tombstones(flagged, deleted, plan, stamp)
            tombstones = tombstones.withColumn(OVERRULES, f.lit(True))
            if not tombstones.isEmpty():
                new_rows = new_rows.drop(REDELIVERED, CURSOR_UNMOVED).unionByName(tombstones)
                is_empty, overrules = False, True
            overrules, condition = overrules and plan.cursor is not None, f.col(OVERRULES)
        elif plan.is_authoritative and not overrules:
            # An ALTER changes rows but not their cursors. Only in a new generation do these rows
            # pass dbt's `no_cursor_ties` test.
            overrules = bool(planned.drift.notes)
            if not overrules and counts["new_nulls"] and plan.cursor:
                new_versions = flagged.where(~f.col(REDELIVERED))
                overrules = has_lost_cursor(new_versions, raw, plan.key, plan.cursor.name)
        extracted = _Extracted(
            None if is_empty else new_rows,
            read=counts["read"],
            redelivered=counts["redelivered"],
            nulls=counts["nulls"],
            lost_rows=LostRows(**{name: counts[name] for name in lost_rows}),
            rows_read=flagged,
        )
        if overrules and not is_empty:
            extracted = extracted.overrule(state, condition)
        if extracted.rows is not None:
            flags = (REDELIVERED, OVERRULES, CURSOR_UNMOVED)
            extracted = replace(extracted, rows=extracted.rows.drop(*flags))
        yield extracted


def _starts_at_cursor(sync: SyncContext, planned: PlannedBatch) -> bool:
    """Returns whether a plain query for rows above the stored cursor could have read this batch."""
    window = planned.window
    return planned.mode == INCREMENTAL and has_plain_cursor(
        sync.plan, window.cursor, window.stored_cursor
    )


def _no_lost_rows(sync: SyncContext, planned: PlannedBatch) -> LostRows:
    """Returns the lost rows of a batch in which all new rows are above the stored cursor."""
    if not _starts_at_cursor(sync, planned):
        return LostRows()
    return LostRows(0, 0, 0 if sync.plan.key else None)


def _select_lost_rows(
    sync: SyncContext, planned: PlannedBatch, rows: DataFrame
) -> dict[str, Column]:
    """Returns a condition for each count in :class:`LostRows`; empty if nothing is counted."""
    cursor, stored_cursor = planned.window.cursor, planned.window.stored_cursor
    if not _starts_at_cursor(sync, planned) or cursor is None or stored_cursor is None:
        return {}
    value = f.col(quote_name(cursor.name))
    stored = cursor_literal(stored_cursor, rows.schema[cursor.name].dataType)
    is_new = ~f.col(REDELIVERED)
    conditions = {
        "below_cursor": is_new & (value < stored),
        "at_cursor": is_new & (value == stored),
    }
    if sync.plan.key:
        conditions["cursor_unmoved"] = is_new & f.col(CURSOR_UNMOVED) & (value <= stored)
    return conditions


def _reaches_below(window: Window, bounds: Bounds) -> bool:
    low, reach = window.low, bounds.reach
    return low is not None and reach is not None and reach.order < low.order


def _may_reach_base(
    sync: SyncContext, window: Window, bounds: Bounds, generations: Generations
) -> bool:
    """Returns whether a window may contain versions of a base generation that is not the newest."""
    cursor, floor = window.cursor, window.floor(bounds)
    if cursor is None or floor is None or cursor.collated:
        return False
    if generations.base == generations.current:
        return False
    return may_reach(sync.lake, sync.plan.lake_table, cursor.name, floor, generations.base)


@contextmanager
def _cache_rows(rows: DataFrame, fits_driver: bool) -> Iterator[DataFrame]:
    """Caches rows, so that exactly the rows that are counted are written."""
    if fits_driver:
        yield hold_rows(rows)
        return
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def _count_rows(rows: DataFrame, fits_driver: bool, **conditions: Column) -> dict[str, int]:
    """Counts the rows that meet each condition. Needs no Spark job if the driver holds the rows."""
    if fits_driver:
        results = rows.select(
            *(column.alias(name) for name, column in conditions.items())
        ).collect()
        return {name: sum(bool(row[name]) for row in results) for name in conditions}
    [row] = rows.agg(*(f.count_if(column).alias(n) for n, column in conditions.items())).collect()
    return dict(row.asDict())


@contextmanager
def _number_log_versions(rows: DataFrame, plan: TablePlan, base: int) -> Iterator[_Extracted]:
    """Yields row versions from the source's log. Each version of a key gets a new generation."""
    with _cache_rows(number_versions(rows, plan.key, base), False) as rows:
        [counts] = rows.agg(
            f.count(f.lit(1)).alias("read"), f.max(GENERATION).alias("newest")
        ).collect()
        read = counts["read"]
        yield _Extracted(rows if read else None, counts["newest"] or base, read)
