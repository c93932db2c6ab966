"""Locks that allow one writer per table, even across machines. They expire if their run dies.

A lease combines two locks. The kernel's file lock is released exactly when the process exits, but
other machines may not see it. They see the lock record, which identifies the owner: the run that
locked the table. However, a lock record may outlive the owner's process.

If the owner ran on this machine and the file lock is free, the owner's process has exited, and the
next run acquires the table immediately. Otherwise the next run waits until the owner's heartbeat
has not changed for :data:`EXPIRY` seconds. It measures this time on its own clock. Times in records
are only informational, because the machines' clocks differ.

A run may lose a table while it is suspended. It detects this before it publishes a batch, and
before it writes the state or the ledger. As a last resort, the catalog accepts each batch number
only once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import BaseFileLock, FileLock, Timeout

from loader.errors import LockedError, TableError
from loader.lake.catalog_lock_store import CatalogLockStore
from loader.lake.lock_files import find_local_warehouse, find_user_folder, lock_file
from loader.lake.lock_store import (
    FileLockStore,
    LockRecord,
    LockStore,
    StalenessClock,
    identify_folder,
    now,
    seconds_since,
)
from loader.names import file_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loader.lake.lake import Lake

EXPIRY = 120.0
"""A run on another machine loses its tables after this many seconds without a heartbeat."""

HEARTBEAT_INTERVAL = 20.0
"""The number of seconds between two heartbeats."""

POLL_INTERVAL = 2.0
"""The number of seconds between two checks of another run's heartbeat."""

RETRY_TIMEOUT = 60.0
"""Locked tables are retried until no table has been completed for this many seconds."""

RETRY_INTERVAL = 0.2
"""The number of seconds between two attempts.

It is short, so that an attempt can succeed between two consecutive runs of another loader.
"""

_staleness = StalenessClock()

T = TypeVar("T")
R = TypeVar("R")


class TableLocks:
    """The file locks and lock records of the tables in one namespace."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        setting = f"spark.sql.catalog.{lake.catalog}"
        self._catalog_type = lake.shared.conf.get(f"{setting}.type", None)
        self._warehouse = lake.shared.conf.get(f"{setting}.warehouse", None) or ""

    @cached_property
    def store(self) -> LockStore:
        """The store of lock records, which is the catalog itself for shared catalogs."""
        if self._local_folder is not None:
            return FileLockStore(self._local_folder)
        return CatalogLockStore(self.lake.for_thread())

    @cached_property
    def folder(self) -> Path:
        """The folder of the lock files: the namespace's folder, or one that this user owns."""
        if self._local_folder is not None:
            return self._local_folder
        return find_user_folder(self.lake.catalog, self._warehouse) / file_name(self.lake.schema)

    @cached_property
    def _local_folder(self) -> Path | None:
        warehouse = find_local_warehouse(self._catalog_type, self._warehouse)
        return warehouse / self.lake.schema if warehouse else None


_locks: dict[tuple[SparkSession, str], TableLocks] = {}
"""The locks for each session and namespace. Reusing them keeps catalog connections open."""


def get_table_locks(lake: Lake) -> TableLocks:
    """Returns the locks of a lake's tables. All calls for one namespace return the same object."""
    key = lake.shared, lake.schema
    if key not in _locks:
        _locks[key] = TableLocks(lake)
    return _locks[key]


def lock_table(lake: Lake, table: str, timeout: float = 60) -> FileLock:
    """Returns a table's file lock. The kernel releases the lock when the process exits.

    If the warehouse is a local folder, the lock file is next to the table, where all users find it,
    because a Hadoop catalog cannot serialize two writers. Otherwise it is in a folder of this user.

    Args:
        timeout: the maximum number of seconds that `acquire` waits.
    """
    folder = get_table_locks(lake).folder
    folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder / f"{file_name(table)}.lock", timeout)


def create_lease(lake: Lake, table: str, where: str, run_id: str) -> Lease:
    """Creates a table's lease but does not acquire it.

    If the catalog is shared, the lease applies to all machines.

    Args:
        where: the table's name in messages.
    """
    return Lease(table, where, lock_table(lake, table), get_table_locks(lake).store, run_id)


def delete_old_records(lake: Lake, age: float) -> int:
    """Deletes the records of runs that died more than `age` seconds ago. Returns their number."""
    return get_table_locks(lake).store.delete_old(age)


