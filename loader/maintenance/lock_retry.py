"""Works on tables one after the other; locked ones come last, and are waited for a while.

A loader that runs all day holds each of its tables most of the time: without waiting, upkeep would
never get one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from loader.errors import LockedError

PATIENCE = 60.0
"""Seconds to wait for all locked tables together; starts again when one gets free."""

PAUSE = 0.2
"""Seconds between two attempts: much shorter than the gap between two runs of a loader."""

T = TypeVar("T")
R = TypeVar("R")


def in_turn(tables: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R | Exception]]:
    """Yields each table with its result, or with the exception that `work` raised.

    A :class:`LockedError` is retried until :data:`PATIENCE` seconds are over.
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
