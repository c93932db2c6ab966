"""PostgreSQL: the session that holds a run's snapshot locks the tables against TRUNCATE and ALTER.

TRUNCATE, and an ALTER that rewrites a table, are not MVCC-safe: afterwards, an older snapshot sees
an empty table. So the session locks the tables before it takes its snapshot, in the mode of a
reader, as pg_dump does. Such statements then wait until the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from loader.sources.jdbc.connection import Connection
from loader.spark.database_errors import ConnectionRefusedByServer, DatabaseError

_LEFT = ("42809", "42501", "42P01", "0A000")
"""SQLSTATEs of relations left unlocked: of another kind, not permitted, gone, not supported."""
_MILLISECONDS = 200
"""Waits so long for a table: less than the second after which PostgreSQL looks for a deadlock."""
_PAUSE = 0.1
"""Seconds between two attempts, in which others can take what they wait for."""


def disable_timeouts(connection: Connection) -> tuple[str, ...]:
    """Returns statements for a session whose transaction lasts as long as the run.

    Roles and databases often limit how long a transaction may be idle, or may last.
    """
    settings = ["idle_in_transaction_session_timeout"]
    if connection.major_version >= 17:
        settings.append("transaction_timeout")
    return tuple(f"set {setting} = 0" for setting in settings)


def hold(
    connection: Connection, relations: Mapping[str, str], seconds: int
) -> tuple[frozenset[str], dict[str, DatabaseError]]:
    """Locks relations until the connection's transaction ends; takes no snapshot yet.

    Partitions and children are locked with their parents, and a view's tables with the view.
    Relations that cannot be locked at all (foreign tables, materialized views) stay unlocked; if
    anything else is wrong with them, reading them reports it.

    No lock is waited for long while others are held: a session that alters the tables in another
    order would be ended as part of a deadlock. If one is not free, all are released, and tried
    again.

    Args:
        connection: a connection in a transaction that has not read anything.
        relations: the quoted relations, by name.
        seconds: how long to try.

    Returns:
        The names of those that are locked now; and the errors, by name, of relations that another
        session has locked, or for which the server has no locks left.
    """
    deadline = time.monotonic() + seconds
    connection.execute("savepoint free")
    while True:
        held, refused = _hold_locks(connection, relations)
        waited_for = any(error.is_locked_out for error in refused.values())
        if not waited_for or time.monotonic() >= deadline:
            connection.execute("release savepoint free")
            return held, refused
        connection.execute("rollback to savepoint free")
        time.sleep(_PAUSE)


def _hold_locks(
    connection: Connection, relations: Mapping[str, str]
) -> tuple[frozenset[str], dict[str, DatabaseError]]:
    held: set[str] = set()
    refused: dict[str, DatabaseError] = {}
    for name, relation in relations.items():
        try:
            connection.execute(
                f"set local lock_timeout = {_MILLISECONDS}; savepoint held; "
                f"lock table {relation} in access share mode; release savepoint held"
            )
            held.add(name)
        except ConnectionRefusedByServer as error:
            connection.execute("rollback to savepoint held; release savepoint held")
            if error.state not in _LEFT:
                refused[name] = error
    return frozenset(held), refused
