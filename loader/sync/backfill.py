"""Backfills, which reread a range of cursor values and leave the stored cursor unchanged.

A large range is read in chunks, one batch per chunk. Each commit stores the progress, so an
interrupted backfill resumes after its last committed chunk. As in any sync, rows that the raw table
already contains are not appended again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from typing import Any

from loader.duration import Lookback
from loader.errors import TableError
from loader.lake.ledger import SyncRecord
from loader.lake.raw_table import plan_drift
from loader.rows.cursor import EXACT, Cursor, CursorType
from loader.rows.window import Window
from loader.sources.interface import Snapshot
from loader.state import TableState
from loader.sync.mask_changes import describe_masks
from loader.sync.plan_window import PlannedBatch
from loader.sync.protocol import sync_table
from loader.sync.recover import PriorState
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import TablePlan, parse_cursor

BACKFILL = "backfill"
ROWS_A_CHUNK = 1_000_000
"""The default number of rows per chunk."""
_MAX_CHUNKS = 10_000


@dataclass(frozen=True)
class Backfill:
    """The range of cursor values that the user requested.

    The bounds are strings, because each table parses them as values of its own cursor type.

    Attributes:
        low: the lower bound, inclusive.
        high: the upper bound, inclusive. The default is the stored cursor.
        chunk: the range of cursor values in one chunk, such as `1 day` or `10000`. By default, the
            range is divided so that a chunk has about a million rows; strings are not divided.
    """

    low: str
    high: str | None = None
    chunk: str | None = None

    def __call__(self, sync: SyncContext) -> SyncRecord:
        """Backfills a locked table. Returns a ledger row with the totals of all chunks.

        Raises:
            TableError: if the table has no cursor or was never synced, or if the range or the chunk
                size is not valid for the cursor's type.
        """
        chunks: list[tuple[Cursor, Cursor]] = []
        count = 0

        def plan_chunk(sync: SyncContext, prior: PriorState) -> PlannedBatch:
            nonlocal count
            low, high = self._parse_range(sync.plan, prior.state)
            range_ = {"from": low.text, "to": high.text, "to_cursor": self.high is None}
            if not count:
                resume_point = find_resume_point(prior.state.backfill, range_, high)
                if resume_point is not None:
                    low = _next_value(resume_point)
                    sync.warn(f"an earlier backfill was interrupted: resuming at {low.text}")
                with localcontext(EXACT):
                    chunks.extend(self._divide_range(sync.plan, sync.snapshot, low, high))
                count = len(chunks)
            chunk_low, chunk_high = chunks.pop(0)
            number = count - len(chunks)
            sync.report_phase(f"chunk {number} of {count}, {chunk_low.text} to {chunk_high.text}")
            progress = {**range_, "done_to": chunk_high.text} if chunks else None
            return _plan_chunk(sync, prior, chunk_low, chunk_high, progress, lambda: bool(chunks))

        return sync_table(sync, plan_chunk)

    def _parse_range(self, plan: TablePlan, state: TableState) -> tuple[Cursor, Cursor]:
        if plan.cursor is None:
            raise TableError(
                "a backfill needs a cursor, but the table "
                + ("is read from the log" if plan.follows_log else "has none"),
                where=f"table {plan.name}, --from",
                remedy="Reload the table with --full-refresh",
            )
        if state.cursor is None or not state.batch:
            raise TableError(
                "the table was never synced, so there is nothing to reread",
                where=f"table {plan.name}, --from",
                remedy="Run `loader run` first; initial_cursor sets where the first sync starts",
            )
        low = parse_cursor(self.low, plan.cursor.type, f"table {plan.name}, --from")
        high = state.cursor
        if self.high is not None:
            high = parse_cursor(self.high, plan.cursor.type, f"table {plan.name}, --to")
        if plan.cursor.type is not CursorType.STRING and high.order < low.order:
            raise TableError(
                f"the range ends ({high.text}) before it starts ({low.text})",
                where=f"table {plan.name}, --from",
                remedy="Set --to to a value at or above --from"
                + ("" if self.high else "; the default is the stored cursor"),
            )
        return low, high

    def _divide_range(
        self, plan: TablePlan, snapshot: Snapshot, low: Cursor, high: Cursor
    ) -> Iterator[tuple[Cursor, Cursor]]:
        where = f"table {plan.name}, --chunk"
        step: Any = None
        if self.chunk is not None:
            step = _parse_chunk_size(self.chunk, low.type, where)
        elif low.type is not CursorType.STRING:
            rows = snapshot.bounds(plan.table, Window(plan.cursor, low, high, nulls=False)).rows
            if rows is not None and rows > ROWS_A_CHUNK:
                step = _divide_span(high.order - low.order, -(-rows // ROWS_A_CHUNK), low.type)
        if not step:
            yield low, high
            return
        if (high.order - low.order) / step > _MAX_CHUNKS:
            raise TableError(
                f"{self.chunk} divides the range into more than {_MAX_CHUNKS} batches"
                if self.chunk
                else f"the range has rows for more than {_MAX_CHUNKS} batches",
                where=where,
                remedy="Set a larger --chunk",
            )
        chunk_low = low.order
        while chunk_low <= high.order:
            chunk_high = min(chunk_low + step - _UNITS.get(low.type, 0), high.order)
            yield _to_cursor(chunk_low, low.type), _to_cursor(chunk_high, low.type)
            previous, chunk_low = chunk_low, chunk_low + step
            if chunk_low == previous:
                raise TableError(
                    f"at {previous}, neighbouring values of the type are further apart than {step}",
                    where=where,
                    remedy="Set a larger --chunk",
                )


def find_resume_point(
    progress: Mapping[str, Any] | None, range_: Mapping[str, Any], high: Cursor
) -> Cursor | None:
    """Returns the cursor after which an interrupted backfill of this range resumes.

    Returns None if no backfill of this range was interrupted.

    Args:
        progress: the `backfill` entry of the table's state.
        range_: a mapping with `from`, `to` and `to_cursor`. `to_cursor` says whether `to` is the
            stored cursor, which may have changed since the interruption.
    """
    if progress is None or progress.get("from") != range_["from"]:
        return None
    done = Cursor.parse(str(progress["done_to"]), high.type)
    if progress.get("to") == range_["to"]:
        return done
    both_end_at_cursor = progress.get("to_cursor") and range_["to_cursor"]
    return done if both_end_at_cursor and done.order < high.order else None


def _plan_chunk(
    sync: SyncContext,
    prior: PriorState,
    low: Cursor,
    high: Cursor,
    progress: Mapping[str, Any] | None,
    is_followed: Callable[[], bool],
) -> PlannedBatch:
    """Plans one chunk. The stored cursor does not change."""
    plan, lake = sync.plan, sync.lake
    drift = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
    state = replace(
        prior.state,
        backfill=progress,
        selection=prior.partial_selection,
        masks=describe_masks(plan, prior.state.masks, drift.added),
    )
    if (drift.included or drift.excluded) and not plan.key:
        raise TableError(
            "the `columns` option has changed since the last sync, and the table has no key",
            where=f"table {plan.name}, --from",
            remedy="Run `loader run` without --from first: it reads all rows again",
        )
    # Chunks end at whole microseconds. If the source stores more precise times, it must return
    # every row in the chunk's final microsecond, including its fractions.
    window = Window(
        plan.cursor,
        low,
        high,
        nulls=False,
        whole_microsecond=high.type in (CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ),
    )
    return PlannedBatch(
        window,
        sync.snapshot.bounds(plan.table, window),
        drift.defer_added(),
        mode=BACKFILL,
        state=replace(state, batch=prior.next_batch),
        idle_state=replace(prior.state, backfill=progress),
        is_followed=is_followed,
    )


_UNITS: dict[CursorType, Any] = {
    CursorType.INTEGER: 1,
    CursorType.DATE: dt.timedelta(days=1),
    CursorType.TIMESTAMP: dt.timedelta(microseconds=1),
    CursorType.TIMESTAMPTZ: dt.timedelta(microseconds=1),
}
"""The smallest step of each type. In other types, a chunk starts where the previous one ends."""


def _parse_chunk_size(text: str, type_: CursorType, where: str) -> Any:
    """Parses a chunk size such as `1 day` or `10000`."""
    try:
        chunk = Lookback.parse(text)
    except ValueError as problem:
        raise TableError(str(problem), where=where, remedy="Write '1 day', or 10000") from None
    if type_.is_time and chunk.seconds:
        days = -(-chunk.seconds // 86400)
        return (
            dt.timedelta(days=days) if type_ is CursorType.DATE else dt.timedelta(0, chunk.seconds)
        )
    if type_.is_number and chunk.steps:
        return Decimal(chunk.steps) if type_ is CursorType.DECIMAL else chunk.steps
    raise TableError(
        f"{text!r} does not fit a cursor of type {type_.value}",
        where=where,
        remedy="Write '1 day' for dates and timestamps, 10000 for numbers; ranges of strings "
        "cannot be divided",
    )


def _divide_span(span: Any, pieces: int, type_: CursorType) -> Any:
    """Divides a span into equal chunks. Returns the size of a chunk, which is at least one unit."""
    if isinstance(span, dt.timedelta):
        return max(span / pieces, _UNITS[type_])
    if isinstance(span, Decimal):
        return Context().divide(span, pieces)  # 28 digits are precise enough for a chunk's end
    return -(-span // pieces) if isinstance(span, int) else span / pieces


def _next_value(cursor: Cursor) -> Cursor:
    """Returns the next value, or `cursor` itself if its type has no smallest step."""
    unit = _UNITS.get(cursor.type)
    return cursor if unit is None else _to_cursor(cursor.order + unit, cursor.type)


def _to_cursor(value: Any, type_: CursorType) -> Cursor:
    text = value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)
    return Cursor.parse(text, type_)
