"""Interrupts work outside Spark that cannot check for a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loader.errors import TableError

_lock = threading.Lock()
_running: list[Callable[[], object]] = []
_interrupted = threading.Event()


@contextmanager
def interruptible(end: Callable[[], object]) -> Iterator[None]:
    """Lets :func:`interrupt` end the block by calling `end` from another thread.

    Calls `end` immediately if the command has already been interrupted.
    """
    with _lock:
        _running.append(end)
        late = _interrupted.is_set()
    if late:
        end()
    try:
        yield
    finally:
        with _lock:
            _running.remove(end)


def interrupt() -> None:
    """Ends all interruptible work in this process, which then raises errors."""
    with _lock:
        _interrupted.set()
        running = list(_running)
    for end in running:
        end()


def interruption_error(where: str) -> TableError:
    again = "No row of this batch is visible; run again"
    return TableError("the run was interrupted", where=where, remedy=again)


def check_interruption(where: str) -> None:
    """Raises a TableError if the command was interrupted."""
    if _interrupted.is_set():
        raise interruption_error(where)


def resume() -> None:
    """Allows new work after an interrupted command has returned."""
    _interrupted.clear()
