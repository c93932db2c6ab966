"""PostgreSQL: one snapshot of a database, exported to every connection that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loader.sources.jdbc.database import Database
from loader.sources.jdbc.postgresql.database_continuity import Horizon, activity, horizon
from loader.sources.jdbc.postgresql.snapshot_locks import disable_timeouts, hold
from loader.sources.table import SourceTable
from loader.spark.database_errors import DatabaseError


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that a session holds until the run ends.

    Attributes:
        name: the name by which other sessions use it.
        horizon: which transactions it sees.
        blind: why the age of open transactions is unknown; empty if it is known.
        settings: statements for sessions that read the snapshot.
        held: the tables that are locked: they cannot be altered until the run ends.
        refused: tables that another session has locked, by name, with the error of each.
    """

    name: str
    horizon: Horizon
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
        held, refused = hold(holder, relations, database.lock_timeout)
        with database.question() as connection:
            seen = activity(connection, int(pid or 0))
        found = horizon(holder, seen)
        [(name,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
        yield ExportedSnapshot(name or "", found, seen.blind, long, held, refused)
