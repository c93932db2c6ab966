"""The lake, state store and ledger that a sync uses. Each write first confirms the table's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loader.errors import StateError
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger, SyncRecord
from loader.lake.raw_table import find_table_id
from loader.state import StateBackend, StateRow, TableState, choose_effective_state
from loader.sync.table_plan import TablePlan

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MANY_TABLES = 8
"""For this number of tables or more, one query of the whole ledger is faster than one per table."""


@dataclass(frozen=True)
class Stores:
    """The stores to which a table's sync writes.

    Attributes:
        confirm: raises a TableError if another run has acquired the table's lock. It is called
            before each write, so that the data of the lock's new owner is not overwritten. By
            default, does nothing: the caller only reads, or already holds the lock.
        signing_key: signs the receipts of batches; None if the spec requests no receipts.
    """

    lake: Lake
    state: StateBackend
    ledger: Ledger
    confirm: Callable[[], None] = lambda: None
    signing_key: Ed25519PrivateKey | None = None

    def store(self, name: str, state: TableState) -> None:
        """Writes the state of a table (`source.table`) if this run still holds the lock."""
        self.confirm()
        self.state.write(name, self.add_table_id(name, state))

    def add_table_id(self, name: str, state: TableState) -> TableState:
        """Returns the state of a table (`source.table`) with the id of its raw table."""
        return replace(state, table_id=find_table_id(self.lake, name.partition(".")[2]))

    def is_foreign(self, name: str, state: TableState) -> bool:
        """Returns whether a state belongs to a raw table in another lake.

        Its cursor may be ahead of the raw table in this lake, even if the batch number is the same.
        """
        own_id = find_table_id(self.lake, name.partition(".")[2])
        return None not in (state.table_id, own_id) and state.table_id != own_id

    def record(self, sync: SyncRecord) -> None:
        """Adds a row to the ledger if this run still holds the lock."""
        self.confirm()
        self.ledger.append(sync)


@dataclass(frozen=True)
class StoredProgress:
    """The state and ledger batches of locked tables, which no other run can change.

    Attributes:
        states: maps each key to the rows of its newest version, or to the error from reading them.
        batches: maps each source and table to the highest batch in the ledger. None if there are
            only a few tables: one query per table is then faster, because it uses file statistics.
    """

    states: Mapping[str, list[StateRow] | StateError]
    batches: Mapping[tuple[str, str], int] | None

    def find_state(self, plan: TablePlan, warn: Callable[[str], None]) -> TableState | None:
        """Returns a table's state, or None if no state exists.

        Raises a StateError if the state is unreadable or was not written by this loader.
        """
        for key in list_state_keys(plan):
            rows = self.states[key]
            if isinstance(rows, StateError):
                raise rows
            state = choose_effective_state(key, rows, warn)
            if state is not None:
                return state
        return None

    def find_last_batch(self, plan: TablePlan, ledger: Ledger, since: int) -> int:
        """Returns the highest batch number that the ledger has for a table, or 0 if it has none.

        Args:
            since: batches below this number may be ignored.
        """
        if self.batches is None:
            return ledger.last_batch(plan.lake_table, plan.names, since)
        return max(self.batches.get((name, plan.lake_table), 0) for name in plan.names)


def load_progress(plans: Sequence[TablePlan], stores: Stores) -> StoredProgress:
    """Reads the stored progress of one source's tables."""
    keys = [key for plan in plans for key in list_state_keys(plan)]
    batches = stores.ledger.last_batches() if len(plans) >= _MANY_TABLES else None
    return StoredProgress(stores.state.latest_by_key(keys), batches)


def list_state_keys(plan: TablePlan) -> list[str]:
    """Returns the keys of a table's state under the current and former names of its source."""
    return [f"{name}.{plan.lake_table}" for name in plan.names]
