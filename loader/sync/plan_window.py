"""Plans the next batch before any row is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.formatting import format_count
from loader.lake.lake import Lake
from loader.lake.raw_table import plan_drift
from loader.lake.schema_evolution import Drift
from loader.rows.bookkeeping import Stamp
from loader.rows.clock_slack import DEFAULT_SLACK
from loader.rows.cursor import Cursor
from loader.rows.version_order import GENERATION, quote_name
from loader.rows.window import Bounds, CursorField, Window, lower_bound, next_cursor
from loader.sources.interface import Progress, Snapshot
from loader.state import TableState
from loader.sync.boundary_digest import (
    AppendOnlyWindow,
    build_boundary,
    find_append_only_window,
    is_unchanged,
)
from loader.sync.mask_changes import check_masks, describe_masks
from loader.sync.ownership import select_own_rows
from loader.sync.recover import PriorState, is_selection_new, reconcile_state
from loader.sync.run_context import Watch
from loader.sync.stores import Stores
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH, TablePlan


@dataclass(frozen=True)
class LostRows:
    """How many new rows a plain query for rows above the stored cursor would miss.

    A count is None if it is unknown or does not apply. The attributes are described in
    :class:`~loader.lake.ledger.SyncRecord`.
    """

    below_cursor: int | None = None
    at_cursor: int | None = None
    cursor_unmoved: int | None = None


@dataclass(frozen=True)
class PlannedBatch:
    """The plan of a batch: the rows to read and the resulting state.

    Attributes:
        drift: the schema changes that the batch makes in the raw table.
        mode: the mode that the ledger records.
        state: the state to store in the batch's commit. If rows override the raw table,
            :mod:`loader.sync.extract` increases its generation.
        idle_state: the state to store if no row is appended.
        is_unchanged: whether the raw table already has all rows of the window, so that no row is
            read.
        append_only: the part of the window that has only new rows. None if the rows must be
            compared with the raw table.
        correction: in a repair, returns the rows to append; else None.
        corrected: for a repair: how many of its rows a plain query would have missed.
        check_staged: called after the rows are staged. Raises an error if they must not be
            published.
        is_followed: returns whether another batch follows.
        deletes_missing: whether a tombstone is appended for each key of the raw table that is
            missing from the batch. True if the spec now selects different rows, or if a filtered
            table is refreshed, unless the table has no key or is read from a log.
        allows_mass_deletes: whether tombstones may be appended for more than a tenth of the keys.
            True if the spec now selects different rows, or if the source cannot change while it
            is read.
    """

    window: Window
    bounds: Bounds
    drift: Drift
    mode: str
    state: TableState
    idle_state: TableState
    is_unchanged: bool = False
    append_only: AppendOnlyWindow | None = None
    correction: Callable[[Stamp], DataFrame] | None = None
    corrected: LostRows = LostRows()
    check_staged: Callable[[], None] = lambda: None
    is_followed: Callable[[], bool] = lambda: False
    deletes_missing: bool = False
    allows_mass_deletes: bool = False


def has_plain_cursor(plan: TablePlan, cursor: CursorField | None, stored: Cursor | None) -> bool:
    """Returns whether a plain query for rows above the stored cursor would be possible."""
    return (
        plan.table.progress is Progress.CURSOR
        and stored is not None
        and cursor is not None
        and not cursor.collated
    )


def plan_window(sync: SyncContext, prior: PriorState) -> PlannedBatch:
    """Plans the next batch of a normal sync: the rows that have changed since the stored cursor.

    Raises:
        TableError: if the raw table cannot represent the source's columns, or if rows have a null
            cursor and the spec forbids null cursors.
    """
    plan, snapshot, lake = sync.plan, sync.snapshot, sync.lake
    # Raises an error before any row is read if the raw table cannot represent a schema change.
    drift = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
    if prior.has_new_selection:
        sync.warn(_describe_new_selection(plan))
    if _cannot_compare(plan, prior, drift):
        sync.warn(_describe_new_columns(plan, snapshot, drift))
        prior = replace(prior, has_new_columns=True)
    window, bounds = choose_window(
        plan, snapshot, prior, lake, sync.watch, drift.added, drift.included
    )
    is_window_unchanged = is_unchanged(plan, snapshot, prior, window, bounds)
    append_only = None
    if not is_window_unchanged:
        append_only = find_append_only_window(plan, snapshot, prior, lake, window, bounds)
    is_full = plan.mode == FULL_REFRESH or prior.starts_over
    if bounds.log is not None:
        is_full = bounds.log.low is None
    if drift.lost and not is_full:
        _warn_of_lost_columns(sync, drift.lost)
    state = plan_state(plan, prior, bounds, is_full)
    boundary = prior.state.boundary
    if not is_window_unchanged:
        boundary = build_boundary(plan, snapshot, state, window)
    state = replace(state, boundary=boundary)
    is_resumed = plan.table.progress is Progress.MARK or bounds.log is not None
    return PlannedBatch(
        window,
        bounds,
        drift,
        mode=FULL_REFRESH if is_full and prior.has_begun else plan.mode,
        state=state,
        idle_state=advance_state(prior, state, bounds, is_resumed),
        is_unchanged=is_window_unchanged,
        append_only=append_only,
        is_followed=lambda: snapshot.has_more(plan.table),
        deletes_missing=bool(plan.key)
        and bounds.log is None
        and (prior.has_new_selection or _is_filtered_refresh(plan)),
        allows_mass_deletes=snapshot.is_steady(plan.table)
        or (prior.has_new_selection and not prior.state.was_reset(plan.table.selection)),
    )


def _is_filtered_refresh(plan: TablePlan) -> bool:
    """Returns whether the user requested a full refresh of a table that has a filter.

    Rows that no longer match the filter must become tombstones in this refresh. Later syncs would
    not find these rows, because the refresh has already seen their transactions.
    """
    is_refreshed = plan.mode == FULL_REFRESH and plan.options.sync_mode != FULL_REFRESH
    return is_refreshed and bool(plan.table.selection)


def _describe_new_selection(plan: TablePlan) -> str:
    rest = "become tombstones" if plan.key else "stay in the raw table, in an older generation"
    return (
        "the spec selects different rows than at the last sync (where, query), or the state was "
        f"reset: all rows are read again; rows in the raw table that are no longer selected {rest}"
    )


def _cannot_compare(plan: TablePlan, prior: PriorState, drift: Drift) -> bool:
    """Returns whether rows cannot be compared with the raw table, which would then get duplicates.

    If a table has no key, whole rows are compared. Once the `columns` option has changed, this is
    impossible, because the new rows have different columns.
    """
    return (
        bool(drift.included or drift.excluded)
        and not plan.key
        and not plan.keeps_redeliveries
        and plan.table.progress is Progress.CURSOR
        and plan.mode != FULL_REFRESH
        and prior.has_begun
    )


def _describe_new_columns(plan: TablePlan, snapshot: Snapshot, drift: Drift) -> str:
    """Returns the warning for a table that has no key and whose `columns` option has changed.

    Raises:
        TableError: if the source may no longer have all rows.
    """
    changed = ", ".join((*drift.included, *drift.excluded))
    what = f"the `columns` option has changed ({changed}), and the table has no key"
    if not snapshot.missing_means_deleted:
        raise TableError(
            f"{what}: the loader cannot tell which rows the raw table already contains",
            where=f"table {plan.name}, columns",
            remedy="Set a primary_key; or undo the change; or read the files again with `loader "
            f"run --full-refresh --select {plan.policy.select}`: rows of files that were removed "
            "are then only in an older generation",
        )
    return f"{what}: all rows are read again, in a new generation"


def _warn_of_lost_columns(sync: SyncContext, names: Sequence[str]) -> None:
    select = f"--select {sync.plan.policy.select}"
    sync.warn(
        "columns were dropped from the raw table, so they are null in the rows of earlier batches: "
        f"{', '.join(names)}. Reload these rows with `loader reconcile --repair {select}` or "
        f"`loader run --full-refresh {select}`"
    )


def plan_state(plan: TablePlan, prior: PriorState, bounds: Bounds, is_full: bool) -> TableState:
    """Returns the state to store once a window is published, without the boundary digest.

    Args:
        is_full: whether the batch reloads all rows into a new generation.
    """
    before = prior.state
    return TableState(
        batch=prior.next_batch,
        generation=before.generation + (1 if is_full and prior.has_begun else 0),
        cursor=next_cursor(None if is_full else before.cursor, bounds),
        cursor_field=find_cursor_name(plan, prior),
        mark=bounds.mark,
        base=None if is_full else before.base,
        backfill=None if is_full else before.backfill,
        selection=plan.table.selection,
        masks=describe_masks(plan, before.masks),
    )


def advance_state(
    prior: PriorState, after: TableState, bounds: Bounds, is_resumed: bool = False
) -> TableState:
    """Returns the state after a sync that appended no row.

    The raw table has all rows up to the upper bound, so the cursor advances to this bound.
    Otherwise, after a reset to an older cursor, every sync would reread these rows. The cursor does
    not change if rows are dated in the future.

    Args:
        is_resumed: whether the source resumes from its checkpoint. If so, the checkpoint is stored
            even before the first batch.
    """
    before = prior.state
    cursor = before.cursor if bounds.future > 0 else after.cursor
    boundary = {**after.boundary, "batch": before.batch} if after.boundary else None
    is_same = (
        cursor == before.cursor
        and not bounds.must_store_mark
        and boundary in (None, before.boundary)
    )
    if is_same or not (before.batch or is_resumed):
        return before
    moved = before.move_cursor(cursor, after.cursor_field)
    selection = prior.partial_selection
    return replace(moved, mark=bounds.mark, boundary=boundary, selection=selection)


def choose_window(
    plan: TablePlan,
    snapshot: Snapshot,
    prior: PriorState,
    lake: Lake,
    watch: Watch,
    added: Sequence[str] = (),
    included: Sequence[str] = (),
    preview: bool = False,
) -> tuple[Window, Bounds]:
    """Determines the window and its bounds before any row is read.

    If the source may change while it is read, a full read has no upper bound. Otherwise, a row that
    is updated after the bounds are queried would be above the upper bound and be missed. The stored
    cursor is still the highest cursor that was counted, so the next window starts there.

    An ALTER does not change cursors. So if a column was added or renamed, and rows outside the
    window have values in this column, all rows are reread. If the table has no key, the sync only
    warns, because it cannot replace the older versions of these rows.

    Args:
        added: columns that were added to the source since the last batch.
        included: the added columns that the spec excluded until now.
        preview: whether no rows will be read, so that the source need not prepare to read them.

    Raises:
        TableError: if rows have a null cursor and the spec forbids null cursors.
    """
    window = snapshot.lower_window(plan.table, build_window(plan, snapshot, prior, lake))
    watch.report_phase(plan.name, "waiting for records" if snapshot.delivers else "counting")
    bounds = (snapshot.preview if preview else snapshot.bounds)(plan.table, window)
    full_window = _find_full_window(plan, snapshot, window, bounds, added, included)
    if included and prior.has_begun and plan.table.progress is Progress.MARK:
        watch.warn(
            plan.name,
            f"older rows have null in {', '.join(included)}, which the connector sends from now "
            f"on: to fill them, run `loader run --full-refresh --select {plan.policy.select}`",
        )
    if full_window is not None and not plan.key:
        watch.warn(
            plan.name,
            f"rows that were read before have values in {', '.join(added)}, new in the source. "
            "Without a key, these rows keep nulls in the raw table until a full refresh",
        )
    elif full_window is not None:
        watch.warn(
            plan.name,
            f"rows that were read before have values in {', '.join(added)}, which "
            f"{'is' if len(added) == 1 else 'are'} new: all rows are read again",
        )
        window, bounds = full_window, snapshot.bounds(plan.table, full_window)
    _check_bounds(plan, prior, bounds, watch)
    return window, bounds


def build_window(plan: TablePlan, snapshot: Snapshot, prior: PriorState, lake: Lake) -> Window:
    """Returns the window of a sync. Later, the source may extend it downwards."""
    is_full = plan.mode == FULL_REFRESH or prior.starts_over
    reads_everything = is_full or prior.state.cursor is None
    by_cursor = plan.table.progress is Progress.CURSOR
    mark = None if is_full or (by_cursor and reads_everything) else prior.state.mark
    if plan.follows_log:
        return Window(
            mark=None if is_full else prior.state.mark, read_raw=_open_raw_reader(plan, lake, prior)
        )
    if plan.cursor is None:
        return Window(mark=mark)
    _require_same_cursor(plan, prior)
    low = lower_bound(None if is_full else prior.state.cursor, plan.initial, plan.options.lookback)
    return Window(
        plan.cursor,
        low,
        open_ended=reads_everything and not snapshot.is_steady(plan.table),
        nulls=plan.options.null_cursor != "exclude",
        mark=mark,
        has_lookback=plan.options.lookback is not None,
        slack=find_clock_slack(plan),
        is_exhaustive=not plan.key and not plan.keeps_redeliveries,
        has_key=bool(plan.key),
        initial=plan.initial,
        stored_cursor=None if is_full else prior.state.cursor,
        read_raw=None if is_full else _open_raw_reader(plan, lake, prior),
    )


def find_clock_slack(plan: TablePlan) -> int | None:
    """Returns :attr:`Window.slack`. A lookback in the spec replaces the default."""
    if plan.cursor is None or not plan.cursor.type.is_time or plan.keeps_redeliveries:
        return None
    lookback = plan.options.lookback
    return DEFAULT_SLACK if lookback is None else lookback.seconds


def _check_bounds(plan: TablePlan, prior: PriorState, bounds: Bounds, watch: Watch) -> None:
    """Raises a TableError for null cursors that the spec forbids; warns of other unusual rows."""
    if bounds.nulls and plan.options.null_cursor == "fail":
        raise TableError(
            f"{format_count(bounds.nulls, 'row has', 'rows have')} no cursor "
            f"(null in {plan.cursor and plan.cursor.name})",
            where=f"table {plan.name}, null_cursor: fail",
            remedy="Fill the column in the source, or set null_cursor to include or exclude",
        )
    if bounds.future and bounds.high and bounds.clock:
        watch.warn(
            plan.name,
            f"{format_count(bounds.future, 'row is', 'rows are')} dated in the future "
            f"(up to {bounds.high.text}): loaded, but the cursor stays at the source's clock, "
            f"{bounds.clock.text}",
        )
    is_full = plan.mode == FULL_REFRESH or prior.starts_over
    if is_full and bounds.rows == 0 and prior.has_begun:
        remedy = ""
        if plan.key and plan.table.selection and plan.options.sync_mode != FULL_REFRESH:
            remedy = (
                ". If they were deleted or are no longer selected, run `loader reconcile --repair "
                f"--allow-deletes --select {plan.name}`"
            )
        watch.warn(
            plan.name,
            "the source is empty: nothing is appended, and rows in the raw table are not treated "
            f"as deleted{remedy}",
        )
    for note in bounds.notes:
        watch.warn(plan.name, note)


def _find_full_window(
    plan: TablePlan,
    snapshot: Snapshot,
    window: Window,
    bounds: Bounds,
    added: Sequence[str],
    included: Sequence[str],
) -> Window | None:
    """Returns a window of all rows if rows outside `window` have values in added columns."""
    if window.stored_cursor is None or not added:
        return None
    if plan.table.progress is not Progress.CURSOR:
        return None
    inside = snapshot.count_values(plan.table, added, window, bounds)
    if inside is None and not included:
        return None
    full_window = replace(
        window,
        low=plan.initial,
        open_ended=not snapshot.is_steady(plan.table),
        mark=None,
        stored_cursor=None,
    )
    if inside is None:
        return full_window
    # The order matters: rows that are inserted between the two counts increase only the second one.
    everywhere = snapshot.count_values(plan.table, added, full_window, None) or 0
    return full_window if everywhere > inside else None


def preview_table(plan: TablePlan, snapshot: Snapshot, stores: Stores) -> tuple[Window, Bounds]:
    """Returns the window that a sync would read, and its bounds. Writes nothing."""
    _, _, state = reconcile_state(plan, stores, Watch())
    check_masks(plan, stores.lake, state, lambda text: None)
    drift = plan_drift(stores.lake, plan.lake_table, plan.table.schema, plan.policy)
    state = state or TableState()
    prior = PriorState(state, 1, state.batch > 0, has_new_selection=is_selection_new(plan, state))
    prior = replace(prior, has_new_columns=_cannot_compare(plan, prior, drift))
    return choose_window(
        plan, snapshot, prior, stores.lake, Watch(), drift.added, drift.included, preview=True
    )


def find_cursor_name(plan: TablePlan, prior: PriorState) -> str | None:
    """Returns the cursor column's name. Keeps the stored spelling if only its case has changed."""
    before, cursor = prior.state.cursor_field, plan.cursor
    if before and cursor and before.lower() == cursor.name.lower():
        return before
    return cursor.name if cursor else None


