"""Digests the rows at the window's lower bound, so that a sync detects that nothing is new.

A window begins at the last cursor, so it holds at least the row that was read last. To read that
row and compare it with raw takes Spark a second. If the source can, a sync therefore stores a
digest of the rows that the next window begins with, as of its own snapshot. If the next window
holds just these rows, raw has them all, and nothing is read.

The digest counts only as long as no other batch has been appended, by a backfill or a repair: raw's
rows for these keys may then be newer.

If there are new rows, too, the digest still says that those at the cursor are not among them. If no
file of raw can have a row above the cursor, all the others are new: none has to be compared.
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
    """Returns whether a window holds just what the last sync read at its cursor."""
    stored = prior.state.boundary
    if stored is None or window.low is None or plan.options.redelivered_rows == "append":
        return False
    if plan.mode == FULL_REFRESH or prior.starts_over:
        return False  # it begins a generation in any case
    if stored.get("batch") != prior.state.batch or stored.get("rows") != bounds.rows:
        return False
    now = snapshot.digest(plan.table, window, bounds.rows)
    return _build_boundary(plan, prior.state.batch, now) == stored


@dataclass(frozen=True)
class AppendOnlyWindow:
    """The rows of a window above its cursor, if raw has none there, and all it has below.

    Attributes:
        window, bounds: these rows only.
        redelivered: how many rows of the whole window are left out.
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
    """Returns the only rows of a window that are new; None if it takes a comparison to find them.

    A row above every cursor in raw is no version that raw has, and none that raw's overrule. That
    the cursor is the highest in raw is asked of raw's files, not of the state: rows dated in the
    future, rows of another source or a cursor set by hand may lie above it.
    """
    last = prior.state.cursor
    if plan.mode == FULL_REFRESH or prior.starts_over or plan.keeps_redeliveries:
        return None
    if window.cursor is None or window.low is None or last is None or window.cursor.collated:
        return None
    if bounds.log or bounds.deletions or bounds.nulls or bounds.finer or not bounds.rows:
        return None
    overruled = prior.state.base not in (None, prior.state.generation)
    if (overruled and not plan.authoritative) or not lake.exists(plan.lake_table):
        return None
    left = snapshot.digest(plan.table, window, bounds.before, until=last)
    if left is None or may_exceed(lake, plan.lake_table, window.cursor.name, last):
        return None
    stored = prior.state.boundary
    if left.rows and (stored is None or stored.get("batch") != prior.state.batch):
        return None
    if left.rows and _build_boundary(plan, prior.state.batch, left) != stored:
        return None
    fresh = replace(bounds, rows=bounds.rows - left.rows)
    return AppendOnlyWindow(replace(window, above=last), fresh, left.rows)


def build_boundary(
    plan: TablePlan, snapshot: Snapshot, after: TableState, window: Window
) -> Mapping[str, Any] | None:
    """Returns the digest that the state stores for the next window; None if the source has none.

    Args:
        after: the state as it will be stored: its cursor, and the batch that covers it.
        window: the range that this sync reads.
    """
    if plan.cursor is None or after.cursor is None:
        return None
    low = lower_bound(after.cursor, plan.initial, plan.options.lookback)
    if low is None or _below(low, window.low):
        return None  # rows that this sync does not read would count as read
    following = Window(plan.cursor, low, nulls=window.nulls, whole=window.whole)
    return _build_boundary(plan, after.batch, snapshot.digest(plan.table, following))


def _below(low: Cursor, read_from: Cursor | None) -> bool:
    """Returns whether a window may begin below what was read; of texts only the source knows."""
    if read_from is None or low == read_from:
        return False
    return low.type is CursorType.STRING or low.order < read_from.order


def _build_boundary(plan: TablePlan, batch: int, digest: Digest | None) -> Mapping[str, Any] | None:
    if digest is None:
        return None
    # The same rows count as changed if the spec now reads them as something else.
    read_as = json.dumps([plan.table.schema.jsonValue(), plan.key, plan.deleted], sort_keys=True)
    text = hashlib.sha256(f"{read_as}{digest.text}".encode()).hexdigest()
    return {"batch": batch, "rows": digest.rows, "digest": text}
