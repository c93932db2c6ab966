"""Detects windows without new rows by comparing digests of their rows.

A window starts at the stored cursor or lower, so it contains at least the last row of the previous
sync. Reading this row and comparing it with the raw table takes Spark about a second. To avoid this
delay, a sync stores a digest of the rows that the next window will contain, if the source can
compute digests. If the next sync computes the same digest, it reads no rows.

A batch of a backfill or of `reconcile --repair` invalidates the digest, because the batch may have
appended newer versions of these rows.

The window may also contain rows above the stored cursor. If the raw table's file statistics show
no cursor above the stored one, all these rows must be new, and are appended without a comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loader.lake.lake import Lake
from loader.lake.raw_table import may_exceed
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds, Window, lower_bound
from loader.sources.interface import Digest, Snapshot
from loader.state import TableState
from loader.sync.recover import PriorState
from loader.sync.table_plan import FULL_REFRESH, TablePlan


def is_unchanged(
    plan: TablePlan, snapshot: Snapshot, prior: PriorState, window: Window, bounds: Bounds
) -> bool:
    """Returns whether a window contains exactly the rows whose digest the last sync stored."""
    stored = prior.state.boundary
    if stored is None or window.low is None or plan.options.redelivered_rows == "append":
        return False
    if bounds.deletions:
        return False
    if plan.mode == FULL_REFRESH or prior.starts_over:
        return False  # every full read is appended as a new generation
    if stored.get("batch") != prior.state.batch or stored.get("rows") != bounds.rows:
        return False
    digest = snapshot.digest(plan.table, window, bounds.rows)
    return _describe_boundary(plan, prior.state.batch, digest) == stored


@dataclass(frozen=True)
class AppendOnlyWindow:
    """The part of a window above the stored cursor, where all rows are new.

    Attributes:
        redelivered: the number of rows in the rest of the window, which the raw table already
            contains.
    """

    window: Window
    bounds: Bounds
    redelivered: int


def find_append_only_window(
    plan: TablePlan,
    snapshot: Snapshot,
    prior: PriorState,
    lake: Lake,
    window: Window,
    bounds: Bounds,
) -> AppendOnlyWindow | None:
    """Returns the part of a window that has only new rows.

    Returns None if the rows must be compared with the raw table.

    A row whose cursor is above every cursor in the raw table is the newest version of its key.
    Comparing the row with the stored cursor is not enough, because the raw table may contain higher
    cursors: users can lower the stored cursor, and it stays below the cursors of rows that are
    dated in the future.
    """
    last_cursor = prior.state.cursor
    if plan.mode == FULL_REFRESH or prior.starts_over or plan.keeps_redeliveries:
        return None
    if window.cursor is None or window.low is None or last_cursor is None or window.cursor.collated:
        return None
    if bounds.log or bounds.deletions or bounds.nulls or bounds.is_finer or not bounds.rows:
        return None
    has_overruled = prior.state.base not in (None, prior.state.generation)
    if (has_overruled and not plan.is_authoritative) or not lake.exists(plan.lake_table):
        return None
    rest = snapshot.digest(plan.table, window, bounds.rows_up_to_cursor, until=last_cursor)
    if rest is None or may_exceed(lake, plan.lake_table, window.cursor.name, last_cursor):
        return None
    stored = prior.state.boundary
    if rest.rows and (stored is None or stored.get("batch") != prior.state.batch):
        return None
    if rest.rows and _describe_boundary(plan, prior.state.batch, rest) != stored:
        return None
    new_bounds = replace(bounds, rows=bounds.rows - rest.rows)
    return AppendOnlyWindow(replace(window, above=last_cursor), new_bounds, rest.rows)


def build_boundary(
    plan: TablePlan, snapshot: Snapshot, state: TableState, window: Window
) -> Mapping[str, Any] | None:
    """Returns the digest to store for the next window.

    Returns None if the source does not support digests, or if this sync does not read all rows of
    the next window.

    Args:
        state: the new state, with the cursor and batch number of this sync.
    """
    if plan.cursor is None or state.cursor is None:
        return None
    low = lower_bound(state.cursor, plan.initial, plan.options.lookback)
    if low is None or _may_begin_below(low, window.low):
        return None  # the digest would include rows that this sync does not read
    next_window = Window(plan.cursor, low, nulls=window.nulls, is_exhaustive=window.is_exhaustive)
    return _describe_boundary(plan, state.batch, snapshot.digest(plan.table, next_window))


def _may_begin_below(low: Cursor, read_from: Cursor | None) -> bool:
    """Returns whether `low` may be below `read_from`.

    Returns True for different strings, because only the source can order them.
    """
    if read_from is None or low == read_from:
        return False
    return low.type is CursorType.STRING or low.order < read_from.order


def _describe_boundary(
    plan: TablePlan, batch: int, digest: Digest | None
) -> Mapping[str, Any] | None:
    if digest is None:
        return None
    # Includes the columns, types and key, because a change of any of them must change the digest.
    read_as = json.dumps([plan.table.schema.jsonValue(), plan.key, plan.deleted], sort_keys=True)
    text = hashlib.sha256(f"{read_as}{digest.text}".encode()).hexdigest()
    return {"batch": batch, "rows": digest.rows, "digest": text}
