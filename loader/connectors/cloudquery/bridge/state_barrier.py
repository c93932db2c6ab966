"""Holds back state until the open streams whose rows it may cover have ended.

A plugin writes its state in a stream of its own, beside the rows, so only the order in which
streams begin shows which rows a state may cover. A stream that has sent nothing yet may bring the
rows. Once a stream has failed, or the server has ended, state of syncs that began before may cover
rows that were lost, whenever it comes. Every sync begins by reading the state, so reading it makes
a client trusted, until a stream fails.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any


@dataclass
class Held:
    """State that came while streams were open: it counts once they all are appended."""

    table: str
    batch: Any
    size: int
    waits_for: set[int]


class StateBarrier:
    """The open streams, by number, and the state that waits. The caller holds the lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: set[int] = set()
        self._silent: set[int] = set()
        self._held: list[Held] = []
        self._trusted: set[tuple[str, str]] = set()
        self._doubted: set[tuple[str, str]] = set()

    def enter(self) -> int:
        """Notes a stream that has begun, and may bring anything; returns its number."""
        number = next(self._numbers)
        self._open.add(number)
        self._silent.add(number)
        return number

    def has_rows(self, number: int) -> None:
        """Notes that a stream brings rows."""
        self._open.add(number)
        self._silent.discard(number)

    def has_state(self, number: int) -> None:
        """Notes that a stream brings state: if it has no rows, none waits for it."""
        if number in self._silent:
            self.over(number)

    def has_read(self, client: str, table: str) -> None:
        """Notes that a client has read the state: its later states follow from that."""
        self._trusted.add((client, table))
        self._doubted.discard((client, table))

    @property
    def size(self) -> int:
        """Returns how many bytes of state wait."""
        return sum(held.size for held in self._held)

    def hold(self, client: str, table: str, batch: Any, size: int) -> bool:
        """Takes a state; it waits for all streams that are open.

        Returns False if it may cover rows that were lost, so it must not count.
        """
        if not self._is_trusted(client, table):
            return False
        self._held.append(Held(table, batch, size, set(self._open)))
        return True

    def _is_trusted(self, client: str, table: str) -> bool:
        """Returns whether a client has read the state since the last start and the last failure.

        One that has never read it, as far as is known, is trusted if any client has since: Python's
        SDK reconnects for each call, and Go's after half an hour of silence.
        """
        if (client, table) in self._trusted:
            return True
        if (client, table) in self._doubted:
            return False
        return any(read == table for _, read in self._trusted)

    def over(self, number: int, failed: bool = False) -> list[str]:
        """Notes that a stream has ended; returns the tables of the states that are dropped for it.

        Args:
            failed: its rows are not there, so a state that may cover them must not be, either.
        """
        dropped: list[Held] = []
        if failed and number in self._open:  # others bring nothing but state
            self._doubted |= self._trusted
            self._trusted.clear()
            dropped = [held for held in self._held if number in held.waits_for]
            self._held = [held for held in self._held if number not in held.waits_for]
        self._open.discard(number)
        self._silent.discard(number)
        for held in self._held:
            held.waits_for.discard(number)
        return [held.table for held in dropped]

    def free(self) -> list[Held]:
        """Takes out the state that waits for nothing any more, in its order."""
        free = [held for held in self._held if not held.waits_for]
        self._held = [held for held in self._held if held.waits_for]
        return free
