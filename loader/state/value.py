"""Reads and writes state values, and chooses the valid one of several rows: pure functions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loader.errors import NewerStateError, StateError
from loader.rows.cursor import Cursor, CursorType, parse_stored
from loader.rows.window import BY_HAND
from loader.spec.redaction import excerpt

FORMAT = 1
"""The form of stored values that this loader knows. Values without `format` have form 1.

A later loader whose values mean something else writes a higher number, and this one refuses them
instead of ignoring what it does not know.
"""

LARGEST = 2**62
"""No version, batch or generation is higher: tables hold them in 64 bits, and the next must fit."""

_REMEDY = "Set a cursor with `loader state set`, or start over with `loader state reset`"


@dataclass(frozen=True)
class StateRow:
    """One stored version of a key.

    Attributes:
        version: +1 at each change; a null in an older tool's table counts as 0.
        updated_at: when it was written, text in UTC; None if the store does not know.
    """

    key: str
    value: str
    version: int
    updated_at: str | None = None


@dataclass(frozen=True)
class TableState:
    """The content of a state value: the cursor, and the batch it covers.

    Attributes:
        batch: the newest batch whose rows the cursor covers.
        generation: the newest generation. New rows are appended in it, or in their key's: see
            :func:`loader.rows.redelivery.assign_generation`.
        base: the generation of the newest complete read, if later generations overruled cursors;
            None if it is `generation`.
        cursor: None if no row with a cursor was seen yet, or the table has none.
        cursor_field: the cursor's column.
        mark: the connector's own state as of it (PostgreSQL: its transaction horizon).
        backfill: the progress of an unfinished backfill: from, to, done_to, and whether that end is
            the stored cursor (to_cursor).
        boundary: the digest of the next window's first rows; see
            :mod:`loader.sync.boundary_digest`.
    """

    batch: int = 0
    generation: int = 1
    cursor: Cursor | None = None
    cursor_field: str | None = None
    mark: Mapping[str, Any] | None = None
    base: int | None = None
    backfill: Mapping[str, Any] | None = None
    boundary: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Returns the value as stored: keys sorted, the cursor as text."""
        value: dict[str, Any] = {
            "batch": self.batch,
            "cursor": self.cursor.text if self.cursor else None,
            "cursor_field": self.cursor_field,
            "cursor_type": self.cursor.type.value if self.cursor else None,
            "generation": self.generation,
        }
        if self.base is not None:
            value["base_generation"] = self.base
        if self.mark is not None:
            value["mark"] = dict(self.mark)
        if self.backfill is not None:
            value["backfill"] = dict(self.backfill)
        if self.boundary is not None:
            value["boundary"] = dict(self.boundary)
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, key: str) -> TableState:
        """Reads a stored value.

        Raises:
            NewerStateError: if a newer loader has written it.
            StateError: if the value is not one of ours. It is refused, because starting from
                nothing would read every row again, and guessing could skip some.
        """
        try:
            value: Any = json.loads(text)
            if not isinstance(value, dict) or "batch" not in value:
                raise ValueError("it is not a JSON object with a batch")
            _refuse_newer(_count(value.get("format", FORMAT), "format", 1), key)
            text_of, field, mark = (value.get(k) for k in ("cursor", "cursor_field", "mark"))
            base, backfill = value.get("base_generation"), value.get("backfill")
            cursor = None
            if text_of is not None:
                if not isinstance(text_of, str):
                    raise ValueError("its cursor is not a string")
                cursor = parse_stored(text_of, CursorType(value["cursor_type"]).value, key)
            if not isinstance(field, str | None) or not isinstance(mark, dict | None):
                raise ValueError("its cursor_field or mark has the wrong type")
            boundary = value.get("boundary")
            if not isinstance(backfill, dict | None) or not isinstance(boundary, dict | None):
                raise ValueError("its backfill or boundary has the wrong type")
            return cls(
                batch=_count(value["batch"], "batch", 0),
                generation=_count(value.get("generation", 1), "generation", 1),
                cursor=cursor,
                cursor_field=field,
                mark=mark,
                base=_count(base, "base_generation", 1) if base is not None else None,
                backfill=backfill,
                boundary=boundary,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            why = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
            shown = excerpt(str(text), 80)
            raise StateError(
                f"the stored state {shown!r} was not written by this loader ({why})",
                where=f"state {key}",
                remedy=_REMEDY,
            ) from None

    @staticmethod
    def refuse_newer(text: str, key: str) -> None:
        """Refuses a value that a newer loader has written; any other passes.

        Raises:
            NewerStateError: if so; the next version would replace it and say less.
        """
        try:
            value: Any = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return
        form = value.get("format") if isinstance(value, dict) else None
        if isinstance(form, int):
            _refuse_newer(form, key)

    def move_cursor(self, cursor: Cursor | None, field: str | None) -> TableState:
        """Returns the same state with another cursor, without what was known about the old one."""
        return replace(self, cursor=cursor, cursor_field=field, mark=None, boundary=None)

    def set_by_hand(self, cursor: Cursor) -> TableState:
        """Returns the same state with a cursor that the user chose.

        The mark stays unless the cursor skips rows: rows in flight at the last sync may still
        come. It records that the user set the cursor, in case the source is another one by now.
        """
        moved = self.move_cursor(cursor, self.cursor_field)
        if self.mark is None or self.cursor is None:
            return moved
        if cursor.type is CursorType.STRING:
            skips = cursor != self.cursor
        else:
            skips = cursor.order > self.cursor.order
        return moved if skips else replace(moved, mark={**self.mark, BY_HAND: True})


def choose_effective_row(rows: Sequence[StateRow], tell: Callable[[str], None]) -> StateRow | None:
    """Returns the row in effect among those of a key's newest version; None if there are none.

    Rows with equal values count as one. If values differ, the safe one counts: the lower batch
    (the next run rolls it forward from the data), then the lower cursor, which reads more again.

    Args:
        tell: gets a warning if rows differ.

    Raises:
        StateError: if rows differ and one is not ours, or none is safer than the others.
    """
    different = {row.value: row for row in rows}
    if len(different) <= 1:
        return next(iter(different.values()), None)
    key, version = rows[0].key, rows[0].version
    read = [(TableState.from_json(row.value, key), row) for row in different.values()]
    lowest = min(state.batch for state, _ in read)
    read = [(state, row) for state, row in read if state.batch == lowest]
    if len(read) > 1:
        read = [min(read, key=_reach([state for state, _ in read], key, version))]
    state, row = read[0]
    shown = state.cursor.text if state.cursor else "none"
    tell(
        f"the state has {len(different)} different values of version {version}: "
        f"the safe one counts, batch {state.batch}, cursor {shown}"
    )
    return row


def _reach(
    states: Sequence[TableState], key: str, version: int
) -> Callable[[tuple[TableState, StateRow]], Any]:
    """Returns a sort key for states of one batch, lowest first.

    Raises:
        StateError: if they cannot be ordered: cursors of different columns, strings (their order
            is the database's), equal cursors with different marks or generations.
    """
    cursors = [state.cursor for state in states if state.cursor]
    kinds = {(s.cursor_field, s.cursor.type) for s in states if s.cursor}
    nulls = len(states) - len(cursors)
    texts = any(cursor.type is CursorType.STRING for cursor in cursors) and not nulls
    orders = {cursor.order for cursor in cursors}
    if nulls > 1 or (not nulls and (len(kinds) > 1 or texts or len(orders) < len(cursors))):
        raise StateError(
            f"there are different values of version {version}, and none is safer than the others",
            where=f"state {key}",
            remedy=f"`loader state show {key}` shows them. {_REMEDY}",
        )
    if nulls:
        return lambda each: each[0].cursor is not None
    return lambda each: each[0].cursor.order if each[0].cursor else None


def parse_time(text: str | None) -> dt.datetime:
    """Returns a row's time; now if it has none. Raises ValueError if it is not an ISO time."""
    if text is None:
        return dt.datetime.now(dt.timezone.utc)
    found = dt.datetime.fromisoformat(text)
    return (
        found.astimezone(dt.timezone.utc) if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)
    )


def format_time(moment: dt.datetime) -> str:
    """Formats a time as rows show it: ``2025-01-01 00:00:00.5``, in UTC, as Spark writes it."""
    text = moment.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _refuse_newer(form: int, key: str) -> None:
    if form > FORMAT:
        raise NewerStateError(
            f"a newer loader has written the stored state (form {form}, this one knows {FORMAT})",
            where=f"state {key}",
            remedy="Upgrade the loader here: going on with this one would lose rows",
        )


def _count(value: object, name: str, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        if value > LARGEST:
            raise ValueError(f"its {name} has {len(str(value))} digits")
        return value
    raise ValueError(f"its {name} is {value!r}")
