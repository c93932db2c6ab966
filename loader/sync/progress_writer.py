"""Writes state and ledger of a run's tables together: one commit each, however many tables.

A table's rows are safe, and carry its state, once its data commit is published. State and ledger
are indexes of that commit: a crash before they are written leaves them behind, and the next run
rolls them forward. A table stays locked until both are written, so no other run can roll them
forward meanwhile.
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
from loader.state import StateRow, TableState
from loader.state.lake_table import LakeState
from loader.sync.table_sync import TableSync

_log = logging.getLogger("loader")

QUIET_SECONDS = 60
"""A process that finds nothing new again within so many seconds does not record it again."""
_TRIES = 3
"""After so many states that cannot be stored, one by one, the others are not tried."""


@dataclass
class Entry:
    """The progress of one table's sync, to be written.

    Attributes:
        state: to be stored; None if it has not changed.
        record: the ledger's row.
        total: the sum of the run's batches, for the user.
        error: why it could not be written.
    """

    sync: TableSync
    state: TableState | None
    record: SyncRecord
    total: SyncRecord
    error: Exception | None = None

    def does(self, step: Callable[[], object]) -> None:
        """Takes a step, unless one before it failed."""
        if self.error is None:
            try:
                step()
            except Exception as error:
                self.error = error

    @property
    def state_place(self) -> Hashable:
        """Equal for entries whose states one commit can hold."""
        state = self.sync.stores.state
        if isinstance(state, LakeState):
            return state.lake.schema, state.table
        return self.sync.plan.source


class ProgressWriter:
    """Collects the entries of a run until they are written.

    Args:
        quiet: by table, when this process last recorded that it found nothing new, if nothing else
            was recorded since. A loop that looks each second would otherwise spend most of its
            time, and of the ledger, on that.
    """

    def __init__(self, quiet: dict[tuple[str, str], float] | None = None) -> None:
        self._quiet = {} if quiet is None else quiet
        self._entries: list[Entry] = []
        self._adding = threading.Lock()
        self._since = 0.0

    def waiting(self) -> float:
        """For how many seconds the first entry that is not written yet has waited."""
        with self._adding:
            return time.monotonic() - self._since if self._entries else 0.0

    def add(
        self, sync: TableSync, state: TableState | None, record: SyncRecord, total: SyncRecord
    ) -> None:
        """Adds the progress of a table's sync; any thread may call it."""
        with self._adding:
            self._since = self._since if self._entries else time.monotonic()
            self._entries.append(Entry(sync, state, record, total))

    def write(self) -> list[Entry]:
        """Writes what was added, and unlocks the tables.

        Returns the entries; those that could not be written say why.
        """
        with self._adding:
            entries, self._entries = self._entries, []
        if _beside_each_other(entries):
            with ThreadPoolExecutor(1) as other:
                recorded = other.submit(self._record_all, entries)
                self._store_all(entries)
                recorded.result()
        else:
            self._store_all(entries)
            _each(entries, "state-recorded")
            self._record_all(entries)
        _each(entries, "ledger-recorded")
        for entry in entries:
            entry.does(partial(entry.sync.confirm_stored, entry.state))
            try:
                entry.sync.lease.release()
            except Exception as error:
                # All is written. The next run that locks the table finds its owner's process gone.
                _log.warning("%s could not be unlocked: %s", entry.sync.plan.name, error)
        _each(entries, "unlocked")
        return entries

    @contextmanager
    def write_remaining(self) -> Iterator[None]:
        """Writes the remaining entries at the end, also if outcomes are no longer consumed."""
        try:
            yield
        finally:
            self.write()

    def _store_all(self, entries: Sequence[Entry]) -> None:
        for same in _group(entries, lambda entry: entry.state_place):
            self._store([entry for entry in same if entry.state is not None])

    def _record_all(self, entries: Sequence[Entry]) -> None:
        for same in _group(entries, lambda entry: entry.sync.lake.schema):
            self._record(same)

    def _store(self, entries: Sequence[Entry]) -> None:
        """Stores states in one commit.

        If that fails, each is stored by itself: one that is refused is no reason for the others.
        """
        confirmed = _confirm(entries)
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
                if len(failed) < _TRIES:
                    self._store([entry])
                    failed += [entry.error] if entry.error else []
                else:
                    entry.error = failed[
                        -1
                    ]  # the backend is unreachable: each try may take minutes
            return
        for entry in confirmed:
            row = rows[entry.sync.plan.name]
            if isinstance(row, StateError):
                entry.error = row

    def _record(self, entries: Sequence[Entry]) -> None:
        written = [entry for entry in _confirm(entries) if not self._is_known(entry)]
        if not written:
            return
        try:
            written[0].sync.stores.ledger.append_all([entry.record for entry in written])
        except Exception as error:
            for entry in written:
                entry.error = error
            return
        for entry in written:
            self._quiet.pop(entry.record.table, None)
            if entry.record.status == NOTHING_NEW:
                self._quiet[entry.record.table] = time.monotonic()

    def _is_known(self, entry: Entry) -> bool:
        """Returns whether the ledger has recently recorded the same as this entry."""
        if entry.record.status != NOTHING_NEW or entry.state is not None:
            return False
        before = self._quiet.get(entry.record.table)
        return before is not None and time.monotonic() - before < QUIET_SECONDS


def _beside_each_other(entries: Sequence[Entry]) -> bool:
    """Whether state and ledger are written at the same time: two commits to a lake take as long.

    Whichever of them a crash leaves out, the next run adds. A drill wants them in order.
    """
    return any(entry.state is not None for entry in entries) and all(
        isinstance(entry.sync.stores.state, LakeState) and entry.sync.watch.steps is None
        for entry in entries
    )


def _confirm(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose tables are still ours: nothing is written for one that was taken over."""
    for entry in entries:
        entry.does(entry.sync.stores.confirm)
    return [entry for entry in entries if entry.error is None]


def _each(entries: Iterable[Entry], step: str) -> None:
    for entry in entries:
        entry.does(partial(entry.sync.report_step, step))


def _group(entries: Iterable[Entry], by: Callable[[Entry], Any]) -> list[list[Entry]]:
    ordered = sorted(entries, key=lambda entry: repr(by(entry)))
    return [list(same) for _, same in groupby(ordered, by)]
