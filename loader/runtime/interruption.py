"""Work outside Spark that a signal must end, because it does not ask whether to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_running: list[Callable[[], object]] = []


@contextmanager
def interruptible(end: Callable[[], object]) -> Iterator[None]:
    """While this is open, :func:`interrupt` calls `end`, in another thread than the work's."""
    _running.append(end)
    try:
        yield
    finally:
        _running.remove(end)


def interrupt() -> None:
    """Ends all such work of this process; whoever waits for it gets an error."""
    for end in list(_running):
        end()
