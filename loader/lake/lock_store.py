"""Stores the lock records: one names the run that holds a table, one proves that it is alive.

An owner's record names the run; it is written once, when the run takes the table. A second record
shows that the run is alive: its sign of life, one for all of its tables.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from loader.errors import TableError
from loader.names import file_name
from loader.spark.safe_files import create_regular, read_regular

_LONGEST = 1 << 16
"""The most bytes of a record; a valid one has a few hundred."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place(folder: Path) -> str:
    """Identifies where a folder's file locks count: the running kernel and the folder itself.

    Containers on one machine share its kernel, but may not see the same folder.
    """
    kernel = socket.gethostname()
    with suppress(OSError):
        kernel = _BOOT.read_text().strip()
    found = folder.stat()
    return f"{kernel}/{found.st_dev}:{found.st_ino}"


def lock_file(path: Path, timeout: float) -> FileLock:
    """Returns a file lock that only users with write access to its folder can open.

    Read access to a lock file is enough to hold its lock.
    """
    folder = stat.S_IMODE(path.parent.stat().st_mode)
    mode = 0o600 | (0o060 if folder & 0o020 else 0) | (0o006 if folder & 0o002 else 0)
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise _refuse_planted(path, "it is a link, a folder, a pipe or a device, not a file")
        if stat.S_IMODE(found.st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)  # as an older version, or the umask, made it
    return FileLock(path, timeout=timeout, mode=mode, thread_local=False)


@dataclass(frozen=True)
class LockRecord:
    """Identifies the run that holds a table; times are UTC, in ISO format.

    Attributes:
        place: where its file lock counts (:func:`place`); empty if the record cannot be read.
    """

    run_id: str
    host: str
    place: str
    pid: int
    taken_at: str

    @classmethod
    def of(cls, run_id: str, where: str) -> LockRecord:
        """Makes a record for this process, taken now."""
        return cls(run_id, socket.gethostname(), where, os.getpid(), now())

    def to_json(self) -> str:
        """Returns the record as stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> LockRecord | None:
        """Parses a stored record; None if there is none.

        A record that cannot be parsed, or has another version, still counts as a holder's.
        """
        if not text:
            return None
        try:
            said = json.loads(text)
            found = cls(**{field.name: said[field.name] for field in fields(cls)})
            texts = (found.run_id, found.host, found.place, found.taken_at)
            if not all(isinstance(each, str) for each in texts) or type(found.pid) is not int:
                raise ValueError("a value of another kind")
            return found
        except (ValueError, TypeError, KeyError):
            return cls("unknown", "another machine", "", 0, "")

    def describe(self, sign: str | None) -> str:
        """Describes the owner for people, with its sign of life."""
        silent = silent_for(sign or self.taken_at)
        last = f", last sign of life {silent:.0f} s ago" if silent is not None else ""
        since = f", since {self.taken_at[11:19]} UTC" if self.taken_at else ""
        return f"run {self.run_id}, pid {self.pid} on {self.host}{since}{last}"


def silent_for(time_text: str) -> float | None:
    """Returns the seconds since a time from some machine's clock; None if it is not a time."""
    try:
        then = dt.datetime.fromisoformat(time_text)
        return (dt.datetime.now(dt.timezone.utc) - then).total_seconds()
    except (ValueError, TypeError):
        return None


class LockStore(Protocol):
    """Stores the lock records."""

    def read(self, table: str) -> str | None:
        """Returns a table's record; None if no run holds the table."""

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        """Replaces the record if it still is `before`; returns whether it was."""

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        """Swaps the records of many tables, each `before` and `after`; returns the swapped."""

    def sign(self, run_id: str) -> str | None:
        """Returns a run's sign of life; None if it has given none."""

    def heartbeat(self, run_id: str, text: str | None) -> None:
        """Replaces a run's sign of life; None removes it. Only for the run itself."""

    def forget(self, run_id: str) -> None:
        """Removes a dead run's sign of life, unless some table's record still names the run."""

    def sweep(self, age: float) -> int:
        """Deletes leftovers of runs that died over `age` seconds ago; returns their number."""


class FileLockStore:
    """Records in files beside the lock files; the caller swaps under the table's file lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, table: str) -> str | None:
        return _text(self._path(table))

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        if self.read(table) != before:
            return False
        _write(self._path(table), after)
        return True

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        return {table for table, change in changes.items() if self.swap(table, *change)}

    def sign(self, run_id: str) -> str | None:
        return _text(self._sign(run_id))

    def heartbeat(self, run_id: str, text: str | None) -> None:
        _write(self._sign(run_id), text)

    def forget(self, run_id: str) -> None:
        for path in self.folder.glob("*.owner"):
            owner = LockRecord.from_json(_text(path))
            if owner is not None and owner.run_id == run_id:
                return
        self.heartbeat(run_id, None)

    def sweep(self, age: float) -> int:
        """Deletes the files of runs that died over `age` seconds ago; returns their number."""
        gone = 0
        for path in (*self.folder.glob("*.alive"), *self.folder.glob("*.alive.*.*")):
            gone += _delete_old(path, age)
        for path in self.folder.glob("*.owner.*.*"):  # temporary files that were never renamed
            gone += _delete_old(path, age)
        for path in self.folder.glob("*.owner"):
            owner = LockRecord.from_json(_text(path))
            if owner is not None and self.sign(owner.run_id) is not None:
                continue
            lock = lock_file(path.with_suffix(".lock"), timeout=0)
            with suppress(Timeout), lock:
                gone += _delete_old(path, age)
        return gone

    def _path(self, table: str) -> Path:
        return self.folder / f"{file_name(table)}.owner"

    def _sign(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.alive"


def _text(path: Path) -> str | None:
    try:
        return read_regular(path, _LONGEST).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refuse_planted(path, error.strerror or str(error)) from None


def _refuse_planted(path: Path, why: str) -> TableError:
    return TableError(
        f"this is no lock record: {why}",
        where=str(path),
        remedy="Somebody else put it there: remove it, see who may write to the folder, and run "
        "again",
    )


def _delete_old(path: Path, age: float) -> bool:
    try:
        old = time.time() - path.lstat().st_mtime > age
        if old:
            path.unlink()
        return old
    except FileNotFoundError:
        return False


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        create_regular(fresh, text.encode())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise _refuse_planted(path, error.strerror or str(error)) from None


class StalenessClock:
    """Measures how long something has not changed, only by this machine's own clock.

    Args:
        clock: seconds, never set back.
        gap: the most seconds that count between two looks. A watcher that was suspended between
            them has not watched, and the watched may have been suspended with it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, gap: float = 10.0) -> None:
        self._clock = clock
        self._gap = gap
        self._seen: dict[object, tuple[object, float, float]] = {}
        self._looking = threading.Lock()

    def still_for(self, what: object, looks: object) -> float:
        """Returns the seconds it was seen unchanged; 0 at the first look, and after a change."""
        with self._looking:
            now = self._clock()
            seen, still, last = self._seen.get(what, (object(), 0.0, now))
            still = still + min(now - last, self._gap) if seen == looks else 0.0
            self._seen[what] = (looks, still, now)
            return still


def now() -> str:
    """Returns this machine's time, in UTC."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
