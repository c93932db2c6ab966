"""Delays a state until all open streams whose rows it may cover have ended.

A plugin writes its state and its rows in different streams. So a state may cover the rows of any
stream that started earlier, even one that has not sent anything yet. If a stream fails or the
server restarts, the stream's rows are not appended, but later states of running syncs may still
cover them. A new sync first reads the stored state, which does not cover these rows. So a client's
states are accepted only if the client has read the stored state since the last failure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any


@dataclass
class PendingState:
    """A state that waits for streams to end.

    Attributes:
        size: the size of the rows in memory, in bytes.
        waits_for: the numbers of the open streams whose rows the state may cover.
    """

    table: str
    batch: Any
    size: int
    waits_for: set[int]


class StateBarrier:
    """The open streams, and the states that wait for them. Callers must hold the server's lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: set[int] = set()
        self._silent: set[int] = set()
        self._pending: list[PendingState] = []
        self._trusted: set[tuple[str, str]] = set()
        self._untrusted: set[tuple[str, str]] = set()

    def begin_stream(self) -> int:
        """Adds a new stream and returns its number."""
        number = next(self._numbers)
        self._open.add(number)
        self._silent.add(number)
        return number

    def note_rows(self, number: int) -> None:
        self._open.add(number)
        self._silent.discard(number)

    def note_state(self, number: int) -> None:
        """Records that a stream sends states. No state waits for a stream that sends no rows."""
        if number in self._silent:
            self.end_stream(number)

    def note_read(self, client: str, table: str) -> None:
        """Records that a client has read the stored state, so its later states are based on it."""
        self._trusted.add((client, table))
        self._untrusted.discard((client, table))

    @property
    def size(self) -> int:
        return sum(pending.size for pending in self._pending)

    def hold_back(self, client: str, table: str, batch: Any, size: int) -> bool:
        """Adds a state, which then waits for all open streams.

        Returns False if the state must be dropped, because it may cover rows that were not
        appended.
        """
        if not self._is_trusted(client, table):
            return False
        self._pending.append(PendingState(table, batch, size, set(self._open)))
        return True

    def _is_trusted(self, client: str, table: str) -> bool:
        """Returns whether a client has read the stored state since the start or the last failure.

        A client that reconnects looks unknown: the Python SDK reconnects for each call, and the Go
        SDK after 30 idle minutes. So an unknown client is trusted if any client has read the stored
        state.
        """
        if (client, table) in self._trusted:
            return True
        if (client, table) in self._untrusted:
            return False
        return any(read == table for _, read in self._trusted)

    def end_stream(self, number: int, failed: bool = False) -> list[str]:
        """Removes a stream that has ended. Returns the tables whose states were dropped.

        Args:
            failed: whether the stream's rows were not appended. If so, states that may cover these
                rows are dropped.
        """
        dropped: list[PendingState] = []
        if failed and number in self._open:  # a stream that is not open has sent no rows
            self._untrusted |= self._trusted
            self._trusted.clear()
            dropped = [pending for pending in self._pending if number in pending.waits_for]
            self._pending = [
                pending for pending in self._pending if number not in pending.waits_for
            ]
        self._open.discard(number)
        self._silent.discard(number)
        for pending in self._pending:
            pending.waits_for.discard(number)
        return [pending.table for pending in dropped]

    def release(self) -> list[PendingState]:
        """Removes and returns the states that no longer wait for a stream, oldest first."""
        released = [pending for pending in self._pending if not pending.waits_for]
        self._pending = [pending for pending in self._pending if pending.waits_for]
        return released
