"""The input to each step of the sync protocol."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from loader.lake.lake import Lake
from loader.lake.ledger import SyncRecord
from loader.lake.locks import Lease
from loader.sources.interface import Snapshot
from loader.state import TableState
from loader.sync.run_context import RECORDING, Watch
from loader.sync.stores import StoredProgress, Stores
from loader.sync.table_plan import TablePlan


@dataclass(frozen=True)
class SyncContext:
    """A table that a run has locked, together with its open source.

    Attributes:
        lease: the table's lock. It must be acquired before the source's snapshot is opened.
            Otherwise the snapshot may be older than rows that another run has since loaded, and the
            sync could replace them with older versions.
        run_id: the run's id in the ledger.
        opened_at: a UTC time shortly before the snapshot was opened.
        defer_progress: collects the state and the ledger row, to be written together with those of
            other tables. If None, they are written immediately.
        progress: the state and ledger, read after locking; None if :func:`recover` must read them.
        read_slot: a context manager that limits the number of batches that are read in parallel.
    """

    plan: TablePlan
    lease: Lease
    snapshot: Snapshot
    stores: Stores
    watch: Watch
    run_id: str
    opened_at: dt.datetime
    defer_progress: DeferProgress | None = None
    progress: StoredProgress | None = None
    read_slot: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def lake(self) -> Lake:
        return self.stores.lake

    @contextmanager
    def unlock_at_end(self) -> Iterator[None]:
        """Releases the lock when the block ends or fails, unless the progress is deferred."""
        if self.defer_progress is not None:
            yield
            return
        try:
            yield
        finally:
            self.lease.release()
        self.report_step("unlocked")

    def write_progress(
        self,
        state: TableState | None,
        record: SyncRecord,
        total: SyncRecord | None = None,
        immediately: bool = False,
    ) -> None:
        """Writes the state and then the ledger row, or defers both.

        Args:
            state: the new state; None if it has not changed.
            total: the sum of the sync's batches, which is reported to the user; None if it equals
                `record`.
            immediately: whether to write both now, even if this sync defers progress.
        """
        if self.defer_progress is not None and not immediately:
            state = self.stores.add_table_id(self.plan.name, state) if state is not None else None
            # Not `report_phase`, which raises an error if the run was asked to stop.
            self.watch.listener.report_phase(self.plan.name, RECORDING, None)
            self.defer_progress(self, state, record, total or record)
            return
        if state is not None:
            self.stores.store(self.plan.name, state)
        self.report_step("state-recorded")
        self.stores.record(record)
        self.report_step("ledger-recorded")
        self.confirm_stored(state)

    def confirm_stored(self, state: TableState | None) -> None:
        """Confirms to the source that the rows are published and the state is stored."""
        if state is not None:
            self.snapshot.confirm_stored(self.plan.table, state.mark)

    def report_step(self, step: str) -> None:
        """Reports that the table has reached one of :data:`loader.sync.fault_injection.STEPS`."""
        self.watch.report_step(step, self.plan.name)

    def report_phase(self, phase: str, rows: int | None = None) -> None:
        self.watch.report_phase(self.plan.name, phase, rows)

    def warn(self, text: str) -> None:
        self.watch.warn(self.plan.name, text)


DeferProgress = Callable[[SyncContext, TableState | None, SyncRecord, SyncRecord], None]
"""A function that takes a sync, its new state, its ledger row and the sum to report."""
