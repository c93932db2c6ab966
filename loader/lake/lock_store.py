"""Stores the lock records of tables and the heartbeats of runs.

A lock record identifies the run that locked a table, and is written once. Each run also has one
heartbeat record for all its tables, which it rewrites as long as it is alive.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from filelock import Timeout

from loader.lake.lock_files import lock_file, planted_file_error
from loader.names import file_name
from loader.spark.safe_files import create_regular, read_regular

_MAX_BYTES = 1 << 16
"""The maximum size of a record. A valid record has a few hundred bytes."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identify_folder(folder: Path) -> str:
    """Returns an identifier for the combination of the running kernel and a folder.

    A file lock is visible only to processes that share both. Containers on one machine share the
    kernel but may mount different folders.
    """
    kernel = socket.gethostname()
    with suppress(OSError):
        kernel = _BOOT.read_text().strip()
    status = folder.stat()
    return f"{kernel}/{status.st_dev}:{status.st_ino}"


@dataclass(frozen=True)
class LockRecord:
    """The record of the run that locked a table.

    Attributes:
        place: the scope of the file lock (:func:`identify_folder`). Empty if the stored record was
            unreadable.
        taken_at: the time at which the run locked the table, in UTC and ISO format.
    """

    run_id: str
    host: str
    place: str
    pid: int
    taken_at: str

    @classmethod
    def of(cls, run_id: str, place: str) -> LockRecord:
        return cls(run_id, socket.gethostname(), place, os.getpid(), now())

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> LockRecord | None:
        """Parses a stored record. Returns None if there is none.

        If the record cannot be parsed, the table still counts as locked, by an unknown owner.
        """
        if not text:
            return None
        try:
            values = json.loads(text)
            record = cls(**{field.name: values[field.name] for field in fields(cls)})
            texts = (record.run_id, record.host, record.place, record.taken_at)
            if not all(isinstance(each, str) for each in texts) or type(record.pid) is not int:
                raise ValueError("a value of another type")
            return record
        except (ValueError, TypeError, KeyError):
            return cls("unknown", "another machine", "", 0, "")

    def describe(self, heartbeat: str | None) -> str:
        """Describes the run and the age of its last heartbeat, for a message."""
        age = seconds_since(heartbeat or self.taken_at)
        last = f", last heartbeat {age:.0f} s ago" if age is not None else ""
        since = f", since {self.taken_at[11:19]} UTC" if self.taken_at else ""
        return f"run {self.run_id}, pid {self.pid} on {self.host}{since}{last}"


def seconds_since(time_text: str) -> float | None:
    """Returns the seconds since a time in ISO format, or None if the string is not a time."""
    try:
        time = dt.datetime.fromisoformat(time_text)
        return (dt.datetime.now(dt.timezone.utc) - time).total_seconds()
    except (ValueError, TypeError):
        return None


class LockStore(Protocol):
    """Stores lock records and heartbeats."""

    def read(self, table: str) -> str | None:
        """Returns a table's lock record, or None if the table is unlocked."""

    def read_all(self, tables: Collection[str]) -> dict[str, str | None]:
        """Returns the lock record of each table."""

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        """Replaces a lock record if it matches `before`. Returns whether it was replaced."""

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        """Replaces the lock record of each table if it matches `before`.

        Returns the tables whose records were replaced.

        Args:
            changes: a pair of `before` and `after` for each table.
        """

    def read_heartbeat(self, run_id: str) -> str | None:
        """Returns the time of a run's last heartbeat, or None if there is none."""

    def write_heartbeat(self, run_id: str, text: str | None) -> None:
        """Replaces a run's heartbeat, or removes it if `text` is None.

        Only the run itself may call this; other runs call :meth:`remove_heartbeat`.
        """

    def remove_heartbeat(self, run_id: str) -> None:
        """Removes a dead run's heartbeat unless a lock record still refers to the run."""

    def delete_old(self, age: float) -> int:
        """Deletes records of runs that died more than `age` seconds ago. Returns their number."""


class FileLockStore:
    """Stores records in files next to the lock files.

    The caller of :meth:`swap` must have acquired the table's file lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, table: str) -> str | None:
        return _read_text(self._record_path(table))

    def read_all(self, tables: Collection[str]) -> dict[str, str | None]:
        return {table: self.read(table) for table in tables}

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        if self.read(table) != before:
            return False
        _replace_text(self._record_path(table), after)
        return True

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        return {table for table, change in changes.items() if self.swap(table, *change)}

    def read_heartbeat(self, run_id: str) -> str | None:
        return _read_text(self._heartbeat_path(run_id))

    def write_heartbeat(self, run_id: str, text: str | None) -> None:
        _replace_text(self._heartbeat_path(run_id), text)

    def remove_heartbeat(self, run_id: str) -> None:
        for path in self.folder.glob("*.owner"):
            owner = LockRecord.from_json(_read_text(path))
            if owner is not None and owner.run_id == run_id:
                return
        self.write_heartbeat(run_id, None)

    def delete_old(self, age: float) -> int:
        deleted = 0
        for path in (*self.folder.glob("*.alive"), *self.folder.glob("*.alive.*.*")):
            deleted += _delete_old_file(path, age)
        for path in self.folder.glob("*.owner.*.*"):  # temporary files that were never renamed
            deleted += _delete_old_file(path, age)
        for path in self.folder.glob("*.owner"):
            owner = LockRecord.from_json(_read_text(path))
            if owner is not None and self.read_heartbeat(owner.run_id) is not None:
                continue
            lock = lock_file(path.with_suffix(".lock"), timeout=0)
            with suppress(Timeout), lock:
                deleted += _delete_old_file(path, age)
        return deleted

    def _record_path(self, table: str) -> Path:
        return self.folder / f"{file_name(table)}.owner"

    def _heartbeat_path(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.alive"


def _read_text(path: Path) -> str | None:
    try:
        return read_regular(path, _MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise planted_file_error(path, error.strerror or str(error)) from None


def _delete_old_file(path: Path, age: float) -> bool:
    try:
        is_old = time.time() - path.lstat().st_mtime > age
        if is_old:
            path.unlink()
        return is_old
    except FileNotFoundError:
        return False


def _replace_text(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        create_regular(temporary, text.encode())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise planted_file_error(path, error.strerror or str(error)) from None


class StalenessClock:
    """Measures, on this machine's clock, how long values have stayed the same.

    Args:
        clock: returns monotonic seconds.
        max_gap: the maximum number of seconds to count between two calls. After a longer gap, this
            machine was probably suspended, and the run that it observes may have been, too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_gap: float = 10.0) -> None:
        self._clock = clock
        self._max_gap = max_gap
        self._values: dict[object, tuple[object, float, float]] = {}
        self._changing = threading.Lock()

    def unchanged_for(self, key: object, value: object) -> float:
        """Returns for how many seconds a key has had this value; 0 for a new key or value."""
        with self._changing:
            now = self._clock()
            previous, seconds, last = self._values.get(key, (object(), 0.0, now))
            seconds = seconds + min(now - last, self._max_gap) if previous == value else 0.0
            self._values[key] = (value, seconds, now)
            return seconds


def now() -> str:
    """Returns this machine's current time in UTC, in ISO format."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
