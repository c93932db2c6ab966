"""Parses and formats state values, and chooses one of several conflicting rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loader.errors import NewerStateError, StateError
from loader.rows.cursor import Cursor, CursorType, parse_stored
from loader.rows.window import BY_HAND
from loader.spec.redaction import excerpt

FORMAT = 1
"""The highest format of state values that this loader can read.

Values without `format` have format 1. A later loader that changes the meaning of values writes a
higher format, which this loader rejects.
"""

LARGEST = 2**62
"""The highest valid version, batch or generation. The next number still fits in 64 bits."""

MIXED = "mixed"
"""The selection to store if the raw table's batches have different selections."""

_RESET = "reset "
"""The prefix that `loader state reset` adds to the selection in a state."""

_TYPES = {
    **dict.fromkeys(("cursor", "cursor_field", "selection", "table_id"), str),
    **dict.fromkeys(("mark", "backfill", "boundary", "masks"), dict),
}
"""The types of a state value's entries. Each entry may be missing."""

_REMEDY = "Set a cursor with `loader state set`, or start over with `loader state reset`"


@dataclass(frozen=True)
class StateRow:
    """One stored version of a key.

    Attributes:
        version: increases by 1 with each change; 0 if another tool stored a null.
        updated_at: the time at which the row was written, as a string in UTC; None if the store
            does not record times.
    """

    key: str
    value: str
    version: int
    updated_at: str | None = None


