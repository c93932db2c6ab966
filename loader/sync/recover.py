"""Updates a table's state and ledger from the newest commit before each sync."""

from __future__ import annotations

from dataclasses import dataclass

from loader.errors import LoaderError, StateError
from loader.lake.commits import Commit, newest_commit
from loader.lake.ledger import RECOVERED, SyncRecord
from loader.lake.raw_table import drop_outdated_table
from loader.lake.receipt import find_receipt
from loader.lake.staging import discard_staged
from loader.sources.interface import Request
from loader.state import TableState
from loader.state.value import MIXED
from loader.sync.mask_changes import check_masks
from loader.sync.ownership import check_origin, check_ownership, record_origin, register_sharer
from loader.sync.run_context import Watch
from loader.sync.stores import StoredProgress, Stores, load_progress
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH, TablePlan


@dataclass(frozen=True)
class PriorState:
    """The state of a table before a sync.

    Attributes:
        next_batch: the number of the next batch. Sources that share a raw table share batch
            numbers.
        has_begun: whether the source has ever published a batch, even if the raw table no longer
            contains it.
        total: the sum of this sync's batches so far; None before the first batch.
        has_new_selection: whether the spec selects different rows than at the last sync
            (:func:`is_selection_new`).
        has_new_columns: whether the table has no key, and the source's rows have different columns
            from the raw table. If so, they cannot be compared with it.
    """

    state: TableState
    next_batch: int
    has_begun: bool = False
    total: SyncRecord | None = None
    has_new_selection: bool = False
    has_new_columns: bool = False

    @property
    def starts_over(self) -> bool:
        """Returns whether all rows are read again.

        This is necessary if the raw table no longer contains the source's batches, if it may lack
        rows that the spec now selects, or if rows cannot be compared with it.
        """
        return (
            (self.state.batch == 0 and self.has_begun)
            or self.has_new_selection
            or self.has_new_columns
        )

    def advance(self, after: TableState, total: SyncRecord) -> PriorState:
        """Returns the prior state of the next batch."""
        has_begun = self.has_begun or after.batch > self.state.batch
        is_selection_new = self.has_new_selection and after.selection == self.state.selection
        next_batch = max(self.next_batch, after.batch + 1)
        return PriorState(after, next_batch, has_begun, total, is_selection_new)

    @property
    def partial_selection(self) -> str:
        """The selection to store after a sync that does not append all rows.

        After the selection has changed, the raw table has rows from both selections. So the next
        sync must read all rows, even if the spec returns to the earlier selection.
        """
        return MIXED if self.has_new_selection else self.state.selection


def recover(sync: SyncContext) -> PriorState:
    """Updates state and ledger from the newest data commit, and deletes staged, unpublished files.

    Raises a StateError if the data is newer than the state, and no commit contains the cursor.
    """
    plan, stores = sync.plan, sync.stores
    stores.confirm()
    register_sharer(plan, stores.lake)
    progress = sync.progress or load_progress([plan], stores)
    newest, own_commit, state = reconcile_state(plan, stores, sync.watch, progress)
    if not plan.accepts_other_origin:
        record_origin(plan, stores.lake)
    if stores.lake.exists(plan.lake_table):
        discard_staged(stores.lake, plan.lake_table)
    state_batch = state.batch if state else 0
    ledger_batch = progress.find_last_batch(plan, stores.ledger, since=own_commit.batch)
    if state is None or state_batch < own_commit.batch:
        state = _read_committed_state(own_commit, plan)
        if own_commit.batch:
            sync.warn(f"state was behind: rolled forward to batch {own_commit.batch}")
            stores.store(plan.name, state)
    elif state_batch > own_commit.batch:
        state = _roll_back(own_commit, state, plan)
        sync.warn(
            f"state was ahead of the data (batch {state_batch}, the raw table has "
            f"{own_commit.batch}): "
            + (
                "rolled back"
                if own_commit.batch
                else "the raw table was dropped, rereading all rows"
            )
        )
        stores.store(plan.name, state)
    sync.report_step("recovered-state")
    if own_commit.batch > ledger_batch and own_commit.sync is not None:
        recovered = SyncRecord.from_dict(own_commit.sync).describe_commit(
            RECOVERED, own_commit.rows, own_commit.snapshot_id
        )
        receipt = find_receipt(stores.lake.properties(plan.lake_table), own_commit.batch)
        stores.record(recovered.finish(run_id=sync.run_id, receipt=receipt))
    sync.report_step("recovered")
    highest = max(newest.batch, state_batch, ledger_batch)
    if plan.is_shared:
        highest = max(highest, stores.ledger.last_batch(plan.lake_table, since=newest.batch))
    has_begun = max(own_commit.batch, state_batch, ledger_batch) > 0
    if not own_commit.batch and not plan.is_shared:
        table = plan.table
        drop_outdated_table(stores.lake, plan.lake_table, table.schema, table.excluded)
    check_masks(plan, stores.lake, state, sync.warn)
    return PriorState(
        state, highest + 1, has_begun, has_new_selection=is_selection_new(plan, state)
    )


