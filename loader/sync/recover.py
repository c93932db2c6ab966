"""Recovers before each sync: reads the newest commit, repairs state and ledger after a crash."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loader.errors import LoaderError, StateError
from loader.lake.commits import Commit, newest_commit
from loader.lake.ledger import RECOVERED, SyncRecord
from loader.lake.raw_table import drop_outdated_table
from loader.lake.staging import discard_staged
from loader.sources.interface import Request
from loader.state import TableState
from loader.sync.ownership import check_origin, check_ownership, record_origin, register_sharer
from loader.sync.run_context import Watch
from loader.sync.stores import StoredProgress, Stores, load_progress
from loader.sync.table_plan import FULL_REFRESH, TablePlan
from loader.sync.table_sync import TableSync


@dataclass(frozen=True)
class PriorState:
    """The state of a table before a sync.

    Attributes:
        next_batch: the next batch's number. Sources that share a table share its numbers.
        began: whether the source ever had a batch, even if raw has lost it since.
        total: the sum of the run's batches so far; None before the first.
    """

    state: TableState
    next_batch: int
    began: bool = False
    total: SyncRecord | None = None

    @property
    def starts_over(self) -> bool:
        """Whether raw was there and is gone: everything is read again, in a new generation."""
        return self.state.batch == 0 and self.began

    def follow_with(self, after: TableState, total: SyncRecord) -> PriorState:
        """Returns the prior state for the batch after one with this state."""
        began = self.began or after.batch > self.state.batch
        return PriorState(after, max(self.next_batch, after.batch + 1), began, total)


def recover(sync: TableSync) -> PriorState:
    """Brings state and ledger in line with the newest data commit, and deletes staged leftovers.

    Raises:
        StateError: if the data is newer than the state and its commit has expired.
    """
    plan, stores = sync.plan, sync.stores
    stores.confirm()
    register_sharer(plan, stores.lake)
    said = sync.progress or load_progress([plan], stores)
    head, own, state = reconcile_state(plan, stores, sync.watch, said)
    if not plan.accepts_other_origin:
        record_origin(plan, stores.lake)
    if stores.lake.exists(plan.lake_table):
        discard_staged(stores.lake, plan.lake_table)
    stored = state.batch if state else 0
    last = said.last_batch(plan, stores.ledger, since=own.batch)
    if state is None or stored < own.batch:
        state = _state_of(own, plan)
        if own.batch:
            sync.warn(f"state was behind: rolled forward to batch {own.batch}")
            stores.store(plan.name, state)
    elif stored > own.batch:
        state = _roll_back(own, state, plan)
        sync.warn(
            f"state was ahead of the data (batch {stored}, raw has {own.batch}): "
            + ("rolled back" if own.batch else "raw is gone, reading everything again")
        )
        stores.store(plan.name, state)
    sync.report_step("recovered-state")
    if own.batch > last and own.sync is not None:
        recovered = replace(
            SyncRecord.from_dict(own.sync),
            status=RECOVERED,
            run_id=sync.run_id,
            rows_appended=own.rows,
            snapshot_id=own.snapshot_id,
        )
        stores.record(recovered.finish())
    sync.report_step("recovered")
    highest = max(head.batch, stored, last)
    if plan.is_shared:
        highest = max(highest, stores.ledger.last_batch(plan.lake_table, since=head.batch))
    began = max(own.batch, stored, last) > 0
    if not began and not plan.is_shared:
        drop_outdated_table(stores.lake, plan.lake_table, plan.table.schema)
    return PriorState(state, highest + 1, began)


def build_request(plan: TablePlan, stores: Stores) -> Request | None:
    """Returns the request for a source that delivers; None if the table cannot be synced.

    Changes nothing: :func:`recover` brings state and data in line, finds the same state, and fails
    the table where this returns None.
    """
    try:
        _, own, state = reconcile_state(plan, stores, Watch())
        stored = state.batch if state else 0
        gone = stored > own.batch == 0
        if state is None or stored < own.batch:
            state = _state_of(own, plan)
        elif stored > own.batch:
            state = _roll_back(own, state, plan)
    except LoaderError:
        return None
    whole = plan.mode == FULL_REFRESH or gone
    return Request(
        plan.table,
        plan.name,
        None if whole else state.mark,
        whole,
        plan.cursor.name if plan.cursor else None,
        plan.key,
    )


def reconcile_state(
    plan: TablePlan, stores: Stores, watch: Watch, said: StoredProgress | None = None
) -> tuple[Commit, Commit, TableState | None]:
    """Returns the newest data commit, the source's newest, and the stored state; changes nothing.

    Args:
        said: the recorded progress of the table; None reads it now.

    Raises:
        TableError: if the raw table belongs to another source, or to another of its tables.
    """
    lake, table = stores.lake, plan.lake_table
    head = own = Commit()
    if lake.exists(table):
        head = newest_commit(lake, table)
        check_ownership(plan, lake, head)
        check_origin(plan, lake)
        own = newest_commit(lake, table, (plan.source,)) if plan.is_shared else head
    said = said or load_progress([plan], stores)
    return head, own, said.state(plan, lambda text: watch.warn(plan.name, text))


def _state_of(head: Commit, plan: TablePlan) -> TableState:
    if not head.batch:
        return TableState()
    if head.state is None:
        raise StateError(
            f"raw holds batch {head.batch}, but neither the state nor a commit has its cursor",
            where=f"table {plan.name}",
            remedy="Set it with `loader state set`, at or below the newest cursor in raw",
        )
    return TableState.from_json(head.state, plan.name)


def _roll_back(head: Commit, state: TableState, plan: TablePlan) -> TableState:
    if not head.batch:
        return TableState(generation=state.generation)
    return _state_of(head, plan)
