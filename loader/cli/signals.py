"""Ends a command in order when a signal comes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loader.spark.interruption import interrupt as interrupt_work
from loader.spark.interruption import resume
from loader.spark.temporary_files import remove_all

AT_ONCE = 1.0
"""Seconds in which several signals are one: `timeout` signals its child, then the whole group."""


@contextmanager
def stopping(
    stop: Callable[[], object],
    cancel: Callable[[], object],
    interrupt: Callable[[], bool] = bool,
) -> Iterator[list[int]]:
    """On SIGINT, SIGTERM or SIGHUP, cancels running reads and publishes nothing more.

    A second signal, later than :data:`AT_ONCE`, ends the process at once, even while it waits: a
    connection whose network is silent is never closed.

    Args:
        stop: requests the stop.
        cancel: cancels Spark's jobs.
        interrupt: whether also to raise KeyboardInterrupt, now that the signal has come: for work
            that does not poll for a stop.

    Yields:
        The signal, once one has come.
    """
    first: float | None = None
    came: list[int] = []

    def end() -> None:
        stop()
        interrupt_work()

    stops = threading.Thread(target=end, name="stop", daemon=True)
    cancels = threading.Thread(target=cancel, name="cancel", daemon=True)

    def handle(number: int, frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None:
            if now - first > AT_ONCE:
                remove_all()  # some hold secrets
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        first = now
        came.append(number)
        # Not in this thread. It may hold the lock that `stop` wants, or be in the middle of a
        # call to the JVM: a second call would use the same connection.
        stops.start()
        cancels.start()
        stops.join(0.2)
        if interrupt():
            raise KeyboardInterrupt

    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` lets it be ignored
        numbers = (*numbers, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if first is not None:
            stops.join(1)
            resume()


@contextmanager
def unwinding() -> Iterator[list[int]]:
    """On SIGINT, SIGTERM or SIGHUP, raises KeyboardInterrupt, so that all that is open is closed.

    It may be a folder with secrets, or a connector. SIGTERM and SIGHUP then end the process, as
    they do by default. A command that ends in order by itself (:func:`stopping`) does so in this.

    Yields:
        The signal, once one has come. An error after it is what an interrupted call left behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    came: list[int] = []
    try:
        with stopping(_nothing, _nothing, interrupt=lambda: True) as came:
            yield came
    finally:
        if came and came[0] != signal.SIGINT:
            from loader.spark.jvm import give_up  # most commands that end at once need none of it

            give_up()
            remove_all()
            signal.signal(came[0], signal.SIG_DFL)
            signal.raise_signal(came[0])


def _nothing() -> None:
    """Does nothing: the exception is enough."""
