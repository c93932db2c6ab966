"""The sync protocol of one table.

The steps are: lock, recover, plan the window, extract, publish, record, unlock. One Iceberg commit
publishes a batch. The commit contains its rows, batch number, state and ledger row. The state store
and the ledger are derived from these commits. If a crash leaves the store or the ledger outdated,
the next sync updates it from the newest commit.

:mod:`loader.sync.plan_window` selects the rows of a batch. Backfills and repairs use the same steps
with other planning functions.
"""

from __future__ import annotations

from collections.abc import Callable

from loader.lake.commits import Commit
from loader.lake.ledger import NOTHING_NEW, SYNCED, SyncRecord
from loader.sync.extract import Batch, extract
from loader.sync.plan_window import PlannedBatch, plan_window
from loader.sync.publish import publish
from loader.sync.recover import PriorState, recover
from loader.sync.sync_context import SyncContext

PlanBatch = Callable[[SyncContext, PriorState], PlannedBatch]


def sync_table(sync: SyncContext, plan_batch: PlanBatch = plan_window) -> SyncRecord:
    """Appends the rows that have changed, stores the new cursor, and unlocks the table.

    Returns the ledger row, or the sum of the ledger rows if the sync had several batches.

    Raises:
        TableError, StateError: if the sync failed. If it failed after a batch was published, the
            next run recovers that batch. Otherwise, nothing of the batch was published. Earlier
            batches of the sync remain.
    """
    with sync.unlock_at_end():
        return sync_locked_table(sync, plan_batch)


def sync_locked_table(sync: SyncContext, plan_batch: PlanBatch = plan_window) -> SyncRecord:
    """Syncs a table like :func:`sync_table`, but leaves the table locked."""
    sync.report_step("locked")
    with sync.lake.unchanging(sync.plan.lake_table):
        prior = recover(sync)
        while True:  # only some connectors and backfills have several batches
            planned = plan_batch(sync, prior)
            sync.report_step("windowed")
            with sync.read_slot, extract(sync, planned) as batch:
                published, commit = publish(sync, batch)
            prior, total = record(sync, prior, published, commit)
            if total is not None:
                return total


def record(
    sync: SyncContext, prior: PriorState, batch: Batch, commit: Commit | None
) -> tuple[PriorState, SyncRecord | None]:
    """Writes the state and the ledger row of a batch. After a crash, recovery completes this step.

    Returns the prior state of the next batch. After the last batch, also returns the sum of the
    sync's ledger rows.

    Args:
        commit: the batch's commit; None if nothing was appended.
    """
    row = batch.record
    if commit is not None:
        state = batch.state
        row = row.describe_commit(SYNCED, commit.rows, commit.snapshot_id).finish()
    else:
        # If all counted rows have vanished from the source, the sync did not reach their cursor.
        has_vanished = batch.rows is not None and batch.counted_rows
        state = prior.state if has_vanished else batch.idle_state
        row = row.finish(
            status=NOTHING_NEW,
            batch=None,
            generation=prior.state.generation,
            cursor_high=state.cursor.text if state.cursor else row.cursor_high,
            rows_read=row.rows_redelivered,
            rows_appended=0,
            schema_changes="; ".join(batch.drift.idle_notes) or None,
        )
    total = row if prior.total is None else prior.total.plus(row)
    changed = state if state != prior.state else None
    following = prior.advance(state, total)
    if not batch.is_followed():
        sync.write_progress(changed, row, total)
        return following, total
    if commit is not None or changed is not None:
        sync.write_progress(changed, row, total, immediately=True)
    return following, None
