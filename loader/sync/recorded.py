"""What state and ledger say of tables, read once for all that a run has locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loader.errors import StateError
from loader.state import StateRow, TableState, counted
from loader.sync.plan import Plan
from loader.sync.stores import Stores


@dataclass(frozen=True)
class Recorded:
    """What was recorded when the tables were locked: since then only this run can add to it.

    Attributes:
        states: by the state's key, the rows of its newest version, or why they cannot be read.
        batches: by source and table, the highest batch that the ledger has.
    """

    states: Mapping[str, list[StateRow] | StateError]
    batches: Mapping[tuple[str, str], int]

    def state(self, plan: Plan, tell: Callable[[str], None]) -> TableState | None:
        """Returns a table's state; None if there is none.

        Raises:
            StateError: if it cannot be read, or is not ours.
        """
        for key in keys(plan):
            rows = self.states[key]
            if isinstance(rows, StateError):
                raise rows
            found = counted(key, rows, tell)
            if found is not None:
                return found
        return None

    def last_batch(self, plan: Plan) -> int:
        """Returns the highest batch of a table that has a row in the ledger; 0 if none has."""
        return max(self.batches.get((name, plan.lake_table), 0) for name in plan.names)


def recorded(plans: Iterable[Plan], stores: Stores) -> Recorded:
    """Reads what is recorded of many tables of one source."""
    wanted = [key for plan in plans for key in keys(plan)]
    return Recorded(stores.state.latest_of(wanted), stores.ledger.last_batches())


def keys(plan: Plan) -> list[str]:
    """Returns the keys that a table's state may have: its source may have been renamed."""
    return [f"{name}.{plan.lake_table}" for name in plan.names]
