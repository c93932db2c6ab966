"""Tables one after the other; those that a run holds come last, and are waited for a while.

A loader that goes on all day holds each of its tables most of the time: without waiting, upkeep
would never get one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from loader.errors import LockedError

PATIENCE = 60.0
"""Seconds that the tables which others hold are waited for, all together, while none gets free."""

PAUSE = 0.2
"""Seconds between two attempts; short against the gap between two runs of a loader."""

T = TypeVar("T")
R = TypeVar("R")


def in_turn(tables: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R | Exception]]:
    """What became of each table: a result, or what `work` raised.

    A :class:`LockedError` is final once the time of :data:`PATIENCE` is over.
    """
    waiting = list(tables)
    until: float | None = None
    while waiting:
        held: list[T] = []
        last = until is not None and time.monotonic() >= until
        for table in waiting:
            try:
                result: R | Exception = work(table)
            except LockedError as locked:
                if not last:
                    held.append(table)
                    continue
                result = locked
            except Exception as problem:
                result = problem
            yield table, result
        if held:
            if until is None or len(held) < len(waiting):
                until = time.monotonic() + PATIENCE
            time.sleep(PAUSE)
        waiting = held
