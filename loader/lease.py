"""One writer per table: a lease with an owner, a sign of life, and an end.

Two locks, each for what the other cannot do. The kernel's file lock is exact and is given free
when its process dies, but other machines need not see it. The owner's record travels to them: who
holds the table, and when it was last alive. A record that outlived its process is taken over at
once where the kernel shows that the process is gone (same machine, lock free), elsewhere after
:data:`EXPIRY`. A run that was taken over while it slept finds out before it publishes, and the
batch number, which the catalog takes only once, stops what may slip through in between.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from filelock import BaseFileLock, Timeout

from loader.errors import LockedError, TableError

EXPIRY = 120.0
"""Seconds without a sign of life after which another machine's lease is taken over."""

BEAT = 20.0
"""Seconds between signs of life."""

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
        place: where its file lock counts, see :func:`place`.
    """

    run_id: str
    host: str
    place: str
    pid: int
    taken_at: str
    alive_at: str

    @classmethod
    def of(cls, run_id: str, where: str) -> Owner:
        """This process, alive now."""
        now = _now()
        return cls(run_id, socket.gethostname(), where, os.getpid(), now, now)

    def to_json(self) -> str:
        """The record as stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """A stored record; None where there is none, or it is torn (it is written atomically)."""
        try:
            return cls(**json.loads(text)) if text else None
        except (ValueError, TypeError):
            return None

    @property
    def silent_for(self) -> float:
        """Seconds since its last sign of life."""
        alive = dt.datetime.fromisoformat(self.alive_at)
        return (dt.datetime.now(dt.timezone.utc) - alive).total_seconds()

    def __str__(self) -> str:
        since = self.taken_at[11:19]
        return (
            f"run {self.run_id}, pid {self.pid} on {self.host}, since {since} UTC, "
            f"last sign of life {self.silent_for:.0f} s ago"
        )


class Owners(Protocol):
    """Where owners' records are kept."""

    def read(self, table: str) -> str | None:
        """The record of a table; None where nobody holds it."""

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        """Replaces the record, if it still is `before`; False where it is not."""


class FileOwners:
    """Records in files beside the lock files; swaps are made under the kernel's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, table: str) -> str | None:
        try:
            return self._path(table).read_text()
        except FileNotFoundError:
            return None

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        if self.read(table) != before:
            return False
        path = self._path(table)
        if after is None:
            path.unlink(missing_ok=True)
            return True
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        fresh.write_text(after)
        fresh.replace(path)
        return True

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.owner"


class Lease:
    """The right to write one table, from :meth:`acquire` to :meth:`release`.

    Args:
        table: the raw table.
        where: its name in messages.
        lock: the kernel's lock of it.
        owners: where the owner's record is kept.
        run_id: the run that asks.
        expiry: seconds of silence after which another machine's record is passed over.
    """

    def __init__(
        self,
        table: str,
        where: str,
        lock: BaseFileLock,
        owners: Owners,
        run_id: str,
        expiry: float = EXPIRY,
    ) -> None:
        self.table = table
        self.where = where
        self.run_id = run_id
        self.expiry = expiry
        self._lock = lock
        self._owners = owners
        self._record: str | None = None
        self._changing = threading.Lock()

    def acquire(self) -> str | None:
        """Takes the table; returns what to tell where it was taken over from a dead run.

        Raises:
            LockedError: where another run holds it; it is not waited for.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise self._refused(Owner.from_json(self._owners.read(self.table))) from None
        try:
            return self._take()
        except BaseException:
            self._lock.release()
            raise

    def _take(self) -> str | None:
        found = self._owners.read(self.table)
        owner = Owner.from_json(found)
        locked_at = place(Path(self._lock.lock_file).parent)
        here = owner is not None and owner.place == locked_at
        if owner is not None and not here and owner.silent_for < self.expiry:
            raise self._refused(owner)
        mine = Owner.of(self.run_id, locked_at).to_json()
        if not self._owners.swap(self.table, found, mine):
            raise self._refused(Owner.from_json(self._owners.read(self.table)))
        self._record = mine
        if owner is None:
            return None
        why = "whose process is gone" if here else f"silent for more than {self.expiry:.0f} s"
        return f"taken over from another run, {why} ({owner})"

    def renew(self) -> None:
        """Gives a sign of life; a lease that was taken over meanwhile stays lost."""
        with self._changing:
            owner = Owner.from_json(self._record)
            if owner is None:
                return
            fresh = replace(owner, alive_at=_now()).to_json()
            if self._owners.swap(self.table, self._record, fresh):
                self._record = fresh

    def confirm(self) -> None:
        """Makes sure that the table is still ours, before something is published.

        Raises:
            TableError: where another run took it over, as this one was silent for too long.
        """
        with self._changing:
            found = self._owners.read(self.table)
            if found != self._record:
                raise TableError(
                    "another run took the table over while this one stood still "
                    f"({Owner.from_json(found) or 'it has ended since'})",
                    where=self.where,
                    remedy="Nothing of this batch is visible; run again",
                )

    def release(self) -> None:
        """Gives the table free; a second time does nothing."""
        with self._changing:
            record, self._record = self._record, None
            try:
                if record is not None:
                    self._owners.swap(self.table, record, None)
            finally:
                self._lock.release()

    def _refused(self, owner: Owner | None) -> LockedError:
        return LockedError(
            "another run holds this table" + (f" ({owner})" if owner else ""),
            where=self.where,
            remedy="It was skipped; run again when the other is done",
        )


class Heartbeat:
    """Gives a sign of life for all leases of a run, until it is closed.

    Args:
        leases: of the run; more may be added while it goes on.
        every: seconds between two signs.
    """

    def __init__(self, leases: Sequence[Lease], every: float = BEAT) -> None:
        self._leases = leases  # it may still grow
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            for lease in tuple(self._leases):
                # A store that is away for a moment is asked again at the next beat; whether the
                # lease outlived it, `confirm` finds out.
                with suppress(Exception):
                    lease.renew()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
