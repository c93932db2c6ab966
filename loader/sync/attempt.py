"""One table of one run: locked, its source open. Sync, backfill and repair are done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loader.lake.lake import Lake
from loader.lake.lease import Lease
from loader.lake.ledger import SyncRecord, now
from loader.rows.window import Bounds, Window
from loader.sources import Snapshot
from loader.state import TableState
from loader.sync.plan import Plan
from loader.sync.stores import Stores
from loader.sync.watch import Watch


@dataclass(frozen=True)
class Attempt:
    """One table, locked, with its source open.

    Attributes:
        plan: what the spec and the source say of it.
        held: its lock, taken before the snapshot was: rows of a snapshot older than another run's
            last batch could bring back what that batch replaced.
        snapshot: the look at its source.
        stores: where it is written.
        watch: is told how far it has come, and says when to stop.
        run_id: the run's, in the ledger.
        journal: writes state and ledger, and unlocks the table, with the run's other tables; None
            if that is done at once.
    """

    plan: Plan
    held: Lease
    snapshot: Snapshot
    stores: Stores
    watch: Watch
    run_id: str
    journal: Callable[[Attempt, TableState | None, SyncRecord], None] | None = None

    @property
    def lake(self) -> Lake:
        """Where its raw table is."""
        return self.stores.lake

    @contextmanager
    def unlocking(self) -> Iterator[None]:
        """Gives the table free, however it ends."""
        try:
            yield
        finally:
            self.held.release()
        self.reached("unlocked")

    def settle(self, state: TableState | None, record: SyncRecord) -> None:
        """Writes what is true now, state first: at once, or with the run's other tables.

        Args:
            state: None if it has not changed.
        """
        if self.journal is not None:
            self.journal(self, state, record)
            return
        if state is not None:
            self.stores.store(self.plan.name, state)
        self.reached("state-recorded")
        self.stores.record(record)
        self.reached("ledger-recorded")

    def reached(self, step: str) -> None:
        """It has come to a step of the protocol (:data:`loader.sync.drill.STEPS`)."""
        self.watch.reached(step, self.plan.name)

    def phase(self, phase: str, rows: int | None = None) -> None:
        """It entered a phase, which people see."""
        self.watch.phase(self.plan.name, phase, rows)

    def warn(self, text: str) -> None:
        """Something a user should know of it."""
        self.watch.warn(self.plan.name, text)

    def record(
        self,
        after: TableState,
        mode: str,
        window: Window | None = None,
        bounds: Bounds | None = None,
    ) -> SyncRecord:
        """The ledger's row of a batch, as far as it is known before the batch is read.

        Args:
            after: the state that becomes true with the batch.
            mode: of the read.
            window, bounds: what is read; None where rows are named one by one.
        """
        low = high = floor = None
        if window is not None and bounds is not None:
            low, high, floor = window.low, window.end(bounds), window.floor(bounds)
        type_ = self.plan.cursor.type if self.plan.cursor else None
        return SyncRecord(
            run_id=self.run_id,
            source_name=self.plan.source,
            table_name=self.plan.lake_table,
            batch=after.batch,
            generation=after.generation,
            mode=mode,
            cursor_field=after.cursor_field,
            cursor_type=type_.value if type_ else None,
            cursor_low=floor.text if floor else None,
            cursor_high=after.cursor.text if after.cursor else None,
            read_from=low.text if low else None,
            read_to=high.text if high else None,
            rows_redelivered=0,
            started_at=now(),
        )
