"""Reads state and ledger once for all tables that a run has locked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loader.errors import StateError
from loader.lake.ledger import Ledger
from loader.state import StateRow, TableState, choose_counting_state
from loader.sync.plan import Plan
from loader.sync.stores import Stores

_MANY = 8
"""For so many tables, one query over the whole ledger is faster than one look for each."""


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

    def state(self, plan: Plan, tell: Callable[[str], None]) -> TableState | None:
        """Returns a table's state; None if there is none.

        Raises:
            StateError: if it cannot be read, or is not ours.
        """
        for key in keys(plan):
            rows = self.states[key]
            if isinstance(rows, StateError):
                raise rows
            found = choose_counting_state(key, rows, tell)
            if found is not None:
                return found
        return None

    def last_batch(self, plan: Plan, ledger: Ledger, since: int) -> int:
        """Returns the highest batch of a table that has a row in the ledger; 0 if none has.

        Args:
            since: looks only at this batch and later ones, if the ledger must be asked.
        """
        if self.batches is None:
            return ledger.last_batch(plan.lake_table, plan.names, since)
        return max(self.batches.get((name, plan.lake_table), 0) for name in plan.names)


def load_progress(plans: Sequence[Plan], stores: Stores) -> StoredProgress:
    """Reads the recorded progress of one source's tables."""
    wanted = [key for plan in plans for key in keys(plan)]
    batches = stores.ledger.last_batches() if len(plans) >= _MANY else None
    return StoredProgress(stores.state.latest_of(wanted), batches)


def keys(plan: Plan) -> list[str]:
    """Returns the keys that a table's state may have: its source may have been renamed."""
    return [f"{name}.{plan.lake_table}" for name in plan.names]
