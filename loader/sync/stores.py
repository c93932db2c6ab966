"""Where one table's sync writes: data, cursors, ledger; asked first whether it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loader.lake.lake import Lake
from loader.lake.ledger import Ledger, SyncRecord
from loader.state import StateBackend, TableState


def _held() -> None:
    """Of stores that are only read, or whose table is held by whoever uses them."""


@dataclass(frozen=True)
class Stores:
    """Where one table's sync writes: data, cursors, ledger.

    Attributes:
        confirm: makes sure that the table is still ours; raises a TableError if another run took
            it over. Asked before each write: what a run wrote after it was taken over would stand
            above what its heir has written.
    """

    lake: Lake
    state: StateBackend
    ledger: Ledger
    confirm: Callable[[], None] = _held

    def store(self, name: str, state: TableState) -> None:
        """Writes a table's state (`source.table`), if the table is still ours."""
        self.confirm()
        self.state.write(name, state)

    def record(self, sync: SyncRecord) -> None:
        """Adds a row to the ledger, if the table is still ours."""
        self.confirm()
        self.ledger.append(sync)
