"""One lease of a raw table for several sources of a run: they take turns.

Sources that share a raw table are synced by one run at the same time, while only one may write it.
The run takes the table once, before any of its sources is opened; each source waits for its turn,
and the table is free for other runs when the last one is done.
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
        """Gives the table free after the last turn."""
        with self._counting:
            self._left -= 1
            last = self._left == 0
        if last:
            self.lease.release()


class Turn(Lease):
    """One source's turn: a lease whose release ends the turn, and of the last one the lease."""

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

    def pass_on(self) -> None:
        """Lets the next source have its turn; the table is not free yet."""
        if self._mine:
            self._mine = False
            self._turns.busy.release()

    def release(self) -> None:
        """Ends the turn; a second time does nothing."""
        self.pass_on()
        if not self._over:
            self._over = True
            self._turns.done()
