"""Bounds what one client can take from all others: streams, silence, memory and the disk."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STREAMS = 64
"""Streams that write at the same time; each has a thread and may hold a message."""
OTHER_CALLS = 64
"""Calls of other kinds, which end at once or wait for the loader's start."""
TABLES = 5_000
"""Tables of a session: the loader makes each of them in the lake."""
SCHEMA_BYTES = 64 << 20
"""Of a session's tables; they are kept in memory until it ends."""
STATE_BYTES = 64 << 20
"""Of all states, those that wait included; they are kept in memory, too."""


class OverBudgetError(Exception):
    """A call takes more than its share; the text is for people."""


class IdleTimeout:
    """Ends calls that wait for their client for too long.

    All state waits for an open stream, so one that is left open would hold up every other sync.

    Args:
        longest: seconds.
        ended: is called for each call that is ended.
    """

    def __init__(self, longest: float, ended: Callable[[], None]) -> None:
        self._longest = longest
        self._ended = ended
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._changing = threading.Lock()
        threading.Thread(target=self._watch, name="idle", daemon=True).start()

    def messages(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Yields a client's messages."""
        while True:
            with self.waiting(context):
                request = next(requests, None)
            if request is None:
                return
            yield request

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """Bounds a wait for a client."""
        call = id(context)
        with self._changing:
            self._waiting[call] = (time.monotonic(), context)
        try:
            yield
        finally:
            with self._changing:
                self._waiting.pop(call, None)

    def _watch(self) -> None:
        """Ends silent calls; each then fails as if its client had gone."""
        while True:
            time.sleep(min(1.0, self._longest / 4))
            late = time.monotonic() - self._longest
            with self._changing:
                silent = [one for one, (began, _) in self._waiting.items() if began < late]
                contexts = [self._waiting.pop(one)[1] for one in silent]
            for context in contexts:
                context.cancel()
                self._ended()


class DiskBudget:
    """Limits what a session writes to half of what is free.

    The loader writes the rows once more, and other programs need room, too.

    Args:
        folder: where it writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = shutil.disk_usage(folder).free // 2

    def take(self, size: int) -> None:
        """Counts what is about to be written.

        Raises:
            OverBudgetError: if that is too much.
        """
        self._left -= size
        if self._left < 0:
            raise OverBudgetError(
                f"the sync's rows take more than half of the room on the disk of {self._folder}: "
                "start `loader serve` with TMPDIR on a larger one"
            )