def is_selection_new(plan: TablePlan, state: TableState) -> bool:
    """Returns whether the spec selects different rows than at the last sync.

    If the table has a key, and a filter or a query, also returns True if the state was reset,
    because the raw table may contain keys that are no longer selected.
    """
    if not plan.key and state.was_reset(plan.table.selection):
        return False
    return state.batch > 0 and state.selection != plan.table.selection


def build_request(plan: TablePlan, stores: Stores) -> Request | None:
    """Returns the request to send to a source that pushes its rows, or None on errors.

    Writes nothing. Later, :func:`recover` computes the same state and writes it, or reports the
    same error.
    """
    try:
        _, own_commit, state = reconcile_state(plan, stores, Watch())
        state_batch = state.batch if state else 0
        is_raw_lost = state_batch > own_commit.batch == 0
        if state is None or state_batch < own_commit.batch:
            state = _read_committed_state(own_commit, plan)
        elif state_batch > own_commit.batch:
            state = _roll_back(own_commit, state, plan)
    except LoaderError:
        return None
    is_full = plan.mode == FULL_REFRESH or is_raw_lost
    return Request(
        plan.table,
        plan.name,
        None if is_full else state.mark,
        is_full,
        plan.cursor.name if plan.cursor else None,
        plan.key,
    )


def reconcile_state(
    plan: TablePlan, stores: Stores, watch: Watch, progress: StoredProgress | None = None
) -> tuple[Commit, Commit, TableState | None]:
    """Returns the newest data commit, the newest commit of the plan's source, and the state.

    The state is None if the stored state belongs to a raw table in another lake.

    Args:
        progress: the stored progress of the table; if None, it is read.

    Raises:
        TableError: if the raw table belongs to another source or to another table of this source.
    """
    lake, table = stores.lake, plan.lake_table
    newest = own_commit = Commit()
    if lake.exists(table):
        newest = newest_commit(lake, table)
        check_ownership(plan, lake, newest)
        check_origin(plan, lake)
        own_commit = newest_commit(lake, table, (plan.source,)) if plan.is_shared else newest
    progress = progress or load_progress([plan], stores)
    state = progress.find_state(plan, lambda text: watch.warn(plan.name, text))
    # If the raw table has no commit of this source, it was dropped and recreated. `recover` then
    # keeps the generation from the state.
    is_dropped = state is not None and state.batch > own_commit.batch == 0
    if state is not None and not is_dropped and stores.is_foreign(plan.name, state):
        watch.warn(
            plan.name,
            "the state belongs to another raw table, so the cursor of this table's newest batch "
            "is used. Two lakes must not share a state store: set another "
            "`backend_options.table_name` in one of them",
        )
        state = None
    return newest, own_commit, state


def _read_committed_state(commit: Commit, plan: TablePlan) -> TableState:
    if not commit.batch:
        return TableState()
    if commit.state is None:
        raise StateError(
            f"the raw table contains batch {commit.batch}, but neither the state nor a commit has "
            "its cursor",
            where=f"table {plan.name}",
            remedy="Set it with `loader state set`, at or below the newest cursor in the raw table",
        )
    return TableState.from_json(commit.state, plan.name)


def _roll_back(commit: Commit, state: TableState, plan: TablePlan) -> TableState:
    if not commit.batch:
        return TableState(generation=state.generation)
    return _read_committed_state(commit, plan)
