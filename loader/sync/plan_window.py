"""Plans what a batch reads, before anything is read: inclusive below, with a fixed end above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.lake.raw_table import plan_drift
from loader.lake.schema_evolution import Drift
from loader.rows.bookkeeping import Stamp
from loader.rows.version_order import GENERATION, quote_name
from loader.rows.window import Bounds, Window, lower_bound, next_cursor
from loader.sources.interface import Progress, Snapshot
from loader.state import TableState
from loader.sync.boundary_digest import (
    AppendOnlyWindow,
    build_boundary,
    find_append_only_window,
    is_unchanged,
)
from loader.sync.ownership import own_rows
from loader.sync.recover import PriorState, reconcile_state
from loader.sync.run_context import Watch
from loader.sync.stores import Stores
from loader.sync.table_plan import FULL_REFRESH, TablePlan
from loader.sync.table_sync import TableSync


@dataclass(frozen=True)
class PlannedBatch:
    """What a batch reads, and where its rows leave the table.

    Attributes:
        window, bounds: the request to the source, and its answer.
        drift: how raw follows the source's columns.
        mode: the ledger's name for how the batch is read.
        state: the state that the batch's commit will carry, unless its rows overrule raw: then they
            begin a generation.
        idle_state: the state to store if no row is appended.
        unchanged: the window holds just what raw has already: nothing has to be read.
        append_only: the rows of the window that are new, if that is known before they are read.
        correction: makes rows that overrule raw, in place of those of the window.
        is_followed: returns whether the table has another batch after this one.
    """

    window: Window
    bounds: Bounds
    drift: Drift
    mode: str
    state: TableState
    idle_state: TableState
    unchanged: bool = False
    append_only: AppendOnlyWindow | None = None
    correction: Callable[[Stamp], DataFrame] | None = None
    is_followed: Callable[[], bool] = lambda: False


def plan_window(sync: TableSync, prior: PriorState) -> PlannedBatch:
    """Plans the next batch of a sync: what has changed since the stored cursor.

    Raises:
        TableError: if raw cannot follow the source's columns; if rows have no cursor and the spec
            makes that an error.
    """
    plan, snapshot, lake = sync.plan, sync.snapshot, sync.lake
    # Refuses a schema change that raw cannot follow, before anything is read.
    drift = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
    window, bounds = choose_window(plan, snapshot, prior, lake, sync.watch, drift.added)
    unchanged = is_unchanged(plan, snapshot, prior, window, bounds)
    fresh = None
    if not unchanged:
        fresh = find_append_only_window(plan, snapshot, prior, lake, window, bounds)
    full = plan.mode == FULL_REFRESH or prior.starts_over
    if bounds.log is not None:
        full = bounds.log.low is None
    state = plan_state(plan, prior, bounds, full)
    boundary = prior.state.boundary
    if not unchanged:
        boundary = build_boundary(plan, snapshot, state, window)
    state = replace(state, boundary=boundary)
    goes_on = plan.table.progress is Progress.MARK or bounds.log is not None
    return PlannedBatch(
        window,
        bounds,
        drift,
        mode=FULL_REFRESH if full and prior.began else plan.mode,
        state=state,
        idle_state=advance_state(prior, state, bounds, goes_on),
        unchanged=unchanged,
        append_only=fresh,
        is_followed=lambda: snapshot.has_more(plan.table),
    )


def plan_state(plan: TablePlan, prior: PriorState, bounds: Bounds, full: bool) -> TableState:
    """Returns the state once the rows of a window are published, without its boundary.

    Args:
        full: everything is read, and replaces what raw has.
    """
    before = prior.state
    return TableState(
        batch=prior.next_batch,
        generation=before.generation + (1 if full and prior.began else 0),
        cursor=next_cursor(None if full else before.cursor, bounds),
        cursor_field=cursor_name(plan, prior),
        mark=bounds.mark,
        base=None if full else before.base,
        backfill=None if full else before.backfill,
    )


def advance_state(
    prior: PriorState, after: TableState, bounds: Bounds, goes_on: bool = False
) -> TableState:
    """Returns the state after a sync that found nothing new.

    Raw has all rows up to the bound, so the cursor may move there. Without that, every sync after
    a reset to an older cursor would read them again.

    Args:
        goes_on: the source goes on from its mark, so that is stored before the first batch, too.
    """
    before = prior.state
    cursor = before.cursor if bounds.future > 0 else after.cursor
    boundary = {**after.boundary, "batch": before.batch} if after.boundary else None
    still = cursor == before.cursor and not bounds.settled and boundary in (None, before.boundary)
    if still or not (before.batch or goes_on):
        return before
    moved = before.move_cursor(cursor, after.cursor_field)
    return replace(moved, mark=bounds.mark, boundary=boundary)


def choose_window(
    plan: TablePlan,
    snapshot: Snapshot,
    prior: PriorState,
    lake: Lake,
    watch: Watch,
    added: Sequence[str] = (),
    preview: bool = False,
) -> tuple[Window, Bounds]:
    """Fixes the window before anything is read: inclusive below, a fixed end above.

    A read of everything has no upper end if the source may change during it: a row updated
    between bounds and read would lie above the end, and be missing from a read that claims to be
    complete. The cursor stays at the bound, so the next window begins there.

    If a column was added or renamed and rows below the window have values in it (a default, an
    update that left the cursor), these rows are read again: an ALTER moves no cursor.

    Args:
        added: columns that the source did not have at the last batch.
        preview: nothing will be read, so the source prepares nothing.

    Raises:
        TableError: if rows have no cursor and the spec makes that an error.
    """
    window = _build_window(plan, snapshot, prior, lake)
    watch.report_phase(plan.name, "waiting for records" if snapshot.delivers else "counting")
    bounds = (snapshot.preview if preview else snapshot.bounds)(plan.table, window)
    again = _reread(plan, snapshot, window, bounds, added)
    if again is not None:
        watch.warn(
            plan.name,
            f"rows that were read before have values in {', '.join(added)}, which "
            f"{'is' if len(added) == 1 else 'are'} new: all rows are read again",
        )
        window, bounds = again, snapshot.bounds(plan.table, again)
    _check_bounds(plan, prior, bounds, watch)
    return window, bounds


def _build_window(plan: TablePlan, snapshot: Snapshot, prior: PriorState, lake: Lake) -> Window:
    full = plan.mode == FULL_REFRESH or prior.starts_over
    everything = full or prior.state.cursor is None
    by_cursor = plan.table.progress is Progress.CURSOR
    mark = None if full or (by_cursor and everything) else prior.state.mark
    if plan.follows_log:
        return Window(
            mark=None if full else prior.state.mark, read_raw=_open_raw_reader(plan, lake, prior)
        )
    if plan.cursor is None:
        return Window(mark=mark)
    _require_same_cursor(plan, prior)
    low = lower_bound(None if full else prior.state.cursor, plan.initial, plan.options.lookback)
    return Window(
        plan.cursor,
        low,
        open_ended=everything and not snapshot.is_steady(plan.table),
        nulls=plan.options.null_cursor != "exclude",
        mark=mark,
        bounded=plan.options.lookback is not None,
        whole=not plan.key,
        initial=plan.initial,
        known=None if full else prior.state.cursor,
        read_raw=None if full else _open_raw_reader(plan, lake, prior),
    )


def _check_bounds(plan: TablePlan, prior: PriorState, bounds: Bounds, watch: Watch) -> None:
    """Refuses or warns about what the source has found in the window."""
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
    full = plan.mode == FULL_REFRESH or prior.starts_over
    if full and bounds.rows == 0 and prior.began:
        watch.warn(
            plan.name,
            "the source is empty: nothing is appended, and the rows in raw do not count as deleted",
        )
    for note in bounds.notes:
        watch.warn(plan.name, note)


def _reread(
    plan: TablePlan, snapshot: Snapshot, window: Window, bounds: Bounds, added: Sequence[str]
) -> Window | None:
    """Returns a window of all rows if rows outside have values in added columns, else None."""
    if window.known is None or not added or not plan.key:
        return None
    inside = snapshot.count_values(plan.table, added, window, bounds)
    if inside is None:
        return None
    whole = replace(
        window,
        low=plan.initial,
        open_ended=not snapshot.is_steady(plan.table),
        mark=None,
        known=None,
    )
    # counted in this order, rows that arrive in between cannot hide others
    everywhere = snapshot.count_values(plan.table, added, whole, None) or 0
    return whole if everywhere > inside else None


def preview_table(plan: TablePlan, snapshot: Snapshot, stores: Stores) -> tuple[Window, Bounds]:
    """Returns the window that a sync would read now, and its bounds; writes nothing."""
    _, _, state = reconcile_state(plan, stores, Watch())
    drift = plan_drift(stores.lake, plan.lake_table, plan.table.schema, plan.policy)
    prior = PriorState(state or TableState(), 1)
    return choose_window(plan, snapshot, prior, stores.lake, Watch(), drift.added, preview=True)


def cursor_name(plan: TablePlan, prior: PriorState) -> str | None:
    """Returns the cursor column's name; if only its case changed, as raw and the state have it."""
    before, cursor = prior.state.cursor_field, plan.cursor
    if before and cursor and before.lower() == cursor.name.lower():
        return before
    return cursor.name if cursor else None


