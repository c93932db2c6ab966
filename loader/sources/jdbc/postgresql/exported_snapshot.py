"""PostgreSQL: one snapshot of a database, exported to all readers, and the locks that it needs.

TRUNCATE, and an ALTER that rewrites a table, are not MVCC-safe: afterwards, an older snapshot sees
an empty table. So the session locks the tables before it takes its snapshot, in the mode of a
reader, as pg_dump does. Such statements then wait until the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loader.sources.interface import SourceTable
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.postgresql.continuity import (
    TransactionMark,
    read_activity,
    read_transaction_mark,
)
from loader.spark.error_translation import ConnectionRefusedByServer, DatabaseError


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that a session holds until the run ends.

    Attributes:
        name: the name by which other sessions use it.
        transactions: which ones it sees.
        blind: why the age of open transactions is unknown; empty if it is known.
        settings: statements for sessions that read the snapshot.
        held: the tables that are locked: they cannot be altered until the run ends.
        refused: tables that another session has locked, by name, with the error of each.
    """

    name: str
    transactions: TransactionMark
    blind: str
    settings: Sequence[str]
    held: frozenset[str]
    refused: Mapping[str, DatabaseError]


@contextmanager
def open_exported_snapshot(
    database: Database, tables: Sequence[SourceTable]
) -> Iterator[ExportedSnapshot]:
    """Locks the tables, then takes a snapshot of the database; holds both until the run ends.

    Raises:
        DatabaseError: if the server has no snapshots to export: it speaks PostgreSQL's protocol,
            but is another database.
    """
    with database.connect() as holder:
        long = disable_timeouts(holder)
        for statement in (*long, "set statement_timeout = 0"):
            holder.execute(statement)
        [(pid,)] = holder.rows("select pg_catalog.pg_backend_pid()")
        holder.begin()
        holder.execute("set transaction isolation level repeatable read read only")
        relations = {table.ref.name: database.relation(table.ref.native) for table in tables}
        held, refused = lock_tables(holder, relations, database.lock_timeout)
        with database.lend_connection() as connection:
            seen = read_activity(connection, int(pid or 0))
        found = read_transaction_mark(holder, seen)
        [(name,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
        yield ExportedSnapshot(name or "", found, seen.blind, long, held, refused)


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


def lock_tables(
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
        held, refused = _try_locks(connection, relations)
        waited_for = any(error.is_locked_out for error in refused.values())
        if not waited_for or time.monotonic() >= deadline:
            connection.execute("release savepoint free")
            return held, refused
        connection.execute("rollback to savepoint free")
        time.sleep(_PAUSE)


def _try_locks(
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
