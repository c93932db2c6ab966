"""Who holds a table, and whether that run still lives: records, and where they are kept.

An owner's record names the run. It is written once, when the run takes the table. That the run
lives, a second record says: the run's sign of life, one for all of its tables.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from loader.names import file_name

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place(folder: Path) -> str:
    """What shares file locks in a folder: this running system, and the folder as it lies there.

    Containers of one machine have one kernel, but need not see the same folder.
    """
    kernel = socket.gethostname()
    with suppress(OSError):
        kernel = _BOOT.read_text().strip()
    found = folder.stat()
    return f"{kernel}/{found.st_dev}:{found.st_ino}"


@dataclass(frozen=True)
class Owner:
    """Who holds a table; times are UTC, in ISO format.

    Attributes:
        place: where its file lock counts, see :func:`place`; empty if the record cannot be read.
    """

    run_id: str
    host: str
    place: str
    pid: int
    taken_at: str

    @classmethod
    def of(cls, run_id: str, where: str) -> Owner:
        """This process, now."""
        return cls(run_id, socket.gethostname(), where, os.getpid(), now())

    def to_json(self) -> str:
        """The record as stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """A stored record; None where there is none.

        One that cannot be read, or is of another version, is somebody's all the same.
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

    def told(self, sign: str | None) -> str:
        """The owner for people, with its sign of life."""
        silent = silent_for(sign or self.taken_at)
        last = f", last sign of life {silent:.0f} s ago" if silent is not None else ""
        since = f", since {self.taken_at[11:19]} UTC" if self.taken_at else ""
        return f"run {self.run_id}, pid {self.pid} on {self.host}{since}{last}"


def silent_for(time_text: str) -> float | None:
    """Seconds since a time that some machine's clock gave; None where it is no time."""
    try:
        then = dt.datetime.fromisoformat(time_text)
        return (dt.datetime.now(dt.timezone.utc) - then).total_seconds()
    except (ValueError, TypeError):
        return None


class Owners(Protocol):
    """Where records are kept."""

    def read(self, table: str) -> str | None:
        """The record of a table; None where nobody holds it."""

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        """Replaces the record, if it still is `before`; False where it is not."""

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        """Swaps many tables' records, by `before` and `after`; returns those that were."""

    def sign(self, run_id: str) -> str | None:
        """A run's sign of life; None where it has given none."""

    def give_sign(self, run_id: str, text: str | None) -> None:
        """Replaces a run's sign of life; with None it goes. Only the run itself does that."""

    def forget(self, run_id: str) -> None:
        """Removes a dead run's sign of life, unless it is still named as some table's owner."""

    def sweep(self, age: float) -> int:
        """Deletes what runs left that died so many seconds ago; returns how many things."""


class FileOwners:
    """Records in files beside the lock files; swaps are made under the kernel's lock."""

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

    def give_sign(self, run_id: str, text: str | None) -> None:
        _write(self._sign(run_id), text)

    def forget(self, run_id: str) -> None:
        for path in self.folder.glob("*.owner"):
            owner = Owner.from_json(_text(path))
            if owner is not None and owner.run_id == run_id:
                return
        self.give_sign(run_id, None)

    def sweep(self, age: float) -> int:
        """Deletes what runs left that died so many seconds ago; returns how many files."""
        gone = 0
        for path in (*self.folder.glob("*.alive"), *self.folder.glob("*.alive.*.*")):
            gone += _delete_old(path, age)
        for path in self.folder.glob("*.owner.*.*"):  # written beside, not yet renamed
            gone += _delete_old(path, age)
        for path in self.folder.glob("*.owner"):
            owner = Owner.from_json(_text(path))
            if owner is not None and self.sign(owner.run_id) is not None:
                continue
            lock = FileLock(path.with_suffix(".lock"), timeout=0)
            with suppress(Timeout), lock:
                gone += _delete_old(path, age)
        return gone

    def _path(self, table: str) -> Path:
        return self.folder / f"{file_name(table)}.owner"

    def _sign(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.alive"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def _delete_old(path: Path, age: float) -> bool:
    try:
        old = time.time() - path.stat().st_mtime > age
        if old:
            path.unlink()
        return old
    except FileNotFoundError:
        return False


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(text)
    fresh.replace(path)


class Witness:
    """How long something has stood still, by this machine's own clock and nobody else's.

    Args:
        clock: seconds, never set back.
        gap: seconds between two looks that count at most. Who was stopped between them has not
            watched, and what it looks at may have been stopped with it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, gap: float = 10.0) -> None:
        self._clock = clock
        self._gap = gap
        self._seen: dict[object, tuple[object, float, float]] = {}
        self._looking = threading.Lock()

    def still_for(self, what: object, looks: object) -> float:
        """Seconds for which it was seen to look so; 0 at the first look, and after a change."""
        with self._looking:
            now = self._clock()
            seen, still, last = self._seen.get(what, (object(), 0.0, now))
            still = still + min(now - last, self._gap) if seen == looks else 0.0
            self._seen[what] = (looks, still, now)
            return still


def now() -> str:
    """This machine's clock, in UTC."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