def _open_raw_reader(
    plan: TablePlan, lake: Lake, prior: PriorState
) -> Callable[[Sequence[str]], DataFrame] | None:
    """Returns a function that reads the rows loaded since the last full read.

    Returns None if there is no raw table.
    """
    if not lake.exists(plan.lake_table):
        return None
    base = prior.state.base or prior.state.generation

    def read_raw(names: Sequence[str]) -> DataFrame:
        raw = select_own_rows(plan, lake.frame(plan.lake_table))
        raw_columns = {name.lower() for name in raw.columns}
        columns = [
            f.col(quote_name(n)) if n.lower() in raw_columns else f.lit(None).alias(n)
            for n in names
        ]
        return raw.where(f.col(GENERATION) >= base).select(*columns)

    return read_raw


def _require_same_cursor(plan: TablePlan, prior: PriorState) -> None:
    before, cursor = prior.state, plan.cursor
    if cursor is None or before.cursor is None or plan.mode == FULL_REFRESH:
        return
    if (
        before.cursor_field != find_cursor_name(plan, prior)
        or before.cursor.type is not cursor.type
    ):
        raise TableError(
            f"the stored cursor is {before.cursor_field} ({before.cursor.type.value}), "
            f"but the table's cursor is now {cursor.name} ({cursor.type.value})",
            where=f"table {plan.name}, cursor_field",
            remedy="Read everything with the new cursor: `loader run --full-refresh --select "
            f"{plan.name}`",
        )
