"""One writer per table: a lock with an owner, a sign of life, and an expiry.

Two locks, each for what the other cannot do. The kernel's file lock is exact, and is released when
its process dies, but other machines may not see it. The owner's record they do see: it says which
run holds the table. A record may outlive its process. If the kernel shows that the process is gone
(same machine, lock free), another run takes the table over at once. Otherwise it watches, and takes
over once the run's sign of life has not changed for :data:`EXPIRY` seconds by the watcher's own
clock: the times in the records come from another machine, and are only shown to people. A run that
was taken over while it was suspended finds out before it publishes, and before it writes state or
ledger. If anything slips through, the catalog stops it: it takes each batch number only once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, Timeout

from loader.errors import LockedError, TableError
from loader.lake.lock_store import LockRecord, LockStore, StalenessClock, now, place, silent_for

EXPIRY = 120.0
"""Seconds to watch another machine's run without a sign of life before taking its table over."""

BEAT = 20.0
"""Seconds between signs of life."""

LOOK = 2.0
"""Seconds between two looks at a run that may be dead."""

_witness = StalenessClock()


class Lease:
    """The right to write one table, from :meth:`acquire` to :meth:`release`.

    Args:
        table: the raw table.
        where: its name in messages.
        lock: its file lock.
        owners: where the owner's record is kept.
        run_id: the run that wants it.
        expiry: seconds of silence after which another machine's record no longer counts.
        witness: this process's observations of other runs.
        pause: sleeps, in seconds, between two looks at another run.
    """

    def __init__(
        self,
        table: str,
        where: str,
        lock: BaseFileLock,
        owners: LockStore,
        run_id: str,
        expiry: float = EXPIRY,
        witness: StalenessClock = _witness,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.table = table
        self.where = where
        self.run_id = run_id
        self.expiry = expiry
        self.owners = owners
        self._lock = lock
        self._witness = witness
        self._pause = pause
        self._record: str | None = None
        self._changing = threading.Lock()

    def acquire(self, tell: Callable[[str], None] | None = None) -> str | None:
        """Takes the table; returns a warning if it was taken over from a dead run.

        Watches a run that may be dead until it shows a sign of life, or for `expiry` seconds.

        Args:
            tell: called with the reason if this takes a while.

        Raises:
            LockedError: another run holds it.
        """
        [taken] = acquire_all([self], tell)
        if isinstance(taken, BaseException):
            raise taken
        return taken

    def _lock_here(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise self._refusal(LockRecord.from_json(self.owners.read(self.table))) from None

    @property
    def _place(self) -> str:
        return place(Path(self._lock.lock_file).parent)

    def _take_over(
        self, found: str | None, mine: str, tell: Callable[[str], None] | None
    ) -> str | None:
        """Takes the table from the run that a record names, once it is known to be dead."""
        owner = LockRecord.from_json(found)
        here = owner is not None and owner.place == self._place
        if owner is not None and not here:
            self._watch(owner, found, tell)
        sign = self.owners.sign(owner.run_id) if owner else None
        if not self.owners.swap(self.table, found, mine):
            raise self._refusal(LockRecord.from_json(self.owners.read(self.table)))
        self._record = mine
        if owner is None:
            return None
        with suppress(Exception):  # a leftover sign does no harm
            self.owners.forget(owner.run_id)
        why = "whose process is gone" if here else f"silent for {self.expiry:.0f} s"
        return f"taken over from another run, {why} ({owner.describe(sign)})"

    def _watch(
        self, owner: LockRecord, found: str | None, tell: Callable[[str], None] | None
    ) -> None:
        """Returns once a run has been silent for long enough, by this machine's own clock.

        Raises:
            LockedError: it is alive, or its last sign is so recent that it probably is.
        """
        asked = False
        while True:
            sign = self.owners.sign(owner.run_id)
            if self.owners.read(self.table) != found:
                raise self._refusal(LockRecord.from_json(self.owners.read(self.table)))
            still = self._witness.still_for((owner.run_id, owner.place), sign)
            if still >= self.expiry:
                return
            if still == 0 and asked:
                raise self._refusal(owner)  # it has just given a sign
            silent = silent_for(sign or owner.taken_at)
            if not asked and silent is not None and 0 <= silent < self.expiry:
                raise self._refusal(owner)
            if not asked and tell is not None:
                tell(
                    f"{owner.describe(sign)} holds it and may be dead: watched for up to "
                    f"{self.expiry - still:.0f} s"
                )
            asked = True
            self._pause(min(LOOK, self.expiry - still))

    def confirm(self) -> None:
        """Makes sure that the lock is still ours; called before each write.

        Raises:
            TableError: another run took it over, as this one was silent for too long.
        """
        with self._changing:
            found = self.owners.read(self.table)
            if found is None or found != self._record:
                owner = LockRecord.from_json(found)
                by = (
                    owner.describe(self.owners.sign(owner.run_id))
                    if owner
                    else "it has ended since"
                )
                raise TableError(
                    f"another run took the table over while this run was suspended ({by})",
                    where=self.where,
                    remedy="This run has written nothing since; run again",
                )

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        with self._changing:
            record, self._record = self._record, None
            try:
                if record is not None:
                    self.owners.swap(self.table, record, None)
            finally:
                self._lock.release()

    def _refusal(self, owner: LockRecord | None) -> LockedError:
        by = f" ({owner.describe(self.owners.sign(owner.run_id))})" if owner else ""
        return LockedError(
            f"another run holds this table{by}",
            where=self.where,
            remedy="It was skipped; run again when the other is done",
        )


def acquire_all(
    leases: Sequence[Lease], tell: Callable[[str], None] | None = None
) -> list[str | Exception | None]:
    """Takes many tables of one run in one commit.

    Returns for each table what :meth:`Lease.acquire` would return, or the error that it would
    raise. Does not wait for tables that another run holds, unless that run may be dead.
    """
    ended: dict[Lease, str | Exception | None] = {}
    records: dict[Lease, str] = {}
    mine: dict[str, str] = {}
    for lease in leases:
        try:
            lease._lock_here()
            where = lease._place
            records[lease] = mine.setdefault(where, LockRecord.of(lease.run_id, where).to_json())
        except Exception as problem:
            ended[lease] = problem
    for owners in {id(lease.owners): lease.owners for lease in records}.values():
        asked = {lease.table: lease for lease in records if lease.owners is owners}
        with suppress(Exception):  # each is tried again below, and reports its own error
            taken = owners.swap_all({name: (None, records[one]) for name, one in asked.items()})
            for name in taken:
                asked[name]._record = records[asked[name]]
                ended[asked[name]] = None
    try:
        for lease, record in records.items():
            if lease in ended:
                continue
            try:
                found = lease.owners.read(lease.table)
                ended[lease] = lease._take_over(found, record, tell)
            except Exception as problem:
                lease._lock.release()
                ended[lease] = problem
    except BaseException:  # interrupted while another run was watched
        for lease in records:
            lease.release()
        raise
    return [ended[lease] for lease in leases]


class Heartbeat:
    """Gives a run's sign of life until it is closed: one record for all of its tables.

    Args:
        leases: the run's; the caller may add more while it beats.
        every: seconds between two signs.
    """

    def __init__(self, leases: Iterable[Lease], every: float = BEAT) -> None:
        self._leases = leases  # it may still grow
        self._every = every
        self._over = threading.Event()
        self._given: dict[tuple[int, str], LockStore] = {}
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            for lease in tuple(self._leases):
                self._given.setdefault((id(lease.owners), lease.run_id), lease.owners)
            for (_, run_id), owners in self._given.items():
                # If the store is down for a moment, the next beat tries again; `confirm` finds out
                # whether the run still holds its tables.
                with suppress(Exception):
                    owners.heartbeat(run_id, now())

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._thread.join()
        for (_, run_id), owners in self._given.items():
            with suppress(Exception):  # a leftover sign means nothing: no table names the run
                owners.heartbeat(run_id, None)
