"""The sync protocol: lock, recover, window, extract, append, record, unlock.

The data commit is the truth. It carries the batch number, the state and the ledger row that
became true with it; state and ledger are indexes, rolled forward from it after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.commits import Commit
from loader.lake.lake import Lake
from loader.lake.lease import Lease, acquire_all
from loader.lake.ledger import NOTHING_NEW, SYNCED, SyncRecord, now
from loader.lake.schema.fitting import fitted
from loader.rows.order import GENERATION, quoted
from loader.rows.window import Bounds, Window, lower_bound, next_cursor
from loader.sources import Snapshot
from loader.state import TableState
from loader.sync.batch import Batch, extracted, whole
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.recovery import Known, Stores, assess, recover
from loader.sync.sharing import own_rows, register
from loader.sync.watch import Watch


def sync_table(
    plan: Plan, held: Lease, snapshot: Snapshot, stores: Stores, watch: Watch, run_id: str
) -> SyncRecord:
    """Appends what changed since the stored cursor, as one batch, and records the cursor.

    Args:
        held: the table's lock (:func:`lock_all`), taken before the snapshot was: rows of a snapshot
            older than another run's last batch could bring back what that batch replaced.

    Returns the ledger row that it wrote.

    Raises:
        TableError, StateError: this table cannot be synced; nothing of it was published.
    """
    with unlocked_after(held):  # 1 lock
        done = synced(plan, held, snapshot, stores, watch, run_id)
    watch.reached("unlocked", plan.name)
    return done


def synced(
    plan: Plan, held: Lease, snapshot: Snapshot, stores: Stores, watch: Watch, run_id: str
) -> SyncRecord:
    """The sync of a table whose lock is held, and is held afterwards; see :func:`sync_table`."""
    watch.reached("locked", plan.name)
    known = recover(plan, stores, watch, run_id)  # 2 recover
    # What raw cannot follow is refused before anything is read.
    stores.lake.drift(plan.lake_table, plan.table.schema, plan.terms)
    window, bounds = look(plan, snapshot, known, stores.lake, watch)  # 3 window
    watch.reached("windowed", plan.name)
    record, after = intend(plan, known, window, bounds, run_id)
    commit = None
    if bounds.rows != 0:
        intended = Batch(None, record, after)
        with extracted(plan, snapshot, stores.lake, window, bounds, intended, watch) as batch:
            record, after = batch.record, batch.after  # 4 extract
            commit = append(plan, stores.lake, batch, held, watch)  # 5 append
    return finish(plan, stores, known, record, after, bounds, commit, watch)  # 6 record


@contextmanager
def unlocked_after(held: Lease) -> Iterator[None]:
    """Gives the table free, however its sync ends."""
    try:
        yield
    finally:
        held.release()


def lock_all(
    plans: Sequence[Plan], lake: Lake, watch: Watch, run_id: str
) -> list[Lease | Exception]:
    """Takes tables for this run, against all others: the lock of each, or why it is not ours.

    All of them in one commit, before their source's snapshot is taken.
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
    """The window that a sync would read now, and how many rows; writes nothing."""
    _, _, state = assess(plan, stores, Watch())
    stores.lake.drift(plan.lake_table, plan.table.schema, plan.terms)
    return look(plan, snapshot, Known(state or TableState(), 1), stores.lake, Watch())


def look(
    plan: Plan, snapshot: Snapshot, known: Known, lake: Lake, watch: Watch
) -> tuple[Window, Bounds]:
    """Fixes the window before anything is read: inclusive below, a fixed end above.

    A read of everything has no end above where the source goes on changing meanwhile: a row that
    is updated between bounds and read would lie above it, and be missing from what calls itself
    complete. The cursor stays at the bound, so the next window begins there.

    Raises:
        TableError: where rows have no cursor and the spec says to fail on them.
    """
    full = plan.mode == FULL_REFRESH or known.starts_over
    if plan.cursor is None:
        window = Window()
    else:
        _same_cursor(plan, known)
        low = lower_bound(None if full else known.state.cursor, plan.initial, plan.options.lookback)
        window = Window(
            plan.cursor,
            low,
            nulls=plan.options.null_cursor != "exclude",
            mark=None if full or known.state.cursor is None else known.state.mark,
            bounded=plan.options.lookback is not None,
            whole=not plan.key,
            initial=plan.initial,
            held=None if full else _held(plan, lake, known),
        )
    watch.phase(plan.name, "counting")
    bounds = snapshot.bounds(plan.table, window)
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
            "the source is empty: nothing is appended, and what raw holds is not taken for deleted",
        )
    for note in bounds.notes:
        watch.warn(plan.name, note)
    everything = full or known.state.cursor is None
    open_ended = everything and not snapshot.steady(plan.table)
    fixed = replace(
        window,
        high=None if open_ended else bounds.high,
        reach=bounds.reach,
        whole_microsecond=bounds.finer,
    )
    return fixed, bounds


