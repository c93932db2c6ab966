"""PostgreSQL: DDL on a table waits for a run that reads it, but the run never waits for DDL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from loader.errors import TableError
from loader.rows.cursor import CursorType
from loader.sources.interface import CursorField, SourceTable, Window
from loader.sources.jdbc.snapshot import JdbcSnapshot
from loader.sources.jdbc.source import JdbcSource
from loader.spark.error_translation import DatabaseError
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.sync.project import Project


@contextmanager
def _queue_alter(database: Database, table: str) -> Iterator[None]:
    """Keeps an ALTER TABLE waiting for a table that a run has locked, for the block.

    Before the block, the run's idle connections are closed, as if they had timed out.
    """
    session = database.connect()
    session.autocommit = True

    def alter() -> None:
        with suppress(psycopg.errors.QueryCanceled):
            session.execute(f"alter table {table} add column more int")

    waiting = threading.Thread(target=alter)
    waiting.start()
    while database.query("select count(*) from pg_locks where not granted") == [(0,)]:
        pass
    database.query(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() "
        "and state like 'idle%' and query not like '%pg_export_snapshot%'"
    )
    try:
        yield
    finally:
        database.query(
            "select pg_cancel_backend(pid) from pg_stat_activity "
            "where datname = current_database() and query like 'alter table%'"
        )
        waiting.join()
        session.close()


def _create_notes(project: Project, database: Database) -> tuple[JdbcSource, SourceTable]:
    """Creates a table with column defaults, and returns its source and the planned table."""
    database.execute(
        "create table notes (id serial primary key, at timestamptz default now(), note text)",
        "insert into notes (note) select 'x' from generate_series(1, 100)",
    )
    options = {"notes": {"cursor_field": "id"}}
    project.jdbc(database, ["notes"], table_options=options, lock_timeout="1 second")
    [part] = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).plan_tables()
    assert isinstance(part.source, JdbcSource)
    [plan] = part.plans
    return part.source, plan.table


def test_queued_ddl_does_not_fail_a_load(project: Project, postgres_database: Database) -> None:
    """The driver locks a table when it reads its metadata, if a column has a default."""
    source, table = _create_notes(project, postgres_database)
    with source.snapshot([table]) as snapshot:
        bounds = snapshot.bounds(table, Window())
        rows = snapshot.read(project.spark, table, Window(), bounds)
        assert rows.count() == 100
        with _queue_alter(postgres_database, "notes"):
            snapshot.check_unaltered(table)
    # A change before the lock is detected.
    postgres_database.execute("alter table notes alter column note type varchar(9)")
    with source.snapshot([table]) as snapshot:
        snapshot.read(project.spark, table, Window(), bounds)
        altered = pytest.raises(TableError, match="its columns were changed")
        with _queue_alter(postgres_database, "notes"), altered:
            snapshot.check_unaltered(table)


def test_a_lock_timeout_is_never_taken_for_a_result(
    project: Project, postgres_database: Database
) -> None:
    source, table = _create_notes(project, postgres_database)
    window = Window(cursor=CursorField("id", CursorType.INTEGER))
    place = (None, "public", "notes")
    locked = "another session has or awaits a lock"
    with source.snapshot([table]) as snapshot:
        assert isinstance(snapshot, JdbcSnapshot)
        with _queue_alter(postgres_database, "notes"):
            with pytest.raises(DatabaseError, match=locked):
                snapshot.digest(table, window)
            with suppress(DatabaseError), snapshot.connect(table) as connection:
                source.dialect.read_size(connection, place)
            # A new transaction begins: the error ended the previous one.
            with snapshot.connect(table) as connection:
                assert connection.rows("select 1") == [("1",)]
        assert snapshot.digest(table, window) is not None, "one table stops the others' digests"
