"""PostgreSQL: one moment of a database, exported to every connection that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loader.runtime.database_errors import DatabaseError
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.postgresql.holding import hold, undisturbed
from loader.sources.jdbc.postgresql.horizon import Horizon, activity, horizon
from loader.sources.table import SourceTable


@dataclass(frozen=True)
class Exported:
    """A snapshot that a session holds as long as a run lasts.

    Attributes:
        name: by which other sessions take it.
        horizon: which transactions it sees; None where the database does not tell.
        blind: why it does not know how old open transactions are; empty where it does.
        settings: statements for sessions that read it.
        refused: tables that somebody else holds, by name, with the error of each.
    """

    name: str
    horizon: Horizon | None
    blind: str
    settings: Sequence[str]
    refused: Mapping[str, DatabaseError]


@contextmanager
def exported(database: Database, tables: Sequence[SourceTable]) -> Iterator[Exported]:
    """Holds the tables, then takes a snapshot of the database; both until the run is over."""
    with database.connect() as holder:
        long = undisturbed(holder)
        for statement in (*long, "set statement_timeout = 0"):
            holder.execute(statement)
        [(pid,)] = holder.rows("select pg_catalog.pg_backend_pid()")
        holder.java.setAutoCommit(False)
        holder.execute("set transaction isolation level repeatable read read only")
        relations = {table.ref.name: database.relation(table.ref.native) for table in tables}
        refused = hold(holder, relations, database.lock_timeout)
        with database.connect() as connection:
            seen = activity(connection, int(pid or 0))
        found = horizon(holder, seen)
        [(name,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
        yield Exported(name or "", found, seen.blind, long, refused)
