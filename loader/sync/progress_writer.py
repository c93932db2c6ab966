"""Writes the states of many tables in one commit, and their ledger rows in a second commit.

The data commit of each table also contains the table's state and ledger row. If the loader crashes
before they are stored, the next run recovers them from the data commit. A table stays locked until
they are stored, so that no other run recovers them concurrently.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from loader.errors import StateError
from loader.lake.ledger import NOTHING_NEW, SyncRecord
from loader.lake.locks import confirm_all, release_all
from loader.state import StateRow, TableState
from loader.state.lake_table import LakeState
from loader.sync.sync_context import SyncContext

_log = logging.getLogger("loader")

IDLE_SECONDS = 60
"""The minimum time in seconds between two "nothing new" ledger rows of the same table."""
_MAX_FAILURES = 3
"""After this number of failures, the writer stops storing states individually."""


@dataclass
class Entry:
    """The progress of one table's sync that has not yet been written.

    Attributes:
        state: the new state; None if it has not changed.
        total: the sum of the sync's batches, which is shown to the user.
        error: the exception of the first step that failed; None if no step has failed.
    """

    sync: SyncContext
    state: TableState | None
    record: SyncRecord
    total: SyncRecord
    error: Exception | None = None

    def run_step(self, step: Callable[[], object]) -> None:
        """Runs a step unless an earlier step failed, and stores any exception in `error`."""
        if self.error is None:
            try:
                step()
            except Exception as error:
                self.error = error

    @property
    def state_location(self) -> Hashable:
        """Identifies the state store. The states of entries with the same store share a commit."""
        state = self.sync.stores.state
        if isinstance(state, LakeState):
            return state.lake.schema, state.table
        return self.sync.plan.source


class ProgressWriter:
    """Collects the progress of a run's tables and writes it.

    Args:
        idle_since: for each table whose last ledger row has the status "nothing new", the time of
            that row. The next row with this status is written only after :data:`IDLE_SECONDS`,
            because otherwise a loop that runs every second would fill the ledger.
    """

    def __init__(self, idle_since: dict[tuple[str, str], float] | None = None) -> None:
        self._idle_since = {} if idle_since is None else idle_since
        self._entries: list[Entry] = []
        self._adding = threading.Lock()
        self._since = 0.0

    def seconds_waiting(self) -> float:
        """Returns the age of the oldest unwritten entry in seconds."""
        with self._adding:
            return time.monotonic() - self._since if self._entries else 0.0

    def add(
        self, sync: SyncContext, state: TableState | None, record: SyncRecord, total: SyncRecord
    ) -> None:
        """Adds the progress of a table's sync. Thread-safe."""
        with self._adding:
            self._since = self._since if self._entries else time.monotonic()
            self._entries.append(Entry(sync, state, record, total))

    def write(self) -> list[Entry]:
        """Writes the waiting entries and unlocks their tables.

        Returns the entries. An entry that could not be written has an error.
        """
        with self._adding:
            entries, self._entries = self._entries, []
        if _can_write_in_parallel(entries):
            with ThreadPoolExecutor(1) as pool:
                recording = pool.submit(self._record_all, entries)
                self._store_all(entries)
                recording.result()
        else:
            self._store_all(entries)
            _report_step(entries, "state-recorded")
            self._record_all(entries)
        _report_step(entries, "ledger-recorded")
        for entry in entries:
            entry.run_step(partial(entry.sync.confirm_stored, entry.state))
        for entry, error in zip(entries, release_all([e.sync.lease for e in entries]), strict=True):
            if error is not None:
                # The progress is already written, and the next run detects that the lock's owner
                # has exited.
                _log.warning("%s could not be unlocked: %s", entry.sync.plan.name, error)
        _report_step(entries, "unlocked")
        return entries

    @contextmanager
    def write_remaining(self) -> Iterator[None]:
        """Writes the remaining entries at the end of the block, even after errors."""
        try:
            yield
        finally:
            self.write()

    def _store_all(self, entries: Sequence[Entry]) -> None:
        for group in _group_entries(entries, lambda entry: entry.state_location):
            self._store_group([entry for entry in group if entry.state is not None])

    def _record_all(self, entries: Sequence[Entry]) -> None:
        for group in _group_entries(entries, lambda entry: entry.sync.lake.schema):
            self._record_group(group)

    def _store_group(self, entries: Sequence[Entry]) -> None:
        """Stores states in one commit. If this fails, stores them singly: one may be faulty."""
        confirmed = _keep_locked(entries)
        if not confirmed:
            return
        backend = confirmed[0].sync.stores.state
        states = {entry.sync.plan.name: entry.state for entry in confirmed if entry.state}
        try:
            rows = backend.build_next_rows(states)
            backend.append([row for row in rows.values() if isinstance(row, StateRow)])
        except Exception as error:
            if len(states) == 1:
                confirmed[0].error = error
                return
            failed: list[Exception] = []
            for entry in confirmed:
                if len(failed) < _MAX_FAILURES:
                    self._store_group([entry])
                    failed += [entry.error] if entry.error else []
                else:
                    # The backend is unreachable, and each attempt may take minutes.
                    entry.error = failed[-1]
            return
        for entry in confirmed:
            row = rows[entry.sync.plan.name]
            if isinstance(row, StateError):
                entry.error = row

    def _record_group(self, entries: Sequence[Entry]) -> None:
        written = [e for e in _keep_locked(entries) if not self._is_repeated(e)]
        if not written:
            return
        try:
            written[0].sync.stores.ledger.append_all([entry.record for entry in written])
        except Exception as error:
            for entry in written:
                entry.error = error
            return
        for entry in written:
            self._idle_since.pop(entry.record.table, None)
            if entry.record.status == NOTHING_NEW:
                self._idle_since[entry.record.table] = time.monotonic()

    def _is_repeated(self, entry: Entry) -> bool:
        """Returns whether a recent ledger row already reports that the table has nothing new."""
        if entry.record.status != NOTHING_NEW or entry.state is not None:
            return False
        recorded_at = self._idle_since.get(entry.record.table)
        return recorded_at is not None and time.monotonic() - recorded_at < IDLE_SECONDS


def _can_write_in_parallel(entries: Sequence[Entry]) -> bool:
    """Returns whether states and ledger rows can be written in parallel.

    They can if the states are stored in a lake, too. If a crash prevents one of the two writes, the
    next run recovers it. Fault injection requires a fixed order.
    """
    return any(entry.state is not None for entry in entries) and all(
        isinstance(entry.sync.stores.state, LakeState) and entry.sync.watch.steps is None
        for entry in entries
    )


def _keep_locked(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries whose locks this run still holds. Sets an error in all other entries."""
    waiting = [entry for entry in entries if entry.error is None]
    for entry, error in zip(waiting, confirm_all([e.sync.lease for e in waiting]), strict=True):
        entry.error = error
    return [entry for entry in waiting if entry.error is None]


def _report_step(entries: Iterable[Entry], step: str) -> None:
    for entry in entries:
        entry.run_step(partial(entry.sync.report_step, step))


def _group_entries(entries: Iterable[Entry], by: Callable[[Entry], Any]) -> list[list[Entry]]:
    ordered = sorted(entries, key=lambda entry: repr(by(entry)))
    return [list(group) for _, group in groupby(ordered, by)]
