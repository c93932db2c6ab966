"""Exports one PostgreSQL snapshot to all readers and locks the tables until the run ends.

TRUNCATE, and an ALTER that rewrites a table, are not MVCC-safe: they empty the table in older
snapshots. The session therefore acquires read locks on the tables before it creates the snapshot,
as pg_dump does. TRUNCATE and ALTER then wait until the run ends.

On a replica, no snapshot is exported. If a transaction with more than 64 savepoints is open on the
primary, a snapshot that the replica exports lacks all open transactions (observed in PostgreSQL
15.18 and 18.4). A session that imports such a snapshot treats the transactions' rows as rolled back
and records this in the rows' hint bits. The rows then stay invisible to all sessions of the
replica, even after the transactions commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from loader.sources.interface import SourceTable
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.postgresql.continuity import (
    TransactionMark,
    read_activity,
    read_log_end,
    read_transaction_mark,
    read_unseen,
)
from loader.spark.error_translation import ConnectionRefusedByServer, DatabaseError


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that stays open until the run ends.

    Attributes:
        name: the identifier that other sessions use to import the snapshot; empty on a replica,
            where each session has its own, later snapshot.
        settings: statements for sessions that read the snapshot.
        check: a statement that fails in a session whose own snapshot is older than this one; empty
            if the sessions import this snapshot.
        held: the names of the locked tables, which cannot be altered.
        refused: the errors for tables that could not be locked, keyed by table name.
    """

    name: str
    transactions: TransactionMark
    settings: Sequence[str]
    held: frozenset[str]
    refused: Mapping[str, DatabaseError]
    check: str = ""


@contextmanager
def open_exported_snapshot(
    database: Database, tables: Sequence[SourceTable]
) -> Iterator[ExportedSnapshot]:
    """Locks the tables and exports a snapshot. Releases both at the end of the block.

    Raises:
        DatabaseError: if the server is a product that only uses PostgreSQL's protocol and cannot
            export snapshots.
    """
    with database.connect() as holder:
        no_timeouts = disable_timeouts(holder)
        for statement in (*no_timeouts, "set statement_timeout = 0"):
            holder.execute(statement)
        [(pid,)] = holder.rows("select pg_catalog.pg_backend_pid()")
        # `holder` must read this, because other sessions may be connected to another replica.
        unseen, unseen_from = read_unseen(holder)
        holder.begin()
        holder.execute("set transaction isolation level repeatable read read only")
        relations = {
            table.ref.name: database.relation(table.ref.native)
            for table in tables
            if not table.ref.native.query
        }
        locked, refused = lock_tables(holder, relations, database.lock_timeout)
        with database.lend_connection() as connection:
            activity = read_activity(connection, int(pid or 0))
            transactions = replace(
                read_transaction_mark(holder, activity),
                unseen=unseen,
                unseen_from=unseen_from,
                log_end=read_log_end(connection),
            )
        name: str | None = ""
        check = ""
        if transactions.replica:
            check = _build_check(holder, transactions)
        else:
            [(name,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
        yield ExportedSnapshot(name or "", transactions, no_timeouts, locked, refused, check)


def _build_check(connection: Connection, transactions: TransactionMark) -> str:
    """Returns a statement that fails on a replica that is behind the replica of `connection`.

    Such a check is necessary because several replicas may share one address.
    """
    kind = "pg" if connection.major_version >= 13 else "txid"
    current = f"pg_catalog.{kind}_snapshot_xmax(pg_catalog.{kind}_current_snapshot())"
    return (
        f"do $strandline$ begin if {current}::text::bigint < {transactions.xmax} then "
        "raise exception 'this replica is behind another one with the same address, which the run "
        "has read before'; end if; end $strandline$"
    )


_IGNORED_STATES = ("42809", "42501", "42P01", "0A000")
"""SQLSTATEs for relations that cannot be locked (wrong kind, denied, missing, unsupported)."""
_LOCK_MILLISECONDS = 200
"""The maximum time to wait for a table. PostgreSQL would check for deadlocks after one second."""
_PAUSE = 0.1
"""The number of seconds between two attempts, so that waiting sessions can acquire their locks."""


def disable_timeouts(connection: Connection) -> tuple[str, ...]:
    """Returns statements that disable time limits for long or idle transactions.

    Roles and databases often have such limits, but the transaction must last as long as the run.
    """
    settings = ["idle_in_transaction_session_timeout"]
    if connection.major_version >= 17:
        settings.append("transaction_timeout")
    return tuple(f"set {setting} = 0" for setting in settings)


def lock_tables(
    connection: Connection, relations: Mapping[str, str], seconds: int
) -> tuple[frozenset[str], dict[str, DatabaseError]]:
    """Locks relations until the connection's transaction ends. Does not create a snapshot.

    PostgreSQL also locks the partitions and child tables of a table, and the tables that a view
    reads. Foreign tables, materialized views and missing relations cannot be locked and are
    skipped.

    If another session holds a lock on a relation, all locks are released before the next attempt,
    because a session that alters the tables in a different order could cause a deadlock.

    Args:
        connection: a connection in a transaction that has not read anything yet.
        relations: the quoted relations, keyed by name.

    Returns:
        The names of the locked relations, and the errors keyed by name. An error means that another
        session holds a lock on the relation, or that the server has no memory for more locks.
    """
    deadline = time.monotonic() + seconds
    connection.execute("savepoint free")
    while True:
        locked, refused = _try_locks(connection, relations)
        is_locked_out = any(error.is_locked_out for error in refused.values())
        if not is_locked_out or time.monotonic() >= deadline:
            connection.execute("release savepoint free")
            return locked, refused
        connection.execute("rollback to savepoint free")
        time.sleep(_PAUSE)


def _try_locks(
    connection: Connection, relations: Mapping[str, str]
) -> tuple[frozenset[str], dict[str, DatabaseError]]:
    if _try_lock(connection, *relations.values()) is None:
        return frozenset(relations), {}
    locked: set[str] = set()
    refused: dict[str, DatabaseError] = {}
    for name, relation in relations.items():
        error = _try_lock(connection, relation)
        if error is None:
            locked.add(name)
        elif error.state not in _IGNORED_STATES:
            refused[name] = error
    return frozenset(locked), refused


def _try_lock(connection: Connection, *relations: str) -> ConnectionRefusedByServer | None:
    """Locks either all relations, in one round trip, or none. Returns the error, if any."""
    if not relations:
        return None
    try:
        connection.execute(
            f"set local lock_timeout = {_LOCK_MILLISECONDS}; savepoint held; "
            f"lock table {', '.join(relations)} in access share mode; release savepoint held"
        )
    except ConnectionRefusedByServer as error:
        connection.execute("rollback to savepoint held; release savepoint held")
        return error
    return None
