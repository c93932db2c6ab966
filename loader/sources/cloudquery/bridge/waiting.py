"""Which streams are open, and which state waits for them.

A plugin writes its state in a stream of its own, beside the rows, so only the order in which
streams begin tells what a state may cover. One that has said nothing yet may bring the rows.
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
    waits_for: set[int]


class Waiting:
    """The open streams, by number, and the state that waits. The caller sees to locks."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: set[int] = set()
        self._silent: set[int] = set()
        self._held: list[Held] = []

    def entered(self) -> int:
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

    def hold(self, table: str, batch: Any) -> None:
        """Takes a state; it waits for all streams that are open."""
        self._held.append(Held(table, batch, set(self._open)))

    def over(self, number: int, failed: bool = False) -> None:
        """Notes that a stream has ended.

        Args:
            failed: its rows are not there, so a state that waits for them must not be, either.
        """
        self._open.discard(number)
        self._silent.discard(number)
        if failed:
            self._held = [held for held in self._held if number not in held.waits_for]
        for held in self._held:
            held.waits_for.discard(number)

    def free(self) -> list[Held]:
        """Takes out the state that waits for nothing any more, in its order."""
        free = [held for held in self._held if not held.waits_for]
        self._held = [held for held in self._held if held.waits_for]
        return free
