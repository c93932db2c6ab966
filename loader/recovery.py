"""What is there before a sync: after a crash, state and ledger follow the data commit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loader.commits import Commit, newest_commit
from loader.errors import StateError
from loader.lake import Lake
from loader.ledger import RECOVERED, Ledger, SyncRecord
from loader.plan import Plan
from loader.state import StateBackend, TableState
from loader.watch import Watch


@dataclass(frozen=True)
class Stores:
    """Where one table's sync writes: data, cursors, ledger."""

    lake: Lake
    state: StateBackend
    ledger: Ledger


@dataclass(frozen=True)
class Known:
    """What is there before a sync: the state, and the number that the next batch gets."""

    state: TableState
    next_batch: int

    @property
    def starts_over(self) -> bool:
        """Raw is gone but was there: everything is read again, in a generation of its own."""
        return self.state.batch == 0 and self.next_batch > 1


def recover(plan: Plan, stores: Stores, watch: Watch, run_id: str) -> Known:
    """Brings state and ledger up to the newest data commit, and clears away staged leftovers.

    Raises:
        StateError: where data is newer than the state and its commit has expired.
    """
    head, state = assess(plan, stores, watch)
    if stores.lake.exists(plan.lake_table):
        stores.lake.discard(plan.lake_table)
    stored = state.batch if state else 0
    last = stores.ledger.last_batch(plan.source, plan.lake_table, since=head.batch)
    if state is None or stored < head.batch:
        state = _state_of(head, plan)
        if head.batch:
            watch.warn(plan.name, f"state was behind: rolled forward to batch {head.batch}")
            stores.state.write(plan.name, state)
    elif stored > head.batch:
        state = _rolled_back(head, state, plan)
        watch.warn(
            plan.name,
            f"state was ahead of the data (batch {stored}, raw has {head.batch}): "
            + ("rolled back" if head.batch else "raw is gone, reading everything anew"),
        )
        stores.state.write(plan.name, state)
    watch.reached("recovered-state", plan.name)
    if head.batch > last and head.sync is not None:
        recovered = replace(
            SyncRecord.from_dict(head.sync),
            status=RECOVERED,
            run_id=run_id,
            rows_appended=head.rows,
            snapshot_id=head.snapshot_id,
        )
        stores.ledger.append(recovered.finished())
    watch.reached("recovered", plan.name)
    return Known(state, max(head.batch, stored, last) + 1)


def assess(plan: Plan, stores: Stores, watch: Watch) -> tuple[Commit, TableState | None]:
    """The newest data commit and the stored state, as they are; changes nothing."""
    lake = stores.lake
    head = newest_commit(lake, plan.lake_table) if lake.exists(plan.lake_table) else Commit()
    return head, stores.state.read(plan.name, lambda text: watch.warn(plan.name, text))


def _state_of(head: Commit, plan: Plan) -> TableState:
    if not head.batch:
        return TableState()
    if head.state is None:
        raise StateError(
            f"raw holds batch {head.batch}, but neither the state nor a commit knows its cursor",
            where=f"table {plan.name}",
            remedy="Set it with `loader state set`, at or below the newest cursor in raw",
        )
    return TableState.from_json(head.state, plan.name)


def _rolled_back(head: Commit, state: TableState, plan: Plan) -> TableState:
    if not head.batch:
        return TableState(generation=state.generation)
    return _state_of(head, plan)
