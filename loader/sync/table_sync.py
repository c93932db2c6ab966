"""One table of one run, locked, with its source open: the unit of sync, backfill and repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from loader.lake.lake import Lake
from loader.lake.lease import Lease
from loader.lake.ledger import SyncRecord
from loader.sources.interface import Snapshot
from loader.state import TableState
from loader.sync.run_context import Watch
from loader.sync.stores import StoredProgress, Stores
from loader.sync.table_plan import TablePlan


@dataclass(frozen=True)
class TableSync:
    """One table, locked, with its source open.

    Attributes:
        plan: its options, checked against the source.
        held: its lock, taken before the snapshot: a snapshot older than another run's last batch
            could bring back rows that the batch replaced.
        snapshot: the source's snapshot.
        stores: the stores that it is written to.
        watch: reports its progress, and stops it on request.
        run_id: the run's id in the ledger.
        journal: writes state and ledger together with those of the run's other tables, then
            unlocks the table; None writes them at once.
        recorded: state and ledger as of when the table was locked; None if they were not read.
        slot: held while a batch is read and written, so that not too many are at the same time.
    """

    plan: TablePlan
    held: Lease
    snapshot: Snapshot
    stores: Stores
    watch: Watch
    run_id: str
    journal: Callable[[TableSync, TableState | None, SyncRecord, SyncRecord], None] | None = None
    recorded: StoredProgress | None = None
    slot: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def lake(self) -> Lake:
        """The lake of its raw table."""
        return self.stores.lake

    @contextmanager
    def unlock_at_end(self) -> Iterator[None]:
        """Releases the lock on exit, also after an error; a journal does so once all is written."""
        if self.journal is not None:
            yield
            return
        try:
            yield
        finally:
            self.held.release()
        self.report_step("unlocked")

    def at_once(self) -> TableSync:
        """Returns the same attempt, writing its progress at once instead of with other tables'."""
        return replace(self, journal=None)

    def settle(
        self, state: TableState | None, record: SyncRecord, total: SyncRecord | None = None
    ) -> None:
        """Writes state and then ledger: at once, or together with the run's other tables.

        Args:
            state: None if it has not changed.
            total: the sum to report to the user, if the run had several batches.
        """
        if self.journal is not None:
            self.journal(self, state, record, total or record)
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
        """Reports a step of the protocol as reached (:data:`loader.sync.fault_injection.STEPS`)."""
        self.watch.report_step(step, self.plan.name)

    def phase(self, phase: str, rows: int | None = None) -> None:
        """Reports a phase to the user."""
        self.watch.phase(self.plan.name, phase, rows)

    def warn(self, text: str) -> None:
        """Warns the user about this table."""
        self.watch.warn(self.plan.name, text)