def intend(
    plan: Plan, known: Known, window: Window, bounds: Bounds, run_id: str
) -> tuple[SyncRecord, TableState]:
    """The ledger row and the state that this batch will make true; both travel in its commit."""
    full = plan.mode == FULL_REFRESH or known.starts_over
    fresh_generation = full and known.began
    state = TableState(
        batch=known.next_batch,
        generation=known.state.generation + (1 if fresh_generation else 0),
        cursor=next_cursor(None if full else known.state.cursor, bounds),
        cursor_field=_cursor_name(plan, known),
        mark=bounds.mark,
        base=None if full else known.state.base,
        backfill=None if full else known.state.backfill,
    )
    record = SyncRecord(
        run_id=run_id,
        source_name=plan.source,
        table_name=plan.lake_table,
        batch=known.next_batch,
        generation=state.generation,
        mode=FULL_REFRESH if fresh_generation else plan.mode,
        cursor_field=state.cursor_field,
        cursor_type=plan.cursor.type.value if plan.cursor else None,
        cursor_low=window.floor.text if window.floor else None,
        cursor_high=state.cursor.text if state.cursor else None,
        read_from=window.low.text if window.low else None,
        read_to=window.high.text if window.high else None,
        rows_redelivered=0,
        rows_null_cursor=bounds.nulls if plan.cursor else None,
        lookback=plan.options.lookback.text if plan.options.lookback else None,
        started_at=now(),
    )
    return record, state


def append(
    plan: Plan, lake: Lake, batch: Batch, held: Lease, watch: Watch
) -> tuple[Commit, SyncRecord] | None:
    """Writes the batch out of sight, then publishes it whole; None where there is nothing to.

    Raises:
        TableError: where the table cannot take the source's columns, or the run was stopped.
    """
    watch.reached("extracted", plan.name)
    if batch.rows is None:
        return None
    held.confirm()
    watch.phase(plan.name, "appending")
    table, schema, cursor = plan.lake_table, plan.table.schema, plan.cursor
    record, after = batch.record, batch.after
    drift = lake.drift(table, schema, plan.terms)
    rows = fitted(batch.rows, drift.routes, f"table {plan.name}")
    if lake.exists(table):
        lake.evolve(table, drift, plan.terms.source)
        if drift.notes:
            record = replace(record, schema_changes="; ".join(drift.notes))
            watch.warn(plan.name, f"schema: {record.schema_changes}")
    else:
        lake.create_raw(table, schema, cursor.name if cursor else None, after.batch)
        register(plan, lake)
    watch.reached("prepared", plan.name)
    facts = {"state": after.to_json(), "sync": record.to_dict()}
    staged = lake.stage(table, rows, after.batch, facts)
    rows_staged = lake.staged_rows(table, staged)
    if batch.counted not in (None, rows_staged):
        lake.discard(table, staged)
    whole(plan, batch.counted, rows_staged)
    if not rows_staged:
        lake.discard(table, staged)
        return None
    watch.reached("staged", plan.name)
    watch.proceed(plan.name)
    held.confirm()
    published = lake.publish(table, staged, drift.after, plan.terms.source)
    watch.reached("published", plan.name)
    return published, record


def finish(
    plan: Plan,
    stores: Stores,
    known: Known,
    record: SyncRecord,
    after: TableState,
    bounds: Bounds,
    commit: tuple[Commit, SyncRecord] | None,
    watch: Watch,
) -> SyncRecord:
    """Records state, then ledger: a crash in between leaves only what `recover` mends."""
    if commit is not None:
        published, record = commit
        stores.store(plan.name, after)
        done = record.finished(
            status=SYNCED,
            rows_appended=published.rows,
            rows_read=(published.rows or 0) + (record.rows_redelivered or 0),
            snapshot_id=published.snapshot_id,
        )
    else:
        # All rows up to the bound are in raw already, so the cursor may follow them: after a
        # reset to an older value, else every sync would read them again.
        clamped = bounds.future > 0
        cursor = known.state.cursor if clamped else after.cursor
        if known.state.batch and (cursor != known.state.cursor or bounds.settled):
            moved = known.state.moved(cursor, after.cursor_field)
            stores.store(plan.name, replace(moved, mark=bounds.mark))
        done = record.finished(
            status=NOTHING_NEW,
            batch=None,
            generation=known.state.generation,
            cursor_high=cursor.text if cursor else None,
            rows_read=record.rows_redelivered or 0,
            rows_appended=0,
        )
    watch.reached("state-recorded", plan.name)
    stores.record(done)
    watch.reached("ledger-recorded", plan.name)
    return done


def _held(plan: Plan, lake: Lake, known: Known) -> Callable[[Sequence[str]], DataFrame] | None:
    """Columns of what raw holds since its newest complete read; None where there is no raw."""
    if not lake.exists(plan.lake_table):
        return None
    base = known.state.base or known.state.generation

    def held(names: Sequence[str]) -> DataFrame:
        raw = own_rows(plan, lake.frame(plan.lake_table))
        return raw.where(f.col(GENERATION) >= base).select(*map(quoted, names))

    return held


def _cursor_name(plan: Plan, known: Known) -> str | None:
    """The cursor column's name: as raw and the state have it, should only its case change."""
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
            f"the stored cursor is of {before.cursor_field} ({before.cursor.type.value}), "
            f"the table's is {cursor.name} ({cursor.type.value})",
            where=f"table {plan.name}, cursor_field",
            remedy="Read everything by the new cursor with `loader run --full-refresh --select "
            f"{plan.name}`",
        )
