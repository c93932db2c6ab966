"""The sync protocol of one table: lock, recover, window, extract, publish, record, unlock.

The data commit is the truth. It carries its batch number, state and ledger row. The stored state
and the ledger are indexes: after a crash they are rolled forward from the commit.

What a batch reads is decided in :mod:`loader.sync.plan_window`; a backfill and a repair decide
otherwise, and take the same steps.
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
    """Appends what changed since the stored cursor, and records the cursor; unlocks the table.

    Returns:
        The ledger row that it wrote; of several batches, their sum.

    Raises:
        TableError, StateError: this table cannot be synced. Nothing was published, unless only
            recording it failed: then the next run recovers it.
    """
    with sync.unlock_at_end():
        return sync_locked_table(sync, plan_batch)


def sync_locked_table(sync: TableSync, plan_batch: PlanBatch = plan_window) -> SyncRecord:
    """Syncs a table whose lock the caller holds, without releasing it; see :func:`sync_table`."""
    sync.report_step("locked")
    with sync.lake.unchanging(sync.plan.lake_table):
        prior = recover(sync)
        while True:  # once, unless the source delivers several batches
            planned = plan_batch(sync, prior)
            sync.report_step("windowed")
            with sync.slot, extract(sync, planned) as batch:
                commit = publish(sync, batch)
            prior, total = record(sync, prior, batch, commit)
            if total is not None:
                return total
