"""Ends a command cleanly on SIGINT, SIGTERM or SIGHUP."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loader.spark.interruption import interrupt as interrupt_work
from loader.spark.interruption import resume
from loader.spark.temporary_files import remove_all

GRACE = 20.0
"""If the process is still running this many seconds after a signal, it is killed."""
AT_ONCE = 1.0
"""Signals within this many seconds count as one signal.

The program `timeout` sends two signals: one to its child and one to the process group.
"""


@contextmanager
def stop_on_signal(
    stop: Callable[[], object],
    cancel: Callable[[], object],
    interrupt: Callable[[], bool] = bool,
) -> Iterator[list[int]]:
    """On SIGINT, SIGTERM or SIGHUP, cancels running reads, so that nothing more is published.

    A second signal after :data:`AT_ONCE` seconds kills the process immediately. Without a second
    signal, the process is killed after :data:`GRACE` seconds, because a call to an object store or
    a database may block for minutes.

    Args:
        stop: requests the stop.
        cancel: cancels Spark's jobs.
        interrupt: called when the signal arrives. Returns whether to raise KeyboardInterrupt, for
            work that does not check for stop requests.

    Yields:
        A list to which a received signal is appended.
    """
    first: float | None = None
    received: list[int] = []

    def end() -> None:
        stop()
        interrupt_work()

    stops = threading.Thread(target=end, name="stop", daemon=True)
    cancels = threading.Thread(target=cancel, name="cancel", daemon=True)
    killers: list[threading.Timer] = []

    def handle(number: int, frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None:
            if now - first > AT_ONCE:
                remove_all()  # temporary files may contain secrets
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        first = now
        received.append(number)
        # Other threads call `stop` and `cancel`, because this thread may hold the lock that `stop`
        # needs, or may be using the connection to the JVM that `cancel` needs.
        stops.start()
        cancels.start()
        # This timer calls `handle` a second time, in the main thread, which kills the process.
        main = threading.main_thread().ident
        killers.append(threading.Timer(GRACE, signal.pthread_kill, (main, number)))
        killers[0].daemon = True
        killers[0].start()
        stops.join(0.2)
        if interrupt():
            raise KeyboardInterrupt

    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
        numbers = (*numbers, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        for killer in killers:
            killer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        if first is not None:
            stops.join(1)
            resume()


@contextmanager
def unwind_on_signal() -> Iterator[list[int]]:
    """On SIGINT, SIGTERM or SIGHUP, raises KeyboardInterrupt, so that resources are released.

    Examples are running connectors and folders with secrets. SIGTERM and SIGHUP then end the
    process, as they do by default. Commands that can stop cleanly use :func:`stop_on_signal` inside
    this context.

    Yields:
        A list to which a received signal is appended. Any error after the signal is due to an
        interrupted call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    received: list[int] = []
    try:
        with stop_on_signal(_do_nothing, _do_nothing, interrupt=lambda: True) as received:
            yield received
    finally:
        if received and received[0] != signal.SIGINT:
            from loader.spark.jvm import give_up  # imported late, to keep startup fast

            give_up()
            remove_all()
            signal.signal(received[0], signal.SIG_DFL)
            signal.raise_signal(received[0])


def _do_nothing() -> None:
    """Does nothing, because KeyboardInterrupt stops the command."""
