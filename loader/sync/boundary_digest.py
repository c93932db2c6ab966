"""Detects windows without new rows by a digest of the rows at their lower bound.

A window begins at the stored cursor, so it contains at least the last row of the sync before. To
read this row and compare it with raw takes Spark a second. So, if the source supports it, a sync
stores a digest of the rows at the lower bound of the next window, computed in its own snapshot. If
the next window contains exactly these rows, raw has them all, and no row is read.

The digest is valid until a backfill or a repair appends a batch, because raw may then have newer
rows for these keys.

If the window also contains rows above the stored cursor, and by the statistics of raw's files raw
has none above it, then exactly these rows are new, and need no comparison.
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
    """Returns whether a window contains exactly the rows that the last sync read at its cursor."""
    stored = prior.state.boundary
    if stored is None or window.low is None or plan.options.redelivered_rows == "append":
        return False
    if plan.mode == FULL_REFRESH or prior.starts_over:
        return False  # the batch begins a generation in any case
    if stored.get("batch") != prior.state.batch or stored.get("rows") != bounds.rows:
        return False
    digest = snapshot.digest(plan.table, window, bounds.rows)
    return _describe_boundary(plan, prior.state.batch, digest) == stored


@dataclass(frozen=True)
class AppendOnlyWindow:
    """The part of a window above the stored cursor, if raw has no rows there and all rows below.

    Attributes:
        window, bounds: the request and the answer for this part.
        redelivered: how many rows of the window are not in this part.
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
    """Returns the part of a window that is new; None if only a comparison with raw can find it.

    A row above every cursor in raw is a new version, and the newest one of its key. Raw's highest
    cursor is read from file statistics, not from the state: rows dated in the future and rows of
    another source may lie above the stored cursor, and users can set it.
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
    """Returns the digest to store for the next window; None if the source supports none.

    Args:
        state: the state to store, with the new cursor and batch.
        window: the window that this sync reads.
    """
    if plan.cursor is None or state.cursor is None:
        return None
    low = lower_bound(state.cursor, plan.initial, plan.options.lookback)
    if low is None or _may_begin_below(low, window.low):
        return None  # the digest would include rows that this sync does not read
    next_window = Window(plan.cursor, low, nulls=window.nulls, is_exhaustive=window.is_exhaustive)
    return _describe_boundary(plan, state.batch, snapshot.digest(plan.table, next_window))


def _may_begin_below(low: Cursor, read_from: Cursor | None) -> bool:
    """Returns whether a window may begin below this one; only the source can order strings."""
    if read_from is None or low == read_from:
        return False
    return low.type is CursorType.STRING or low.order < read_from.order


def _describe_boundary(
    plan: TablePlan, batch: int, digest: Digest | None
) -> Mapping[str, Any] | None:
    if digest is None:
        return None
    # If columns, types or key change, equal rows have another meaning, so the digest must differ.
    read_as = json.dumps([plan.table.schema.jsonValue(), plan.key, plan.deleted], sort_keys=True)
    text = hashlib.sha256(f"{read_as}{digest.text}".encode()).hexdigest()
    return {"batch": batch, "rows": digest.rows, "digest": text}
