"""Groups the stores of one sync: data, state, ledger; each write first confirms the lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loader.lake.lake import Lake
from loader.lake.ledger import Ledger, SyncRecord
from loader.state import StateBackend, TableState


def _accept_lock() -> None:
    """The `confirm` of stores that are only read, or whose user holds the lock anyway."""


@dataclass(frozen=True)
class Stores:
    """The stores that one table's sync writes to: data, state, ledger.

    Attributes:
        confirm: makes sure that the lock is still ours; raises a TableError if another run took
            it over. Called before each write: writes after the loss of the lock would supersede the
            new owner's.
    """

    lake: Lake
    state: StateBackend
    ledger: Ledger
    confirm: Callable[[], None] = _accept_lock

    def store(self, name: str, state: TableState) -> None:
        """Writes a table's state (`source.table`), if the lock is still ours."""
        self.confirm()
        self.state.write(name, state)

    def record(self, sync: SyncRecord) -> None:
        """Adds a row to the ledger, if the lock is still ours."""
        self.confirm()
        self.ledger.append(sync)
