"""Where cursors live: one narrow interface, and what every backend has in common.

A backend stores rows ``key, value, version``; it only ever adds. The newest version of a key
wins; a null version counts as 0 (CloudQuery's first state tables have none).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loader.cursor import Cursor, CursorType, stored
from loader.errors import StateError


@dataclass(frozen=True)
class StateRow:
    """One stored version of a key."""

    key: str
    value: str
    version: int
    updated_at: str | None = None


@dataclass(frozen=True)
class TableState:
    """What a state value says: the cursor, and the batch it covers.

    Attributes:
        batch: the newest batch whose rows the cursor stands for.
        generation: the generation new rows are appended in.
        cursor: None where no row with a cursor was seen yet, or the table has none.
        cursor_field: the column the cursor is of.
        mark: what the connector remembered with it (PostgreSQL: its transaction horizon).
    """

    batch: int = 0
    generation: int = 1
    cursor: Cursor | None = None
    cursor_field: str | None = None
    mark: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """The value as stored: keys sorted, the cursor as text."""
        value: dict[str, Any] = {
            "batch": self.batch,
            "cursor": self.cursor.text if self.cursor else None,
            "cursor_field": self.cursor_field,
            "cursor_type": self.cursor.type.value if self.cursor else None,
            "generation": self.generation,
        }
        if self.mark is not None:
            value["mark"] = dict(self.mark)
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, key: str) -> TableState:
        """Reads a stored value.

        Raises:
            StateError: where the value is not one of ours. It is refused, as starting from
                nothing would send every row again, and guessing could skip some.
        """
        try:
            value: Any = json.loads(text)
            if not isinstance(value, dict) or "batch" not in value:
                raise ValueError("it is not a JSON object with a batch")
            cursor = None
            if value.get("cursor") is not None:
                CursorType(value["cursor_type"])
                cursor = stored(str(value["cursor"]), value["cursor_type"], key)
            return cls(
                batch=int(value["batch"]),
                generation=int(value.get("generation") or 1),
                cursor=cursor,
                cursor_field=value.get("cursor_field"),
                mark=value.get("mark"),
            )
        except (ValueError, KeyError, TypeError) as problem:
            raise StateError(
                f"the stored state {text[:80]!r} was not written by this loader ({problem})",
                where=f"state {key}",
                remedy="Set a cursor with `loader state set`, or start over with "
                "`loader state reset`",
            ) from None

    def moved(self, cursor: Cursor | None, field: str | None) -> TableState:
        """The same state with another cursor."""
        return replace(self, cursor=cursor, cursor_field=field)


class StateBackend(ABC):
    """Stores state rows; a new backend is one class with these four methods."""

    @abstractmethod
    def prepare(self) -> None:
        """Makes what the backend needs, where it is not there yet."""

    @abstractmethod
    def rows(self, key: str | None = None) -> list[StateRow]:
        """All rows, or one key's, newest version first within a key.

        Raises:
            StateError: where the backend cannot be read.
        """

    @abstractmethod
    def append(self, row: StateRow) -> None:
        """Adds a row, durably, before it returns."""

    @abstractmethod
    def newest(self, key: str) -> StateRow | None:
        """The row of the highest version, cheap also where a key has thousands."""

    def read(self, key: str) -> TableState | None:
        """The state of a table; None where there is none."""
        row = self.newest(key)
        return TableState.from_json(row.value, key) if row is not None else None

    def write(self, key: str, state: TableState) -> StateRow | None:
        """Adds the next version, unless the newest says the same already."""
        newest = self.newest(key)
        value = state.to_json()
        if newest is not None and newest.value == value:
            return None
        row = StateRow(key, value, (newest.version if newest else 0) + 1)
        self.append(row)
        return row
