"""Advances a source's slot to the lowest position that is stored for any of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loader.sources.jdbc.cdc.loads import Loads
from loader.sources.jdbc.cdc.position import Mark
from loader.sources.jdbc.cdc.slot import Slot, SourceSlot


class SlotAdvance:
    """The positions that are stored, by table.

    Attributes:
        marks_of: looks up the stored marks of a table that is not in this run; None if there is no
            such lookup.
    """

    def __init__(self, slot: SourceSlot) -> None:
        self.marks_of: Callable[[str], Sequence[Mapping[str, Any]]] | None = None
        self._slot = slot
        self._stored: dict[str, int | None] = {}

    def put(self, table: str, mark: Mark | None) -> None:
        """Notes a table's stored mark; None if it was not read by the log yet."""
        self._stored[table] = mark.position if mark is not None else None

    def free(self, slot: Slot, loads: Loads) -> None:
        """Moves the slot to the lowest position, unless first loads need it where it is.

        Args:
            slot: as it was when the run began.
        """
        if self._lowest() <= slot.confirmed:
            return
        database = self._slot.database
        with database.connect() as connection:
            self._slot.await_free(connection, database.lock_timeout)
            with loads.none(connection) as none:
                # The marks of first loads that other runs have ended are stored now.
                if not none or not self._knows_all():
                    return
                found = self._slot.read_slot(connection)
                if found is not None and found.confirmed < self._lowest():
                    self._slot.confirm(connection, self._lowest())

    def _lowest(self) -> int:
        return min((p for p in self._stored.values() if p is not None), default=0)

    def _knows_all(self) -> bool:
        """Looks up the tables that are not in this run; returns whether that was possible."""
        known = {name.lower() for name in self._stored}
        for name in self._slot.database.list_cdc_tables():
            if name.lower() not in known:
                if self.marks_of is None:
                    return False
                marks = map(Mark.from_dict, self.marks_of(name))
                held = [mark.position for mark in marks if mark is not None]
                self._stored[name] = min(held, default=None)
        return True
