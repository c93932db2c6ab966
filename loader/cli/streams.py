"""Standard output and standard error, either of which may be closed, full or gone."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from loader.errors import LoaderError

OUT, ERR = "stdout", "stderr"
_CLOSED = "it is closed"


class Streams:
    """Writes to the standard streams. What cannot be written is lost, and nothing fails for it.

    A sync must not fail a table because its progress is no longer read. The exit code shows it:
    see :attr:`code`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lost: dict[str, Exception] = {}
        self._closed = {name for name in (OUT, ERR) if getattr(sys, name) is None}
        if self._closed:
            self._replace()

    @property
    def code(self) -> int:
        """The exit code of a command that did its work: 0 unless standard output was lost.

        If a pipe has lost its reader, it is that of a process that SIGPIPE ended, 141.
        """
        lost = self._lost.get(OUT)
        if lost is None:
            return 0
        return 128 + signal.SIGPIPE if _unread(lost) else LoaderError.exit_code

    @property
    def error(self) -> LoaderError | None:
        """Why standard output was lost; None if it was not, or if its reader went away."""
        lost = self._lost.get(OUT)
        if lost is None or _unread(lost):
            return None
        why = getattr(lost, "strerror", None) or _CLOSED
        return LoaderError(
            f"it cannot be written: {why}",
            where="standard output",
            remedy="The command did its work without it; `loader status` shows the tables",
        )

    def write(self, name: str, write: Callable[[], object]) -> None:
        """Calls `write`, which writes to a stream; does nothing if the stream was lost before."""
        with self._lock:
            if name in self._lost:
                return
            if name in self._closed:
                self._lost[name] = ValueError(_CLOSED)
                return
            stream: Any = getattr(sys, name)
            try:
                write()
                stream.flush()
            except (OSError, ValueError) as error:
                if isinstance(error, ValueError) and not stream.closed:
                    raise
                self._lost[name] = error
                discard(stream)

    def _replace(self) -> None:
        """Opens closed streams on nothing, so that no file or socket gets their numbers."""
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                with suppress(OSError):
                    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        for name in self._closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _unread(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def discard(stream: Any) -> None:
    """Lets what is left in a stream's buffer go nowhere: else Python reports it at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
