"""The sync protocol: lock, recover, window, extract, append, record, unlock.

The data commit is the truth. It carries its batch number, state and ledger row. The stored state
and the ledger are indexes: after a crash they are rolled forward from the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.commits import Commit
from loader.lake.lake import Lake
from loader.lake.lease import Lease, acquire_all
from loader.lake.ledger import NOTHING_NEW, SYNCED, SyncRecord
from loader.lake.schema.fitting import fitted
from loader.rows.order import GENERATION, quoted
from loader.rows.window import Bounds, Window, lower_bound, next_cursor
from loader.sources import Progress, Snapshot
from loader.state import TableState
from loader.sync.attempt import Attempt
from loader.sync.batch import Batch, Intent, extracted, whole
from loader.sync.boundary import boundary, unchanged
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.recovery import Known, assess, recover
from loader.sync.sharing import own_rows, register
from loader.sync.stores import Stores
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
        # Refuses a schema change that raw cannot follow, before anything is read.
        attempt.lake.drift(attempt.plan.lake_table, attempt.plan.table.schema, attempt.plan.terms)
        window, bounds = look(attempt.plan, attempt.snapshot, known, attempt.lake, attempt.watch)
    done: SyncRecord | None = None
    while True:
        attempt.reached("windowed")  # 3 window
        same = unchanged(attempt.plan, attempt.snapshot, known, window, bounds)
        intent, commit = intended(attempt, known, window, bounds, same), None
        if not same:
            with attempt.slot:
                intent, commit = written(attempt, window, bounds, intent)  # 4 extract, 5 append
        if commit is None:
            by_mark = attempt.plan.table.progress is Progress.MARK
            goes_on = by_mark or bounds.log is not None
            intent = replace(intent, after=caught_up(known, intent.after, bounds, goes_on))
        more = attempt.snapshot.more(attempt.plan.table)  # a source may deliver several batches
        done = finish(attempt, known, intent, commit, more, done)  # 6 record
        if not more:
            return done
        known = known.followed_by(intent.after)
        window, bounds = look(attempt.plan, attempt.snapshot, known, attempt.lake, attempt.watch)


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


def preview_table(plan: Plan, snapshot: Snapshot, stores: Stores) -> tuple[Window, Bounds]:
    """Returns the window that a sync would read now, and its bounds; writes nothing."""
    _, _, state = assess(plan, stores, Watch())
    stores.lake.drift(plan.lake_table, plan.table.schema, plan.terms)
    known = Known(state or TableState(), 1)
    return look(plan, snapshot, known, stores.lake, Watch(), preview=True)


def look(
    plan: Plan, snapshot: Snapshot, known: Known, lake: Lake, watch: Watch, preview: bool = False
) -> tuple[Window, Bounds]:
    """Fixes the window before anything is read: inclusive below, a fixed end above.

    A read of everything has no upper end if the source may change during it: a row updated
    between bounds and read would lie above the end, and be missing from a read that claims to be
    complete. The cursor stays at the bound, so the next window begins there.

    Args:
        preview: nothing will be read, so the source prepares nothing.

    Raises:
        TableError: if rows have no cursor and the spec says to fail on them.
    """
    full = plan.mode == FULL_REFRESH or known.starts_over
    everything = full or known.state.cursor is None
    by_cursor = plan.table.progress is Progress.CURSOR
    mark = None if full or (by_cursor and everything) else known.state.mark
    if plan.follows_log:
        window = Window(mark=None if full else known.state.mark, held=_held(plan, lake, known))
    elif plan.cursor is None:
        window = Window(mark=mark)
    else:
        _same_cursor(plan, known)
        low = lower_bound(None if full else known.state.cursor, plan.initial, plan.options.lookback)
        window = Window(
            plan.cursor,
            low,
            open_ended=everything and not snapshot.steady(plan.table),
            nulls=plan.options.null_cursor != "exclude",
            mark=mark,
            bounded=plan.options.lookback is not None,
            whole=not plan.key,
            initial=plan.initial,
            held=None if full else _held(plan, lake, known),
        )
    watch.phase(plan.name, "waiting for records" if snapshot.delivers else "counting")
    bounds = (snapshot.preview if preview else snapshot.bounds)(plan.table, window)
    if bounds.nulls and plan.options.null_cursor == "fail":
        raise TableError(
            f"{bounds.nulls} rows have no cursor (null in {plan.cursor and plan.cursor.name})",
            where=f"table {plan.name}, null_cursor: fail",
            remedy="Fill the column in the source, or set null_cursor to include or exclude",
        )
    if bounds.future and bounds.high and bounds.clock:
        watch.warn(
            plan.name,
            f"{bounds.future} rows are dated in the future (up to {bounds.high.text}): "
            f"loaded, but the cursor stays at the source's clock, {bounds.clock.text}",
        )
    if full and bounds.rows == 0 and known.began:
        watch.warn(
            plan.name,
            "the source is empty: nothing is appended, and the rows in raw do not count as deleted",
        )
    for note in bounds.notes:
        watch.warn(plan.name, note)
    return window, bounds


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
        cursor_field=_cursor_name(plan, known),
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
    attempt: Attempt, window: Window, bounds: Bounds, intent: Intent
) -> tuple[Intent, Commit | None]:
    """Reads a window and appends its new rows; the commit is None if there are none."""
    deletes = bounds.deletions > 0 and attempt.lake.exists(attempt.plan.lake_table)
    if bounds.rows == 0 and not deletes:
        return intent, None
    with extracted(attempt, window, bounds, intent) as batch:
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
    table, schema, cursor = plan.lake_table, plan.table.schema, plan.cursor
    record, after = batch.intent.record, batch.intent.after
    drift = lake.drift(table, schema, plan.terms)
    rows = fitted(batch.rows, drift.routes, f"table {plan.name}")
    if lake.exists(table):
        lake.evolve(table, drift, plan.terms.source)
        if drift.notes:
            record = replace(record, schema_changes="; ".join(drift.notes))
            attempt.warn(f"schema: {record.schema_changes}")
    else:
        lake.create_raw(table, schema, cursor.name if cursor else None, after.batch)
        register(plan, lake)
    attempt.reached("prepared")
    facts = {"state": after.to_json(), "sync": record.to_dict()}
    staged = lake.stage(table, rows, after.batch, facts)
    rows_staged = lake.staged_rows(table, staged)
    if batch.counted not in (None, rows_staged):
        lake.discard(table, staged)
    whole(plan, batch.counted, rows_staged)
    if not rows_staged:
        lake.discard(table, staged)
        return batch.intent, None
    attempt.reached("staged")
    attempt.watch.proceed(plan.name)
    held.confirm()
    published = lake.publish(table, staged, drift.after, plan.terms.source)
    attempt.reached("published")
    return Intent(record, after), published


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


def _held(plan: Plan, lake: Lake, known: Known) -> Callable[[Sequence[str]], DataFrame] | None:
    """Returns a reader of raw's rows since the newest complete read; None if there is no raw."""
    if not lake.exists(plan.lake_table):
        return None
    base = known.state.base or known.state.generation

    def held(names: Sequence[str]) -> DataFrame:
        raw = own_rows(plan, lake.frame(plan.lake_table))
        there = {name.lower() for name in raw.columns}
        columns = [f.col(quoted(n)) if n.lower() in there else f.lit(None).alias(n) for n in names]
        return raw.where(f.col(GENERATION) >= base).select(*columns)

    return held


def _cursor_name(plan: Plan, known: Known) -> str | None:
    """Returns the cursor column's name; if only its case changed, as raw and the state have it."""
    before, cursor = known.state.cursor_field, plan.cursor
    if before and cursor and before.lower() == cursor.name.lower():
        return before
    return cursor.name if cursor else None


def _same_cursor(plan: Plan, known: Known) -> None:
    before, cursor = known.state, plan.cursor
    if cursor is None or before.cursor is None or plan.mode == FULL_REFRESH:
        return
    if before.cursor_field != _cursor_name(plan, known) or before.cursor.type is not cursor.type:
        raise TableError(
            f"the stored cursor is from {before.cursor_field} ({before.cursor.type.value}), "
            f"the table's cursor is now {cursor.name} ({cursor.type.value})",
            where=f"table {plan.name}, cursor_field",
            remedy="Read everything with the new cursor: `loader run --full-refresh --select "
            f"{plan.name}`",
        )
