"""Interrupts work outside Spark on a signal, as it does not poll for a stop."""

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
    """While this is open, :func:`interrupt` calls `end`, in another thread than the work's.

    If it has been called already, so is `end`, at once: a stopped command begins nothing.
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
    """Ends all such work of this process; callers that wait for it get an error."""
    with _lock:
        _interrupted.set()
        running = list(_running)
    for end in running:
        end()


def interruption_error(where: str) -> TableError:
    """Returns the error of work that ends because the command was asked to stop."""
    again = "Nothing of this batch is visible; run again"
    return TableError("the run was interrupted", where=where, remedy=again)


def check_interruption(where: str) -> None:
    """Raises an error if the command was asked to stop.

    Raises:
        TableError: if it was.
    """
    if _interrupted.is_set():
        raise interruption_error(where)


def resume() -> None:
    """Lets such work run again: the command that was to stop has ended."""
    _interrupted.clear()
