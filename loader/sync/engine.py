"""The sync protocol of one table: lock, recover, plan the window, extract, publish, record, unlock.

Publishing is one Iceberg commit with the batch's rows, batch number, state and ledger row. The
state store and the ledger are derived from these commits: if a crash leaves them behind, the next
sync updates them from the newest commit.

:mod:`loader.sync.plan_window` decides which rows a batch reads. Backfills and repairs pass another
planning function and use the same steps.
"""

from __future__ import annotations

from collections.abc import Callable

from loader.lake.ledger import SyncRecord
from loader.sync.extract import extract
from loader.sync.plan_window import PlannedBatch, plan_window
from loader.sync.publish import publish
from loader.sync.record import record
from loader.sync.recover import PriorState, recover
from loader.sync.table_sync import TableSync

PlanBatch = Callable[[TableSync, PriorState], PlannedBatch]
"""Decides what the next batch reads."""


def sync_table(sync: TableSync, plan_batch: PlanBatch = plan_window) -> SyncRecord:
    """Appends the rows that changed since the stored cursor, records the new cursor, and unlocks.

    Returns:
        The ledger row; if the sync had several batches, the sum of their rows.

    Raises:
        TableError, StateError: the table could not be synced. Nothing was published, unless
            recording failed after the publish; then the next run recovers the batch.
    """
    with sync.unlock_at_end():
        return sync_locked_table(sync, plan_batch)


def sync_locked_table(sync: TableSync, plan_batch: PlanBatch = plan_window) -> SyncRecord:
    """Syncs a table like :func:`sync_table`, but leaves it locked for the caller."""
    sync.report_step("locked")
    with sync.lake.unchanging(sync.plan.lake_table):
        prior = recover(sync)
        while True:  # a single batch, except for some connectors and backfills
            planned = plan_batch(sync, prior)
            sync.report_step("windowed")
            with sync.read_slot, extract(sync, planned) as batch:
                commit = publish(sync, batch)
            prior, total = record(sync, prior, batch, commit)
            if total is not None:
                return total
