"""Backfills: read a range of a cursor again, without moving the cursor.

A long range is read in chunks, each its own batch. The state in each chunk's commit records the
progress, so an interrupted backfill resumes where it stopped. As in any sync, rows that raw
already has are redelivered, and dropped.
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
from loader.sync.engine import sync_table
from loader.sync.plan_window import PlannedBatch
from loader.sync.recover import PriorState
from loader.sync.table_plan import TablePlan, parse_cursor
from loader.sync.table_sync import TableSync

BACKFILL = "backfill"
ROWS_A_CHUNK = 1_000_000
"""A range with more rows is cut into chunks by default, if its cursor's type allows it."""
_MOST_CHUNKS = 10_000


@dataclass(frozen=True)
class Backfill:
    """A backfill as the user wrote it; each table parses it by its own cursor's type.

    Attributes:
        low: where to begin, inclusive.
        high: where to end, inclusive; None ends at the stored cursor.
        chunk: the span of the cursor that one batch covers, written like a lookback; None cuts
            by the number of rows.
    """

    low: str
    high: str | None = None
    chunk: str | None = None

    def __call__(self, sync: TableSync) -> SyncRecord:
        """Backfills one table, whose lock is held; returns the sum of its chunks.

        Raises:
            TableError: if the table has no cursor, or was never synced; if the range does not
                fit its cursor.
        """
        chunks: list[tuple[Cursor, Cursor]] = []
        count = 0

        def plan_chunk(sync: TableSync, prior: PriorState) -> PlannedBatch:
            nonlocal count
            low, high = self._range(sync.plan, prior.state)
            whole = {"from": low.text, "to": high.text, "to_cursor": self.high is None}
            if not count:
                before = find_resume_point(prior.state.backfill, whole, high)
                if before is not None:
                    low = _after(before)
                    sync.warn(f"an earlier backfill was interrupted: resuming at {low.text}")
                with localcontext(EXACT):
                    chunks.extend(self._divide(sync.plan, sync.snapshot, low, high))
                count = len(chunks)
            bottom, top = chunks.pop(0)
            number = count - len(chunks)
            sync.report_phase(f"chunk {number} of {count}, {bottom.text} to {top.text}")
            progress = {**whole, "done_to": top.text} if chunks else None
            return _plan_chunk(sync, prior, bottom, top, progress, lambda: bool(chunks))

        return sync_table(sync, plan_chunk)

    def _range(self, plan: TablePlan, state: TableState) -> tuple[Cursor, Cursor]:
        if plan.cursor is None:
            raise TableError(
                "a backfill needs a cursor, and the table "
                + ("is read from the log" if plan.follows_log else "has none"),
                where=f"table {plan.name}, --from",
                remedy="Read everything again with --full-refresh",
            )
        if state.cursor is None or not state.batch:
            raise TableError(
                "nothing was synced yet: there is nothing to read again",
                where=f"table {plan.name}, --from",
                remedy="Run `loader run` first; initial_cursor sets where it begins",
            )
        low = parse_cursor(self.low, plan.cursor.type, f"table {plan.name}, --from")
        high = state.cursor
        if self.high is not None:
            high = parse_cursor(self.high, plan.cursor.type, f"table {plan.name}, --to")
        if plan.cursor.type is not CursorType.STRING and high.order < low.order:
            raise TableError(
                f"the range ends ({high.text}) before it begins ({low.text})",
                where=f"table {plan.name}, --from",
                remedy="Give a --to at or above --from"
                + ("" if self.high else "; without one it is the stored cursor"),
            )
        return low, high

    def _divide(
        self, plan: TablePlan, snapshot: Snapshot, low: Cursor, high: Cursor
    ) -> Iterator[tuple[Cursor, Cursor]]:
        where = f"table {plan.name}, --chunk"
        step: Any = None
        if self.chunk is not None:
            step = _step(self.chunk, low.type, where)
        elif low.type is not CursorType.STRING:
            rows = snapshot.bounds(plan.table, Window(plan.cursor, low, high, nulls=False)).rows
            if rows is not None and rows > ROWS_A_CHUNK:
                step = _share(high.order - low.order, -(-rows // ROWS_A_CHUNK))
        if not step:
            yield low, high
            return
        if (high.order - low.order) / step > _MOST_CHUNKS:
            raise TableError(
                f"{self.chunk} cuts the range into more than {_MOST_CHUNKS} batches"
                if self.chunk
                else f"the range has rows for more than {_MOST_CHUNKS} batches",
                where=where,
                remedy="Give a larger --chunk",
            )
        bottom = low.order
        while bottom <= high.order:
            top = min(bottom + step - _UNITS.get(low.type, 0), high.order)
            yield _cursor(bottom, low.type), _cursor(top, low.type)
            before, bottom = bottom, bottom + step
            if bottom == before:
                raise TableError(
                    f"at {before} the cursor's own values are further apart than {step}",
                    where=where,
                    remedy="Give a larger --chunk",
                )


def find_resume_point(
    progress: Mapping[str, Any] | None, whole: Mapping[str, Any], high: Cursor
) -> Cursor | None:
    """Returns the point that an interrupted backfill of this range reached; None if there was none.

    Args:
        progress: the unfinished backfill that the state records.
        whole: the range: `from`, `to`, and whether that is the stored cursor (`to_cursor`). If it
            is, the cursor may have been moved since, forwards or back.
        high: where the range ends.
    """
    if progress is None or progress.get("from") != whole["from"]:
        return None
    done = Cursor.parse(str(progress["done_to"]), high.type)
    if progress.get("to") == whole["to"]:
        return done
    both_open = progress.get("to_cursor") and whole["to_cursor"]
    return done if both_open and done.order < high.order else None


def _plan_chunk(
    sync: TableSync,
    prior: PriorState,
    bottom: Cursor,
    top: Cursor,
    progress: Mapping[str, Any] | None,
    is_followed: Callable[[], bool],
) -> PlannedBatch:
    """Plans one chunk; the cursor stays, so the state keeps only the backfill's progress."""
    plan, lake = sync.plan, sync.lake
    # Chunks end and begin at whole microseconds; some sources have finer times.
    window = Window(
        plan.cursor,
        bottom,
        top,
        nulls=False,
        whole_microsecond=top.type in (CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ),
    )
    return PlannedBatch(
        window,
        sync.snapshot.bounds(plan.table, window),
        plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy),
        mode=BACKFILL,
        state=replace(prior.state, batch=prior.next_batch, backfill=progress),
        idle_state=replace(prior.state, backfill=progress),
        is_followed=is_followed,
    )


_UNITS: dict[CursorType, Any] = {
    CursorType.INTEGER: 1,
    CursorType.DATE: dt.timedelta(days=1),
    CursorType.TIMESTAMP: dt.timedelta(microseconds=1),
    CursorType.TIMESTAMPTZ: dt.timedelta(microseconds=1),
}
"""The distance between neighbouring values; chunks of other types share their bounds."""


def _step(text: str, type_: CursorType, where: str) -> Any:
    """Returns a chunk's span, as a difference between two cursors of this type."""
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
        remedy="Write '1 day' for dates and timestamps, 10000 for numbers; strings cannot be cut",
    )


def _share(span: Any, pieces: int) -> Any:
    """Divides a span into pieces; rounds up to a whole unit of the cursor."""
    if isinstance(span, dt.timedelta):
        return max(span / pieces, dt.timedelta(microseconds=1))
    if isinstance(span, Decimal):
        return Context().divide(span, pieces)  # 28 digits are enough for where a chunk ends
    return -(-span // pieces) if isinstance(span, int) else span / pieces


def _after(cursor: Cursor) -> Cursor:
    """Returns the next value, or the same one if the type has no next value."""
    unit = _UNITS.get(cursor.type)
    return cursor if unit is None else _cursor(cursor.order + unit, cursor.type)


def _cursor(value: Any, type_: CursorType) -> Cursor:
    text = value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)
    return Cursor.parse(text, type_)
