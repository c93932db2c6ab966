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
from loader.lake.schema.fitting import fitted
from loader.rows.window import Bounds, Window, next_cursor
from loader.runtime.spark import plan_now
from loader.sources import Progress
from loader.state import TableState
from loader.sync.attempt import Attempt
from loader.sync.batch import Batch, Intent, extracted, whole
from loader.sync.boundary import Beyond, beyond, boundary, unchanged
from loader.sync.looking import cursor_name, look
from loader.sync.origins import origin_property, record_origin
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.recovery import Known, recover
from loader.sync.sharing import register
from loader.sync.watch import Watch


def sync_table(attempt: Attempt) -> SyncRecord:
    """Appends what changed since the stored cursor, as one batch, and records the cursor.

    Returns the ledger row that it wrote.

    Raises:
        TableError, StateError: this table cannot be synced. Nothing was published, unless only
            recording it failed: then the next run recovers it.
    """
    if attempt.journal is not None:  # it unlocks the table once all is written
        return synced(attempt)
    with attempt.unlocking():  # 1 lock
        return synced(attempt)


def synced(attempt: Attempt) -> SyncRecord:
    """Syncs a table whose lock is held, and keeps the lock; see :func:`sync_table`."""
    attempt.reached("locked")
    with attempt.lake.unchanging(attempt.plan.lake_table):
        known = recover(attempt)  # 2 recover
        if not known.began and not attempt.plan.shared:
            attempt.lake.unmake(attempt.plan.lake_table, attempt.plan.table.schema)
        # Refuses a schema change that raw cannot follow, before anything is read.
        drift = attempt.lake.drift(
            attempt.plan.lake_table, attempt.plan.table.schema, attempt.plan.terms
        )
        window, bounds = look(
            attempt.plan, attempt.snapshot, known, attempt.lake, attempt.watch, drift.added
        )
        done: SyncRecord | None = None
        while True:
            attempt.reached("windowed")  # 3 window
            same = unchanged(attempt.plan, attempt.snapshot, known, window, bounds)
            intent, commit = intended(attempt, known, window, bounds, same), None
            if not same:
                fresh = beyond(attempt.plan, attempt.snapshot, known, attempt.lake, window, bounds)
                with attempt.slot:  # 4 extract, 5 append
                    intent, commit = written(attempt, window, bounds, intent, fresh)
            if commit is None:
                made(attempt, intent.after.batch)
                by_mark = attempt.plan.table.progress is Progress.MARK
                goes_on = by_mark or bounds.log is not None
                intent = replace(intent, after=caught_up(known, intent.after, bounds, goes_on))
            more = attempt.snapshot.more(attempt.plan.table)  # a source may deliver several batches
            done = finish(attempt, known, intent, commit, more, done)  # 6 record
            if commit is not None and attempt.plan.accepts_other_origin:
                record_origin(attempt.plan, attempt.lake)
            if not more:
                return done
            known = known.followed_by(intent.after)
            window, bounds = look(
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


def intended(attempt: Attempt, known: Known, window: Window, bounds: Bounds, same: bool) -> Intent:
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
    told = known.state.boundary if same else boundary(plan, attempt.snapshot, after, window)
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
    return Intent(record, after)


def written(
    attempt: Attempt,
    window: Window,
    bounds: Bounds,
    intent: Intent,
    fresh: Beyond | None = None,
) -> tuple[Intent, Commit | None]:
    """Reads a window and appends its new rows; the commit is None if there are none.

    Args:
        fresh: the new rows, if they are known before they are read.
    """
    deletes = bounds.deletions > 0 and attempt.lake.exists(attempt.plan.lake_table)
    if bounds.rows == 0 and not deletes:
        return intent, None
    with extracted(attempt, window, bounds, intent, fresh) as batch:
        return append(attempt, batch)


def append(attempt: Attempt, batch: Batch) -> tuple[Intent, Commit | None]:
    """Stages a batch that no reader sees, then publishes it whole.

    Returns the intent as published; the commit is None if there was nothing to append.

    Raises:
        TableError: if the table cannot take the source's columns, or the run was stopped.
    """
    plan, lake, held = attempt.plan, attempt.lake, attempt.held
    attempt.reached("extracted")
    if batch.empty:
        return batch.intent, None
    held.confirm()
    attempt.phase("appending")
    table, schema = plan.lake_table, plan.table.schema
    record, after = batch.intent.record, batch.intent.after
    if lake.exists(table):
        lake.fresh(table)  # somebody may have altered it since the window was fixed
    drift = lake.drift(table, schema, plan.terms)
    rows = fitted(batch.rows, drift.routes, f"table {plan.name}")
    if lake.exists(table):
        rows = plan_now(rows) if drift.alterations else rows
        lake.evolve(table, drift, plan.terms.source)
        if drift.notes:
            record = replace(record, schema_changes="; ".join(drift.notes))
            attempt.warn(f"schema: {record.schema_changes}")
    else:
        made(attempt, after.batch)
    attempt.reached("prepared")
    facts = {"state": after.to_json(), "sync": record.to_dict()}
    staged = lake.stage(table, rows, after.batch, facts)
    rows_staged = lake.staged_rows(table, staged)
    try:
        whole(plan, batch.counted, rows_staged)
        attempt.snapshot.unaltered(plan.table)
    except LoaderError:
        lake.discard(table, staged)
        raise
    if not rows_staged:
        lake.discard(table, staged)
        return batch.intent, None
    attempt.reached("staged")
    attempt.watch.proceed(plan.name)
    held.confirm()
    published = lake.publish(table, staged, drift.after, plan.terms.source)
    attempt.reached("published")
    return Intent(record, after), published


def made(attempt: Attempt, batch: int) -> None:
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


def caught_up(known: Known, after: TableState, bounds: Bounds, goes_on: bool = False) -> TableState:
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
    return replace(before.moved(cursor, after.cursor_field), mark=bounds.mark, boundary=told)


def finish(
    attempt: Attempt,
    known: Known,
    intent: Intent,
    commit: Commit | None,
    more: bool = False,
    before: SyncRecord | None = None,
) -> SyncRecord:
    """Records state, then ledger: `recover` repairs a crash in between.

    Returns the sum of the run's batches.

    Args:
        intent: what is true now; if nothing was appended, its state is the one to store.
        more: another batch follows, so this one is recorded at once.
        before: the sum of the run's batches so far.
    """
    record, after = intent.record, intent.after
    redelivered = record.rows_redelivered or 0
    if commit is not None:
        done = record.finished(
            status=SYNCED,
            rows_appended=commit.rows,
            rows_read=(commit.rows or 0) + redelivered,
            snapshot_id=commit.snapshot_id,
        )
    else:
        done = record.finished(
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
