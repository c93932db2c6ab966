"""Backfills: read a range of a cursor again, without moving the cursor.

A long range is read in chunks, each its own batch. The state in each chunk's commit records the
progress, so an interrupted backfill resumes where it stopped. As in any sync, rows that raw
already has are redelivered, and dropped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from typing import Any

from loader.duration import Lookback
from loader.errors import TableError
from loader.lake.ledger import SyncRecord
from loader.rows.cursor import EXACT, Cursor, CursorType
from loader.rows.window import Window
from loader.sources import Snapshot
from loader.state import TableState
from loader.sync.attempt import TableSync
from loader.sync.batch import CommitMetadata
from loader.sync.plan import Plan, parse_cursor
from loader.sync.protocol import extract_and_append, finish
from loader.sync.recovery import PriorState, recover

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

    def __call__(self, attempt: TableSync) -> SyncRecord:
        """Backfills one table, whose lock is held; returns the sum of its chunks.

        Raises:
            TableError: if the table has no cursor, or was never synced; if the range does not
                fit its cursor.
        """
        plan = attempt.plan
        with attempt.unlocking():
            attempt.report_step("locked")
            known = recover(attempt)
            low, high = self._range(plan, known.state)
            whole = {"from": low.text, "to": high.text, "to_cursor": self.high is None}
            before = done_to(known.state.backfill, whole, high)
            if before is not None:
                low = _after(before)
                attempt.warn(f"an earlier backfill was interrupted: resuming at {low.text}")
            total = None
            with localcontext(EXACT):
                pieces = list(self._pieces(plan, attempt.snapshot, low, high))
            for number, (bottom, top) in enumerate(pieces, start=1):
                attempt.phase(f"chunk {number} of {len(pieces)}, {bottom.text} to {top.text}")
                last = number == len(pieces)
                state = replace(
                    known.state,
                    batch=known.next_batch,
                    backfill=None if last else {**whole, "done_to": top.text},
                )
                # Chunks end and begin at whole microseconds; some sources have finer times.
                window = Window(
                    plan.cursor,
                    bottom,
                    top,
                    nulls=False,
                    whole_microsecond=top.type in (CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ),
                )
                done, known = _chunk(attempt, known, state, window)
                total = done if total is None else total.plus(done)
        assert total is not None  # a range has at least one chunk
        return total

    def _range(self, plan: Plan, state: TableState) -> tuple[Cursor, Cursor]:
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

    def _pieces(
        self, plan: Plan, snapshot: Snapshot, low: Cursor, high: Cursor
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


def done_to(
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


def _chunk(
    attempt: TableSync, known: PriorState, after: TableState, window: Window
) -> tuple[SyncRecord, PriorState]:
    """Reads one chunk by the steps of a sync; returns its ledger row and the new prior state."""
    bounds = attempt.snapshot.bounds(attempt.plan.table, window)
    attempt.report_step("windowed")
    record = replace(attempt.record(after, BACKFILL, window, bounds), rows_null_cursor=bounds.nulls)
    intent, commit = extract_and_append(attempt, window, bounds, CommitMetadata(record, after))
    if commit is None:
        intent = replace(intent, after=replace(known.state, backfill=after.backfill))
    done = finish(attempt, known, intent, commit)
    next_batch = known.next_batch + (1 if commit else 0)
    return done, replace(known, state=intent.after, next_batch=next_batch)


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
