"""Pools connections: opening one costs a database more than most of our queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from loader.sources.jdbc.connection import Connection

_SECONDS = 30
"""Firewalls silently drop idle connections, so an older one is closed. One that a server or a
pooler has closed sooner fails at once, and is replaced (``Connection.another``)."""


class ConnectionPool:
    """A pool of idle connections, all in the same state.

    Args:
        opened: opens one in that state; gets the name for errors.
    """

    def __init__(self, opened: Callable[[str], AbstractContextManager[Connection]]) -> None:
        self._opened = opened
        self._alone = threading.Lock()
        self._idle: list[tuple[Connection, ExitStack, float]] = []
        self._closed = False

    @contextmanager
    def lent(self, where: str) -> Iterator[Connection]:
        """Yields a connection for one user; it is closed if that ends with an error.

        Args:
            where: the name for errors.
        """
        connection, opened = self._take(where)
        with opened:
            yield connection
            self.keep(connection, opened.pop_all())

    @property
    def closes_each(self) -> bool:
        """Whether each connection is closed after its use."""
        return self._closed

    def keep(self, connection: Connection, opened: ExitStack) -> None:
        """Returns a connection to the pool.

        Args:
            opened: closes it.
        """
        with self._alone:
            if not self._closed and not connection.lost:
                self._idle.append((connection, opened, time.monotonic()))
                return
        opened.close()

    def spare(self, keep: int = 1) -> None:
        """Closes all idle connections but those that were used last.

        Args:
            keep: how many of them stay.
        """
        with self._alone:
            idle, self._idle = self._idle[:-keep], self._idle[-keep:]
        for _, opened, _ in idle:
            opened.close()

    def _take(self, where: str) -> tuple[Connection, ExitStack]:
        while True:
            with self._alone:
                if not self._idle:
                    break
                connection, opened, since = self._idle.pop()
            if time.monotonic() - since < _SECONDS:
                connection.where = where
                connection.another = partial(self._anew, opened, where)
                return connection, opened
            opened.close()
        opened = ExitStack()
        return opened.enter_context(self._opened(where)), opened

    def _anew(self, opened: ExitStack, where: str) -> Connection:
        """Opens a connection in place of the one that `opened` closes."""
        opened.close()
        return opened.enter_context(self._opened(where))

    def close(self) -> None:
        """Closes those that are idle, and from now on each one after its use."""
        with self._alone:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, opened, _ in idle:
            opened.close()
