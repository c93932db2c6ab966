"""Connections that the tables of one run use one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from loader.sources.jdbc.connection import Connection


class Connections:
    """Open connections, kept until :meth:`close`: at most as many as are used at once.

    Args:
        opened: opens one; its argument is what errors should name.
    """

    def __init__(self, opened: Callable[[str], AbstractContextManager[Connection]]) -> None:
        self._opened = opened
        self._free: list[tuple[AbstractContextManager[Connection], Connection]] = []
        self._changing = threading.Lock()

    @contextmanager
    def one(self, where: str) -> Iterator[Connection]:
        """Lends a connection; after an error it is closed, as its transaction may be void.

        Args:
            where: what its errors name.
        """
        with self._changing:
            held = self._free.pop() if self._free else None
        if held is None:
            opening = self._opened(where)
            held = opening, opening.__enter__()
        opening, connection = held
        connection.where = where
        try:
            yield connection
        except BaseException:
            opening.__exit__(None, None, None)
            raise
        with self._changing:
            self._free.append(held)

    def close(self) -> None:
        """Closes those that nobody uses."""
        with self._changing:
            free, self._free = self._free, []
        for opening, _ in free:
            opening.__exit__(None, None, None)