class Lease:
    """The exclusive right to write to one table, from :meth:`acquire` to :meth:`release`.

    Args:
        where: the table's name in messages.
        expiry: the number of seconds without a new heartbeat after which another machine's record
            is ignored.
        staleness: measures how long other runs' heartbeats have not changed.
        sleep: waits between two checks of another run.
    """

    def __init__(
        self,
        table: str,
        where: str,
        lock: BaseFileLock,
        store: LockStore,
        run_id: str,
        expiry: float = EXPIRY,
        staleness: StalenessClock = _staleness,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.table = table
        self.where = where
        self.run_id = run_id
        self.expiry = expiry
        self.store = store
        self._lock = lock
        self._staleness = staleness
        self._sleep = sleep
        self._record: str | None = None
        self._changing = threading.Lock()

    def acquire(self, report: Callable[[str], None] | None = None) -> str | None:
        """Acquires the lease. Returns a warning if a dead run held it, else None.

        If the owner may be dead, waits for up to `expiry` seconds for its heartbeat to change.

        Args:
            report: called with the reason before a longer wait.

        Raises:
            LockedError: if another run has locked the table.
        """
        [result] = acquire_all([self], report)
        if isinstance(result, BaseException):
            raise result
        return result

    def _acquire_file_lock(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise self._locked_error(LockRecord.from_json(self.store.read(self.table))) from None

    @property
    def _folder_id(self) -> str:
        return identify_folder(Path(self._lock.lock_file).parent)

    def _write_record(
        self, previous: str | None, record: str, report: Callable[[str], None] | None
    ) -> str | None:
        """Replaces the previous record once its run is known to be dead. May return a warning."""
        owner = LockRecord.from_json(previous)
        # If the folder is the same, the free file lock shows that the owner's process has exited.
        is_same_folder = owner is not None and owner.place == self._folder_id
        if owner is not None and not is_same_folder:
            self._wait_until_stale(owner, previous, report)
        heartbeat = self.store.read_heartbeat(owner.run_id) if owner else None
        if not self.store.swap(self.table, previous, record):
            raise self._locked_error(LockRecord.from_json(self.store.read(self.table)))
        self._record = record
        if owner is None:
            return None
        with suppress(Exception):  # a remaining heartbeat is harmless
            self.store.remove_heartbeat(owner.run_id)
        why = (
            "whose process has exited"
            if is_same_folder
            else f"which sent no heartbeat for {self.expiry:.0f} s"
        )
        return f"taken over from another run, {why} ({owner.describe(heartbeat)})"

    def _wait_until_stale(
        self, owner: LockRecord, previous: str | None, report: Callable[[str], None] | None
    ) -> None:
        """Waits until the owner's heartbeat has not changed for `expiry` seconds on this machine.

        Raises a LockedError as soon as the owner appears to be alive.
        """
        is_waiting = False
        while True:
            heartbeat = self.store.read_heartbeat(owner.run_id)
            if self.store.read(self.table) != previous:
                raise self._locked_error(LockRecord.from_json(self.store.read(self.table)))
            unchanged = self._staleness.unchanged_for((owner.run_id, owner.place), heartbeat)
            if unchanged >= self.expiry:
                return
            if unchanged == 0 and is_waiting:
                raise self._locked_error(owner)  # the heartbeat has changed, so the owner is alive
            age = seconds_since(heartbeat or owner.taken_at)
            if not is_waiting and age is not None and 0 <= age < self.expiry:
                raise self._locked_error(owner)
            if not is_waiting and report is not None:
                report(
                    f"{owner.describe(heartbeat)} has locked it and may be dead: waiting for up to "
                    f"{self.expiry - unchanged:.0f} s"
                )
            is_waiting = True
            self._sleep(min(POLL_INTERVAL, self.expiry - unchanged))

    def confirm(self) -> None:
        """Checks that this run still holds the lock. Called before each write.

        Raises a TableError if another run acquired the table while this run was suspended.
        """
        [problem] = confirm_all([self])
        if problem is not None:
            raise problem

    def _find_takeover(self, current: str | None) -> TableError | None:
        if current is not None and current == self._record:
            return None
        owner = LockRecord.from_json(current)
        by = (
            owner.describe(self.store.read_heartbeat(owner.run_id))
            if owner
            else "that run has since exited"
        )
        return TableError(
            f"another run took over the table while this run was suspended ({by})",
            where=self.where,
            remedy="This run has written nothing since; run again",
        )

    def release(self) -> None:
        """Releases the lease. Idempotent."""
        [problem] = release_all([self])
        if problem is not None:
            raise problem

    def _take_record(self) -> str | None:
        """Returns this run's lock record and clears it, so that it is released only once."""
        with self._changing:
            record, self._record = self._record, None
        return record

    def _locked_error(self, owner: LockRecord | None) -> LockedError:
        by = f" ({owner.describe(self.store.read_heartbeat(owner.run_id))})" if owner else ""
        return LockedError(
            f"another run holds this table{by}",
            where=self.where,
            remedy="It was skipped; run again after the other run has finished",
        )


def acquire_all(
    leases: Sequence[Lease], report: Callable[[str], None] | None = None
) -> list[str | Exception | None]:
    """Acquires the leases of one run in one commit.

    Returns the result or the exception of :meth:`Lease.acquire` for each lease. If a run
    that holds a lease may be dead, waits until this is certain. Does not wait for runs that are
    alive.
    """
    results: dict[Lease, str | Exception | None] = {}
    records: dict[Lease, str] = {}
    by_folder: dict[str, str] = {}
    for lease in leases:
        try:
            lease._acquire_file_lock()
            folder = lease._folder_id
            record = by_folder.setdefault(folder, LockRecord.of(lease.run_id, folder).to_json())
            records[lease] = record
        except Exception as problem:
            results[lease] = problem
    for store, by_table in _group_by_store(records):
        with suppress(Exception):  # each lease is retried below, which reports errors
            swapped = store.swap_all({name: (None, records[by_table[name]]) for name in by_table})
            for name in swapped:
                by_table[name]._record = records[by_table[name]]
                results[by_table[name]] = None
    try:
        for lease, record in records.items():
            if lease in results:
                continue
            try:
                previous = lease.store.read(lease.table)
                results[lease] = lease._write_record(previous, record, report)
            except Exception as problem:
                lease._lock.release()
                results[lease] = problem
    except BaseException:  # This run was interrupted while it waited for another run.
        for lease in records:
            lease.release()
        raise
    return [results[lease] for lease in leases]


def confirm_all(leases: Sequence[Lease]) -> list[Exception | None]:
    """Returns, for each lease, the error that :meth:`Lease.confirm` would raise, or None.

    Reads the lock records of all tables at once.
    """
    results: dict[Lease, Exception | None] = {}
    for store, by_table in _group_by_store(leases):
        try:
            records = store.read_all(by_table)
            for table, lease in by_table.items():
                results[lease] = lease._find_takeover(records[table])
        except Exception as problem:
            results |= dict.fromkeys(by_table.values(), problem)
    return [results[lease] for lease in leases]


def release_all(leases: Sequence[Lease]) -> list[Exception | None]:
    """Releases leases in one commit. Returns an error or None for each lease. Idempotent."""
    results: dict[Lease, Exception | None] = dict.fromkeys(leases)
    try:
        for store, by_table in _group_by_store(leases):
            records = {table: lease._take_record() for table, lease in by_table.items()}
            try:
                store.swap_all({name: (text, None) for name, text in records.items() if text})
            except Exception as problem:
                results |= dict.fromkeys(by_table.values(), problem)
    finally:
        for lease in leases:
            lease._lock.release()
    return [results[lease] for lease in leases]


def _group_by_store(leases: Iterable[Lease]) -> list[tuple[LockStore, dict[str, Lease]]]:
    groups: dict[int, tuple[LockStore, dict[str, Lease]]] = {}
    for lease in leases:
        groups.setdefault(id(lease.store), (lease.store, {}))[1][lease.table] = lease
    return list(groups.values())


class Heartbeat:
    """A background thread that writes a run's heartbeat, in one record for all its tables.

    Args:
        leases: the run's leases; the caller may add leases later.
        interval: the number of seconds between two heartbeats.
    """

    def __init__(self, leases: Iterable[Lease], interval: float = HEARTBEAT_INTERVAL) -> None:
        self._leases = leases  # not a copy, because the caller may add leases
        self._interval = interval
        self._stopped = threading.Event()
        self._stores: dict[tuple[int, str], LockStore] = {}
        self._thread = threading.Thread(target=self._write, name="heartbeat", daemon=True)

    def _write(self) -> None:
        while not self._stopped.wait(self._interval):
            for lease in tuple(self._leases):
                self._stores.setdefault((id(lease.store), lease.run_id), lease.store)
            for (_, run_id), store in self._stores.items():
                # If the store is only briefly unavailable, the next heartbeat succeeds. If it is
                # unavailable for longer, `confirm` detects that the run has lost its tables.
                with suppress(Exception):
                    store.write_heartbeat(run_id, now())

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stopped.set()
        self._thread.join()
        for (_, run_id), store in self._stores.items():
            with suppress(Exception):  # a remaining heartbeat is harmless
                store.write_heartbeat(run_id, None)


def retry_locked_tables(
    tables: Iterable[T], work: Callable[[T], R]
) -> Iterator[tuple[T, R | Exception]]:
    """Yields each table with the result or exception of `work`.

    After a :class:`LockedError`, a table is retried until no other table has been completed for
    :data:`RETRY_TIMEOUT` seconds.
    """
    waiting = list(tables)
    deadline: float | None = None
    while waiting:
        locked: list[T] = []
        is_last_attempt = deadline is not None and time.monotonic() >= deadline
        for table in waiting:
            try:
                result: R | Exception = work(table)
            except LockedError as problem:
                if not is_last_attempt:
                    locked.append(table)
                    continue
                result = problem
            except Exception as problem:
                result = problem
            yield table, result
        if locked:
            if deadline is None or len(locked) < len(waiting):
                deadline = time.monotonic() + RETRY_TIMEOUT
            time.sleep(RETRY_INTERVAL)
        waiting = locked
