"""The sync protocol: lock, recover, window, extract, append, record, unlock.

The data commit is the truth. It carries its batch number, state and ledger row. The stored state
and the ledger are indexes: after a crash they are rolled forward from the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loader.errors import LoaderError
from loader.lake.commits import Commit
from loader.lake.lake import Lake
from loader.lake.lease import Lease, acquire_all
from loader.lake.ledger import NOTHING_NEW, SYNCED, SyncRecord
from loader.lake.schema.conform import conform
from loader.rows.window import Bounds, Window, next_cursor
from loader.sources import Progress
from loader.spark.session import plan_now
from loader.state import TableState
from loader.sync.attempt import TableSync
from loader.sync.batch import Batch, CommitMetadata, extract_batches, whole
from loader.sync.boundary_digest import (
    AppendOnlyWindow,
    build_boundary,
    find_append_only_window,
    is_unchanged,
)
from loader.sync.origins import origin_property, record_origin
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.plan_window import cursor_name, plan_window
from loader.sync.recovery import PriorState, recover
from loader.sync.run_context import Watch
from loader.sync.sharing import register


def sync_table(attempt: TableSync) -> SyncRecord:
    """Appends what changed since the stored cursor, as one batch, and records the cursor.

    Returns the ledger row that it wrote.

    Raises:
        TableError, StateError: this table cannot be synced. Nothing was published, unless only
            recording it failed: then the next run recovers it.
    """
    if attempt.journal is not None:  # it unlocks the table once all is written
        return sync_locked_table(attempt)
    with attempt.unlocking():  # 1 lock
        return sync_locked_table(attempt)


def sync_locked_table(attempt: TableSync) -> SyncRecord:
    """Syncs a table whose lock is held, and keeps the lock; see :func:`sync_table`."""
    attempt.report_step("locked")
    with attempt.lake.unchanging(attempt.plan.lake_table):
        known = recover(attempt)  # 2 recover
        if not known.began and not attempt.plan.is_shared:
            attempt.lake.unmake(attempt.plan.lake_table, attempt.plan.table.schema)
        # Refuses a schema change that raw cannot follow, before anything is read.
        drift = attempt.lake.drift(
            attempt.plan.lake_table, attempt.plan.table.schema, attempt.plan.terms
        )
        window, bounds = plan_window(
            attempt.plan, attempt.snapshot, known, attempt.lake, attempt.watch, drift.added
        )
        done: SyncRecord | None = None
        while True:
            attempt.report_step("windowed")  # 3 window
            same = is_unchanged(attempt.plan, attempt.snapshot, known, window, bounds)
            intent, commit = build_commit(attempt, known, window, bounds, same), None
            if not same:
                fresh = find_append_only_window(
                    attempt.plan, attempt.snapshot, known, attempt.lake, window, bounds
                )
                with attempt.slot:  # 4 extract, 5 append
                    intent, commit = extract_and_append(attempt, window, bounds, intent, fresh)
            if commit is None:
                ensure_raw_table(attempt, intent.after.batch)
                by_mark = attempt.plan.table.progress is Progress.MARK
                goes_on = by_mark or bounds.log is not None
                intent = replace(intent, after=advance_state(known, intent.after, bounds, goes_on))
            more = attempt.snapshot.more(attempt.plan.table)  # a source may deliver several batches
            done = finish(attempt, known, intent, commit, more, done)  # 6 record
            if commit is not None and attempt.plan.accepts_other_origin:
                record_origin(attempt.plan, attempt.lake)
            if not more:
                return done
            known = known.follow_with(intent.after)
            window, bounds = plan_window(
                attempt.plan, attempt.snapshot, known, attempt.lake, attempt.watch
            )


def lock_all(
    plans: Sequence[Plan], lake: Lake, watch: Watch, run_id: str
) -> list[Lease | Exception]:
    """Locks tables for this run; returns each table's lock, or the error that kept it.

    Takes all locks in one commit, before the source's snapshot is taken.
    """
    ended: dict[int, Lease | Exception] = {}
    leases: dict[int, Lease] = {}
    for number, plan in enumerate(plans):
        try:
            leases[number] = lake.lease(plan.lake_table, f"table {plan.name}", run_id)
        except Exception as problem:
            ended[number] = problem
    names = ", ".join(plan.name for plan in plans[:3]) + (", …" if len(plans) > 3 else "")
    taken = acquire_all(list(leases.values()), lambda text: watch.warn(names, text))
    for (number, lease), told in zip(leases.items(), taken, strict=True):
        ended[number] = told if isinstance(told, Exception) else lease
        if isinstance(told, str):
            watch.warn(plans[number].name, told)
    return [ended[number] for number in range(len(plans))]


def build_commit(
    attempt: TableSync, known: PriorState, window: Window, bounds: Bounds, same: bool
) -> CommitMetadata:
    """Returns the ledger row and the state that a sync's batch will carry.

    Args:
        same: the window holds just what raw has already: no row will be read.
    """
    plan = attempt.plan
    full = plan.mode == FULL_REFRESH or known.starts_over
    if bounds.log is not None:
        full = bounds.log.low is None
    fresh_generation = full and known.began
    after = TableState(
        batch=known.next_batch,
        generation=known.state.generation + (1 if fresh_generation else 0),
        cursor=next_cursor(None if full else known.state.cursor, bounds),
        cursor_field=cursor_name(plan, known),
        mark=bounds.mark,
        base=None if full else known.state.base,
        backfill=None if full else known.state.backfill,
    )
    told = known.state.boundary if same else build_boundary(plan, attempt.snapshot, after, window)
    after = replace(after, boundary=told)
    record = replace(
        attempt.record(after, FULL_REFRESH if fresh_generation else plan.mode, window, bounds),
        rows_redelivered=bounds.rows if same else 0,
        rows_null_cursor=bounds.nulls if plan.cursor else None,
        lookback=plan.options.lookback.text if plan.options.lookback else None,
    )
    if bounds.log is not None:
        log = bounds.log
        record = replace(record, cursor_low=log.low, cursor_high=log.high, log_bytes=log.kept)
    return CommitMetadata(record, after)


def extract_and_append(
    attempt: TableSync,
    window: Window,
    bounds: Bounds,
    intent: CommitMetadata,
    fresh: AppendOnlyWindow | None = None,
) -> tuple[CommitMetadata, Commit | None]:
    """Reads a window and appends its new rows; the commit is None if there are none.

    Args:
        fresh: the new rows, if they are known before they are read.
    """
    deletes = bounds.deletions > 0 and attempt.lake.exists(attempt.plan.lake_table)
    if bounds.rows == 0 and not deletes:
        return intent, None
    with extract_batches(attempt, window, bounds, intent, fresh) as batch:
        return append(attempt, batch)


def append(attempt: TableSync, batch: Batch) -> tuple[CommitMetadata, Commit | None]:
    """Stages a batch that no reader sees, then publishes it whole.

    Returns the intent as published; the commit is None if there was nothing to append.

    Raises:
        TableError: if the table cannot take the source's columns, or the run was stopped.
    """
    plan, lake, held = attempt.plan, attempt.lake, attempt.held
    attempt.report_step("extracted")
    if batch.empty:
        return batch.intent, None
    held.confirm()
    attempt.phase("appending")
    table, schema = plan.lake_table, plan.table.schema
    record, after = batch.intent.record, batch.intent.after
    if lake.exists(table):
        lake.fresh(table)  # it may have been altered since the window was fixed
    drift = lake.drift(table, schema, plan.terms)
    rows = conform(batch.rows, drift.routes, f"table {plan.name}")
    if lake.exists(table):
        rows = plan_now(rows) if drift.alterations else rows
        lake.evolve(table, drift, plan.terms.source)
        if drift.notes:
            record = replace(record, schema_changes="; ".join(drift.notes))
            attempt.warn(f"schema: {record.schema_changes}")
    else:
        ensure_raw_table(attempt, after.batch)
    attempt.report_step("prepared")
    facts = {"state": after.to_json(), "sync": record.to_dict()}
    staged = lake.stage(table, rows, after.batch, facts)
    rows_staged = lake.count_staged_rows(table, staged)
    try:
        whole(plan, batch.counted, rows_staged)
        attempt.snapshot.check_unaltered(plan.table)
    except LoaderError:
        lake.discard(table, staged)
        raise
    if not rows_staged:
        lake.discard(table, staged)
        return batch.intent, None
    attempt.report_step("staged")
    attempt.watch.check_interruption(plan.name)
    held.confirm()
    published = lake.publish(table, staged, drift.after, plan.terms.source)
    attempt.report_step("published")
    return CommitMetadata(record, after), published


def ensure_raw_table(attempt: TableSync, batch: int) -> None:
    """Creates the raw table if there is none, also for a source without rows: models can read it.

    Args:
        batch: the number that its first batch will have.
    """
    plan, lake = attempt.plan, attempt.lake
    if lake.exists(plan.lake_table):
        return
    cursor = plan.cursor.name if plan.cursor else None
    lake.create_raw(plan.lake_table, plan.table.schema, cursor, batch, origin_property(plan, {}))
    register(plan, lake)


def advance_state(
    known: PriorState, after: TableState, bounds: Bounds, goes_on: bool = False
) -> TableState:
    """Returns the state after a sync that found nothing new.

    Raw has all rows up to the bound, so the cursor may move there. Without that, every sync after
    a reset to an older cursor would read them again.

    Args:
        goes_on: the source goes on from its mark, so that is stored before the first batch, too.
    """
    before = known.state
    cursor = before.cursor if bounds.future > 0 else after.cursor
    told = {**after.boundary, "batch": before.batch} if after.boundary else None
    still = cursor == before.cursor and not bounds.settled and told in (None, before.boundary)
    if still or not (before.batch or goes_on):
        return before
    return replace(before.move_cursor(cursor, after.cursor_field), mark=bounds.mark, boundary=told)


def finish(
    attempt: TableSync,
    known: PriorState,
    intent: CommitMetadata,
    commit: Commit | None,
    more: bool = False,
    before: SyncRecord | None = None,
) -> SyncRecord:
    """Records state, then ledger: `recover` repairs a crash in between.

    Returns the sum of the run's batches.

    Args:
        intent: the ledger row and state as published; if nothing was appended, the state to store.
        more: another batch follows, so this one is recorded at once.
        before: the sum of the run's batches so far.
    """
    record, after = intent.record, intent.after
    redelivered = record.rows_redelivered or 0
    if commit is not None:
        done = record.finish(
            status=SYNCED,
            rows_appended=commit.rows,
            rows_read=(commit.rows or 0) + redelivered,
            snapshot_id=commit.snapshot_id,
        )
    else:
        done = record.finish(
            status=NOTHING_NEW,
            batch=None,
            generation=known.state.generation,
            cursor_high=after.cursor.text if after.cursor else record.cursor_high,
            rows_read=redelivered,
            rows_appended=0,
        )
    total = done if before is None else before.plus(done)
    state = after if after != known.state else None
    if not more:
        attempt.settle(state, done, total)
    elif commit is not None or state is not None:
        attempt.at_once().settle(state, done, total)
    return total