def _open_raw_reader(
    plan: TablePlan, lake: Lake, prior: PriorState
) -> Callable[[Sequence[str]], DataFrame] | None:
    """Returns a reader of raw's rows since the newest complete read; None if there is no raw."""
    if not lake.exists(plan.lake_table):
        return None
    base = prior.state.base or prior.state.generation

    def read_raw(names: Sequence[str]) -> DataFrame:
        raw = own_rows(plan, lake.frame(plan.lake_table))
        there = {name.lower() for name in raw.columns}
        columns = [
            f.col(quote_name(n)) if n.lower() in there else f.lit(None).alias(n) for n in names
        ]
        return raw.where(f.col(GENERATION) >= base).select(*columns)

    return read_raw


def _require_same_cursor(plan: TablePlan, prior: PriorState) -> None:
    before, cursor = prior.state, plan.cursor
    if cursor is None or before.cursor is None or plan.mode == FULL_REFRESH:
        return
    if before.cursor_field != cursor_name(plan, prior) or before.cursor.type is not cursor.type:
        raise TableError(
            f"the stored cursor is {before.cursor_field} ({before.cursor.type.value}), "
            f"but the table's cursor is now {cursor.name} ({cursor.type.value})",
            where=f"table {plan.name}, cursor_field",
            remedy="Read everything with the new cursor: `loader run --full-refresh --select "
            f"{plan.name}`",
        )
