"""Reads a program's output; reading can end although another process holds the pipe open."""

from __future__ import annotations

import io
import select
import time
from typing import IO, Any

_TICK_MS = 200
_REST = 2.0
"""Seconds in which what was written before is still read."""


class Pipe(io.RawIOBase):
    """Reads a pipe; not only its end ends that, but also :meth:`leave`.

    A process that the program has started may hold the pipe open, and a thread that waits
    in `read` cannot be woken.

    Attributes:
        waits: whether a reader waits, and there is no data.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.waits = False
        self._pipe = pipe
        self._until: float | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether reading has ended."""
        return self._until is not None

    def leave(self) -> None:
        """Ends the reading, after what is there already."""
        if self._until is None:
            self._until = time.monotonic() + _REST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Waits for bytes; returns how many came, 0 at the end."""
        ready = select.poll()
        ready.register(self._pipe.fileno(), select.POLLIN)
        while self._until is None or time.monotonic() < self._until:
            left = self.is_abandoned
            if ready.poll(0):
                self.waits = False
                return int(self._pipe.readinto(buffer))  # type: ignore[attr-defined]
            if left:
                break
            self.waits = True
            ready.poll(_TICK_MS)
        self.waits = False
        self._pipe.close()
        return 0
