"""Groups the stores of one sync: data, state, ledger; each write first confirms the lock.

State and ledger are read once for all tables that a run has locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loader.errors import StateError
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger, SyncRecord
from loader.state import StateBackend, StateRow, TableState, choose_effective_state
from loader.sync.table_plan import TablePlan

_MANY = 8
"""For so many tables, one query over the whole ledger is faster than one look for each."""


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


@dataclass(frozen=True)
class StoredProgress:
    """The progress recorded when the tables were locked; only this run can add to it since.

    Attributes:
        states: by the state's key, the rows of its newest version, or why they cannot be read.
        batches: by source and table, the highest batch that the ledger has; None if it is to be
            asked for each table: for a few, statistics skip most of its files.
    """

    states: Mapping[str, list[StateRow] | StateError]
    batches: Mapping[tuple[str, str], int] | None

    def state(self, plan: TablePlan, tell: Callable[[str], None]) -> TableState | None:
        """Returns a table's state; None if there is none.

        Raises:
            StateError: if it cannot be read, or is not ours.
        """
        for key in keys(plan):
            rows = self.states[key]
            if isinstance(rows, StateError):
                raise rows
            found = choose_effective_state(key, rows, tell)
            if found is not None:
                return found
        return None

    def last_batch(self, plan: TablePlan, ledger: Ledger, since: int) -> int:
        """Returns the highest batch of a table that has a row in the ledger; 0 if none has.

        Args:
            since: looks only at this batch and later ones, if the ledger must be asked.
        """
        if self.batches is None:
            return ledger.last_batch(plan.lake_table, plan.names, since)
        return max(self.batches.get((name, plan.lake_table), 0) for name in plan.names)


def load_progress(plans: Sequence[TablePlan], stores: Stores) -> StoredProgress:
    """Reads the recorded progress of one source's tables."""
    wanted = [key for plan in plans for key in keys(plan)]
    batches = stores.ledger.last_batches() if len(plans) >= _MANY else None
    return StoredProgress(stores.state.latest_by_key(wanted), batches)


def keys(plan: TablePlan) -> list[str]:
    """Returns the keys that a table's state may have: its source may have been renamed."""
    return [f"{name}.{plan.lake_table}" for name in plan.names]
