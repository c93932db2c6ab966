"""Database connections are reused, and replaced if the server has ended them."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress

import pytest

from loader.errors import TableError
from loader.sources.interface import Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.postgresql.continuity import read_activity, read_transaction_mark
from loader.sources.jdbc.source import JdbcSource
from loader.spark import interruption
from loader.spark.error_translation import DatabaseError
from tests.services import Database, MariaDb
from tests.sync.project import Project

_PID = "select pg_catalog.pg_backend_pid()"


def _create_source(project: Project, database: Database) -> JdbcSource:
    options = JdbcOptions(url=database.url, user=database.user, password=database.password)
    return JdbcSource("shop", options, project.spark, project.folder)


def _terminate(connection: Connection, database: Database) -> str | None:
    """Terminates a connection's session on the server; returns the session's process id."""
    [(pid,)] = connection.rows(_PID)
    database.query(f"select pg_terminate_backend({pid}, 5000)")
    return pid


def _terminate_idle(database: Database) -> None:
    """Terminates all idle sessions of a database except the one that holds a snapshot."""
    database.query(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() "
        "and state like 'idle%' and query not like '%pg_export_snapshot%'"
    )


def test_a_connection_that_was_ended_in_its_transaction_is_not_reused(
    project: Project, postgres_database: Database
) -> None:
    source = _create_source(project, postgres_database)
    with source.reuse_connections():
        with source.lend_connection() as connection, connection.transaction():
            ended = _terminate(connection, postgres_database)
        with source.lend_connection() as connection:
            [(fresh,)] = connection.rows(_PID)
            with connection.transaction():
                connection.execute("set statement_timeout = 9000")
        with source.lend_connection() as connection:  # the settings were restored
            assert connection.rows(_PID) == [(fresh,)]
            assert connection.rows("show statement_timeout") == [("0",)]
            assert connection.java.getAutoCommit()
    assert fresh != ended


def test_a_connection_that_was_ended_while_idle_is_replaced(
    project: Project, postgres_database: Database
) -> None:
    """Every kind of request succeeds on the new connection."""
    postgres_database.execute("create table t (id int primary key)", "insert into t values (1)")
    source = _create_source(project, postgres_database)
    with source.reuse_connections():
        [ref] = source.tables()
        _terminate_idle(postgres_database)
        assert source.tables() == [ref]
        _terminate_idle(postgres_database)
        table = source.describe(ref)
        _terminate_idle(postgres_database)
        with source.snapshot([table]) as snapshot:
            _terminate_idle(postgres_database)
            assert snapshot.bounds(table, Window()).rows == 1
            _terminate_idle(postgres_database)
            assert snapshot.bounds(table, Window()).rows == 1
        with source.lend_connection() as connection:
            assert connection.rows("show idle_session_timeout") == [("0",)]


def test_a_connection_that_dies_between_two_queries_raises_and_is_not_reused(
    project: Project, postgres_database: Database
) -> None:
    """The error must be raised: some callers interpret errors as a missing server feature."""
    source = _create_source(project, postgres_database)
    with source.reuse_connections():
        with source.lend_connection() as connection, suppress(DatabaseError):
            _terminate(connection, postgres_database)
            connection.rows("select 1")
        with source.lend_connection() as connection:
            assert connection.rows("select 1") == [("1",)]
            _terminate(connection, postgres_database)
            with pytest.raises(DatabaseError, match="administrator"):
                read_activity(connection)
        with source.lend_connection() as connection:
            _terminate(connection, postgres_database)
            with pytest.raises(DatabaseError):  # instead of a Java exception
                connection.default_namespace("Schema")
            with pytest.raises(DatabaseError), connection.transaction():
                connection.execute("select 1")


def test_mariadb_does_not_end_idle_sessions(
    project: Project, mariadb: MariaDb, mariadb_database: Database
) -> None:
    source = _create_source(project, mariadb_database)
    [(before,)] = mariadb_database.query("select @@global.wait_timeout")
    mariadb_database.execute("set global wait_timeout = 2")
    try:
        with source.reuse_connections(), source.lend_connection() as connection:
            assert connection.rows("select @@wait_timeout") == [("28800",)]
            mariadb_database.execute("set global wait_timeout = 40000")
            with source.connect() as other:
                assert other.rows("select @@wait_timeout") == [("40000",)]
    finally:
        mariadb_database.execute(f"set global wait_timeout = {before}")
    with source.reuse_connections():
        with source.lend_connection() as connection:
            [(number,)] = connection.rows("select connection_id()")
        mariadb_database.execute(f"kill {number}")
        with source.lend_connection() as connection:
            assert connection.rows("select connection_id()") > [(number,)]


def test_a_signal_cancels_a_query_that_waits_for_a_mariadb_lock(
    project: Project, mariadb_database: Database
) -> None:
    reported: list[str] = []
    mariadb_database.execute("create table t (id int)")
    source = _create_source(project, mariadb_database)

    def query_table() -> None:
        try:
            with source.connect() as connection:
                connection.rows("select count(*) from t")
        except TableError as error:
            reported.append(error.what)

    waits = "select count(*) from information_schema.processlist where state like '%metadata lock%'"
    thread = threading.Thread(target=query_table)
    with mariadb_database.connect() as session, session.cursor() as cursor:
        cursor.execute("lock tables t write")
        thread.start()
        while mariadb_database.query(waits) == [(0,)]:
            pass
        interruption.interrupt()
        try:
            thread.join(20)
        finally:
            interruption.resume()
        cursor.execute("unlock tables")
    thread.join()
    assert reported == ["the run was interrupted"]


def test_a_server_without_keepalive_settings_can_be_read(
    project: Project, postgres_database: Database
) -> None:
    """Simulates a server that speaks PostgreSQL's protocol but lacks the keepalive settings."""
    role = f"{postgres_database.name}_role"
    postgres_database.execute(
        "create schema lacks",
        "create function lacks.current_setting(text) returns text language plpgsql as "
        "$$ begin raise 'unrecognized configuration parameter' using errcode = '42704'; end $$",
        f"create role {role} login password 'lacks-4711'",
        f"grant usage on schema lacks to {role}",
        f"alter role {role} set search_path = lacks, pg_catalog, public",
    )
    url = postgres_database.url
    options = JdbcOptions(url=url, user=role, password="lacks-4711")
    source = JdbcSource("shop", options, project.spark, project.folder)
    try:
        assert source.tables() == []
    finally:
        postgres_database.execute(f"drop owned by {role}", f"drop role {role}")


def test_servers_before_version_13_return_the_same_transaction_mark(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before 13 have functions with other names, which later versions still have."""
    source = _create_source(project, postgres_database)
    with source.connect() as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        seen = read_activity(connection)
        now = read_transaction_mark(connection, seen)
        monkeypatch.setattr(Connection, "major_version", 12)
        assert read_transaction_mark(connection, seen) == now


def test_discover_reuses_its_connections(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_database.execute(*(f"create table t{n} (id int primary key)" for n in range(8)))
    opened: list[str] = []
    connect = JdbcSource.connect

    def count(source: JdbcSource, where: str = "") -> AbstractContextManager[Connection]:
        opened.append(where)
        return connect(source, where)

    monkeypatch.setattr(JdbcSource, "connect", count)
    project.jdbc(postgres_database, ["*"])
    ran = project.loader("discover")
    assert sum(event["event"] == "table" for event in ran.events) == 8, ran.text
    assert len(opened) < 9  # one connection per table would be more
