"""The window of a sync: fixed before anything is read, inclusive below, with a fixed end above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.rows.order import GENERATION, quote_name
from loader.rows.window import Bounds, Window, lower_bound
from loader.sources import Progress, Snapshot
from loader.state import TableState
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.recovery import PriorState, reconcile_state
from loader.sync.run_context import Watch
from loader.sync.sharing import own_rows
from loader.sync.stores import Stores


def plan_window(
    plan: Plan,
    snapshot: Snapshot,
    known: PriorState,
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
    full = plan.mode == FULL_REFRESH or known.starts_over
    everything = full or known.state.cursor is None
    by_cursor = plan.table.progress is Progress.CURSOR
    mark = None if full or (by_cursor and everything) else known.state.mark
    if plan.follows_log:
        window = Window(
            mark=None if full else known.state.mark, held=_open_raw_reader(plan, lake, known)
        )
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
            known=None if full else known.state.cursor,
            held=None if full else _open_raw_reader(plan, lake, known),
        )
    watch.phase(plan.name, "waiting for records" if snapshot.delivers else "counting")
    bounds = (snapshot.preview if preview else snapshot.bounds)(plan.table, window)
    again = _reread(plan, snapshot, window, bounds, added)
    if again is not None:
        watch.warn(
            plan.name,
            f"rows that were read before have values in {', '.join(added)}, which "
            f"{'is' if len(added) == 1 else 'are'} new: all rows are read again",
        )
        window, bounds = again, snapshot.bounds(plan.table, again)
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


def _reread(
    plan: Plan, snapshot: Snapshot, window: Window, bounds: Bounds, added: Sequence[str]
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
        open_ended=not snapshot.steady(plan.table),
        mark=None,
        known=None,
    )
    # counted in this order, rows that arrive in between cannot hide others
    everywhere = snapshot.count_values(plan.table, added, whole, None) or 0
    return whole if everywhere > inside else None


def preview_table(plan: Plan, snapshot: Snapshot, stores: Stores) -> tuple[Window, Bounds]:
    """Returns the window that a sync would read now, and its bounds; writes nothing."""
    _, _, state = reconcile_state(plan, stores, Watch())
    drift = stores.lake.drift(plan.lake_table, plan.table.schema, plan.terms)
    known = PriorState(state or TableState(), 1)
    return plan_window(plan, snapshot, known, stores.lake, Watch(), drift.added, preview=True)


def cursor_name(plan: Plan, known: PriorState) -> str | None:
    """Returns the cursor column's name; if only its case changed, as raw and the state have it."""
    before, cursor = known.state.cursor_field, plan.cursor
    if before and cursor and before.lower() == cursor.name.lower():
        return before
    return cursor.name if cursor else None


def _open_raw_reader(
    plan: Plan, lake: Lake, known: PriorState
) -> Callable[[Sequence[str]], DataFrame] | None:
    """Returns a reader of raw's rows since the newest complete read; None if there is no raw."""
    if not lake.exists(plan.lake_table):
        return None
    base = known.state.base or known.state.generation

    def held(names: Sequence[str]) -> DataFrame:
        raw = own_rows(plan, lake.frame(plan.lake_table))
        there = {name.lower() for name in raw.columns}
        columns = [
            f.col(quote_name(n)) if n.lower() in there else f.lit(None).alias(n) for n in names
        ]
        return raw.where(f.col(GENERATION) >= base).select(*columns)

    return held


def _same_cursor(plan: Plan, known: PriorState) -> None:
    before, cursor = known.state, plan.cursor
    if cursor is None or before.cursor is None or plan.mode == FULL_REFRESH:
        return
    if before.cursor_field != cursor_name(plan, known) or before.cursor.type is not cursor.type:
        raise TableError(
            f"the stored cursor is from {before.cursor_field} ({before.cursor.type.value}), "
            f"the table's cursor is now {cursor.name} ({cursor.type.value})",
            where=f"table {plan.name}, cursor_field",
            remedy="Read everything with the new cursor: `loader run --full-refresh --select "
            f"{plan.name}`",
        )
