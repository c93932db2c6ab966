"""First loads beside other runs of a source: while one goes on, nobody moves the slot.

A first load's table has no mark before it is published, so no other run could know that the slot
must stay for it. An advisory lock tells: first loads share it, and who moves the slot has it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from loader.runtime.database_errors import DatabaseError
from loader.sources.jdbc.cdc.slot import SourceSlot
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.postgresql.holding import undisturbed


class Loads:
    """A run's part in the lock of a source's slot."""

    def __init__(self, slot: SourceSlot) -> None:
        self._slot = slot
        self._shared = ExitStack()
        self._begun = False
        text = slot.database.dialect.text
        self._key = f"pg_catalog.hashtext('strandline'), pg_catalog.hashtext({text(slot.name)})"

    def begin(self) -> None:
        """Keeps the slot where it is until :meth:`end`; waits for who is moving it.

        The lock has a connection of its own: it ends with the process, however that ends.
        """
        if self._begun:
            return
        connection = self._shared.enter_context(self._slot.database.connect())
        for statement in (*undisturbed(connection), "set idle_session_timeout = 0"):
            connection.execute(statement)
        connection.execute(f"set lock_timeout = '{self._slot.database.lock_timeout}s'")
        connection.execute(f"select pg_catalog.pg_advisory_lock_shared({self._key})")
        # The server takes a moment to notice that a connection is closed.
        self._shared.callback(self._unlock, connection)
        self._begun = True

    def end(self) -> None:
        """Ends this run's first loads."""
        self._begun = False
        self._shared.close()

    def _unlock(self, connection: Connection) -> None:
        with suppress(DatabaseError):  # a connection that has broken holds no lock
            connection.execute(f"select pg_catalog.pg_advisory_unlock_shared({self._key})")

    @contextmanager
    def none(self, connection: Connection) -> Iterator[bool]:
        """Yields whether no first load goes on; none begins meanwhile."""
        [(granted,)] = connection.rows(f"select pg_catalog.pg_try_advisory_lock({self._key})::text")
        try:
            yield granted == "true"
        finally:
            if granted == "true":
                connection.execute(f"select pg_catalog.pg_advisory_unlock({self._key})")