@dataclass(frozen=True)
class TableState:
    """The content of a state value, mainly the cursor and the batch.

    Attributes:
        batch: the number of the newest batch, whose rows the cursor includes.
        generation: the newest generation. New rows go into it, unless the source may return several
            versions of a key (:func:`loader.rows.version_order.assign_generation`).
        base: the generation of the last full read; None if it equals `generation`.
        cursor: the cursor; None if there is no cursor column, or if no row has had a cursor so far.
        mark: the connector's opaque state at this cursor, such as PostgreSQL's open transactions.
        backfill: the progress of an unfinished backfill. It has the entries `from`, `to`,
            `done_to`, and `to_cursor` (whether `to` is the stored cursor).
        boundary: the digest of the rows at the next window's lower bound; see
            :mod:`loader.sync.boundary_digest`.
        selection: describes which rows the source selected in the last full read and in the syncs
            since (:attr:`loader.sources.interface.SourceTable.selection`). See also
            :meth:`start_over`.
        masks: the masks of the raw table's columns, and the id of the key that the masks use; see
            :mod:`loader.sync.mask_changes`.
        table_id: the id of the raw table to which the state belongs
            (:data:`loader.lake.raw_table.IDENTITY`); None if an older loader wrote the state. The
            id is ignored when states are compared.
    """

    batch: int = 0
    generation: int = 1
    cursor: Cursor | None = None
    cursor_field: str | None = None
    mark: Mapping[str, Any] | None = None
    base: int | None = None
    backfill: Mapping[str, Any] | None = None
    boundary: Mapping[str, Any] | None = None
    selection: str = ""
    masks: Mapping[str, Any] | None = None
    table_id: str | None = field(default=None, compare=False)

    def to_json(self) -> str:
        """Formats the state as JSON with sorted keys."""
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
        if self.selection:
            value["selection"] = self.selection
        if self.masks is not None:
            value["masks"] = dict(self.masks)
        if self.table_id is not None:
            value["table_id"] = self.table_id
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, key: str) -> TableState:
        """Parses a stored value.

        Raises:
            NewerStateError: if a newer loader wrote the value.
            StateError: if this loader did not write the value. Ignoring the value would mean
                rereading all rows, and guessing the cursor could skip rows.
        """
        try:
            value: Any = json.loads(text)
            if not isinstance(value, dict) or "batch" not in value:
                raise ValueError("it is not a JSON object with a batch")
            _check_format(_parse_count(value.get("format", FORMAT), "format", 1), key)
            for name, kind in _TYPES.items():
                if not isinstance(value.get(name), kind | None):
                    raise ValueError(f"its entry {name!r} has the wrong type")
            text_of, masks, base = (value.get(n) for n in ("cursor", "masks", "base_generation"))
            if not isinstance((masks or {}).get("columns", {}), dict):
                raise ValueError("its entry 'masks' has the wrong type")
            cursor = None
            if text_of is not None:
                cursor = parse_stored(text_of, CursorType(value["cursor_type"]).value, key)
            return cls(
                batch=_parse_count(value["batch"], "batch", 0),
                generation=_parse_count(value.get("generation", 1), "generation", 1),
                cursor=cursor,
                cursor_field=value.get("cursor_field"),
                mark=value.get("mark"),
                base=_parse_count(base, "base_generation", 1) if base is not None else None,
                backfill=value.get("backfill"),
                boundary=value.get("boundary"),
                selection=value.get("selection") or "",
                masks=masks,
                table_id=value.get("table_id"),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            why = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
            stored_text = excerpt(str(text), 80)
            raise StateError(
                f"the stored state {stored_text!r} was not written by this loader ({why})",
                where=f"state {key}",
                remedy=_REMEDY,
            ) from None

    @staticmethod
    def refuse_newer(text: str, key: str) -> None:
        """Raises a NewerStateError if a newer loader wrote the value. Ignores other invalid values.

        Overwriting a newer loader's value could lose content.
        """
        try:
            value: Any = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return
        format_ = value.get("format") if isinstance(value, dict) else None
        if isinstance(format_, int):
            _check_format(format_, key)

    def move_cursor(self, cursor: Cursor | None, field: str | None) -> TableState:
        """Returns a copy with a different cursor, without the old checkpoint and digest."""
        return replace(self, cursor=cursor, cursor_field=field, mark=None, boundary=None)

    def start_over(self) -> TableState:
        """Returns a copy without a cursor, so that the next sync reads all rows.

        If the spec selects rows with a filter or a query, the copy records the reset. Without this
        record, rows that no longer match the filter would never become tombstones.
        """
        selection = self.selection
        if selection and not selection.startswith(_RESET):
            selection = f"{_RESET}{selection}"
        return replace(self.move_cursor(None, self.cursor_field), selection=selection)

    def was_reset(self, selection: str) -> bool:
        """Returns whether the state was reset and had this selection before the reset."""
        return self.selection == f"{_RESET}{selection}"

    def set_by_hand(self, cursor: Cursor) -> TableState:
        """Returns a copy with a cursor that the user has set.

        The checkpoint is kept unless the new cursor skips rows, because transactions that were open
        at the last sync may still commit rows. A kept checkpoint records that a user set the
        cursor, which matters if the source is replaced.
        """
        moved = self.move_cursor(cursor, self.cursor_field)
        if self.mark is None or self.cursor is None:
            return moved
        if cursor.type is CursorType.STRING:
            skips = cursor != self.cursor
        else:
            skips = cursor.order > self.cursor.order
        return moved if skips else replace(moved, mark={**self.mark, BY_HAND: True})


def choose_effective_row(rows: Sequence[StateRow], warn: Callable[[str], None]) -> StateRow | None:
    """Chooses the row that is in effect among the rows of a key's highest version.

    Returns None if there are no rows. If values differ, chooses the value with the lowest batch,
    because the next run updates it from the data. If batches are equal, chooses the value with the
    lowest cursor, because it skips no rows.

    Args:
        warn: called with a warning if values differ.

    Raises:
        StateError: if values differ, and their cursors cannot be ordered or this loader did not
            write one of them.
    """
    different = {row.value: row for row in rows}
    if len(different) <= 1:
        return next(iter(different.values()), None)
    key, version = rows[0].key, rows[0].version
    states = [(TableState.from_json(row.value, key), row) for row in different.values()]
    lowest = min(state.batch for state, _ in states)
    same: list[tuple[TableState, StateRow]] = []
    for state, row in states:
        if state.batch == lowest and all(state != other for other, _ in same):
            same.append((state, row))  # states that differ only in the table's id count as equal
    states = same
    if len(states) > 1:
        states = [min(states, key=_order_by_cursor([state for state, _ in states], key, version))]
    state, row = states[0]
    cursor = state.cursor.text if state.cursor else "none"
    warn(
        f"the state has {len(different)} different values of version {version}: "
        f"the safest value is used (batch {state.batch}, cursor {cursor})"
    )
    return row


def _order_by_cursor(
    states: Sequence[TableState], key: str, version: int
) -> Callable[[tuple[TableState, StateRow]], Any]:
    """Returns a sort key that orders states of the same batch by their cursors.

    Raises a StateError if they cannot be ordered, for example because the cursors are from
    different columns, are strings, which only the database can order, or are equal although the
    checkpoints or generations differ.
    """
    cursors = [state.cursor for state in states if state.cursor]
    kinds = {(s.cursor_field, s.cursor.type) for s in states if s.cursor}
    nulls = len(states) - len(cursors)
    texts = any(cursor.type is CursorType.STRING for cursor in cursors) and not nulls
    orders = {cursor.order for cursor in cursors}
    if nulls > 1 or (not nulls and (len(kinds) > 1 or texts or len(orders) < len(cursors))):
        raise StateError(
            f"there are different values of version {version}, and their cursors cannot be ordered",
            where=f"state {key}",
            remedy=f"`loader state show {key}` shows them. {_REMEDY}",
        )
    if nulls:
        return lambda each: each[0].cursor is not None
    return lambda each: each[0].cursor.order if each[0].cursor else None


def parse_time(text: str | None) -> dt.datetime:
    """Parses a row's time. Returns the current time if `text` is None.

    Raises a ValueError if `text` is not an ISO time.
    """
    if text is None:
        return dt.datetime.now(dt.timezone.utc)
    time = dt.datetime.fromisoformat(text)
    return time.astimezone(dt.timezone.utc) if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)


def format_time(time: dt.datetime) -> str:
    """Formats a time in UTC as Spark does, for example ``2025-01-01 00:00:00.5``."""
    text = time.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check_format(format_: int, key: str) -> None:
    if format_ > FORMAT:
        raise NewerStateError(
            f"a newer loader wrote the stored state (its format is {format_}, this version "
            f"reads {FORMAT})",
            where=f"state {key}",
            remedy="Upgrade the loader here: this version could lose rows",
        )


def _parse_count(value: object, name: str, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        if value > LARGEST:
            raise ValueError(f"its {name} has {len(str(value))} digits")
        return value
    raise ValueError(f"its {name} is {value!r}")
