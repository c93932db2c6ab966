"""Serializes the sources of one run that share a raw table, under one lease.

One run syncs them at the same time, but only one may write the table. The run takes the lease
once, before it opens any of their snapshots. Each source waits for its turn; the lease is released
after the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from loader.lake.lease import Lease


class Turns:
    """The turns of a lease.

    Args:
        lease: of the table, taken.
        count: how many sources have a turn.
    """

    def __init__(self, lease: Lease, count: int) -> None:
        self.lease = lease
        self.busy = threading.Lock()
        self._left = count
        self._counting = threading.Lock()

    def done(self) -> None:
        """Releases the lease after the last turn."""
        with self._counting:
            self._left -= 1
            last = self._left == 0
        if last:
            self.lease.release()


class Turn(Lease):
    """One source's turn, used like a lease: its release ends the turn, the last one the lease."""

    def __init__(self, turns: Turns) -> None:
        self.table = turns.lease.table
        self.where = turns.lease.where
        self.run_id = turns.lease.run_id
        self._turns = turns
        self._over = False
        self._mine = False

    def acquire(self, tell: Callable[[str], None] | None = None) -> str | None:
        """Waits for its turn."""
        self._turns.busy.acquire()
        self._mine = True
        return None

    def confirm(self) -> None:
        self._turns.lease.confirm()

    def release(self) -> None:
        """Ends the turn; a second time does nothing."""
        if self._mine:
            self._mine = False
            self._turns.busy.release()
        if not self._over:
            self._over = True
            self._turns.done()
