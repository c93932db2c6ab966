"""On PostgreSQL, rows that commit after a sync with a lower cursor are found by the next sync."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.postgresql.continuity import read_activity
from tests.services import Database
from tests.sync.project import Project


@contextmanager
def _transaction(database: Database) -> Iterator[Any]:
    connection = database.connect()
    connection.autocommit = False
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def events(project: Project, postgres_database: Database) -> Database:
    """A table with one row whose cursor is set by now(); not yet synced."""
    postgres_database.execute(*_create_sql("events"))
    project.jdbc(postgres_database, ["events"], table_options={"events": {"cursor_field": "at"}})
    return postgres_database


def _create_sql(table: str) -> list[str]:
    """Returns SQL that creates a table with one row whose cursor is set by now()."""
    return [
        f"create table {table} (id int primary key, at timestamptz default now())",
        f"insert into {table} values (1)",
    ]


def _count_appended(project: Project, tables: Iterable[str]) -> dict[str, int]:
    """Runs the loader; returns how many rows it appends to each table."""
    ran = project.run()
    return {table: ran.table(f"shop.{table}")["appended"] for table in tables}


def test_a_transaction_open_during_a_sync_is_found_by_the_next(
    project: Project, postgres_database: Database
) -> None:
    tables = {
        "before_it": "before the sync",
        "after_it": "after the sync",
        "saved": "in a savepoint",
    }
    postgres_database.execute(*(each for table in tables for each in _create_sql(table)))
    options = {table: {"cursor_field": "at"} for table in tables}
    project.jdbc(postgres_database, [*tables], table_options=options)
    project.run()
    with ExitStack() as open_ones:
        late = {table: open_ones.enter_context(_transaction(postgres_database)) for table in tables}
        for table, writes in tables.items():
            late[table].execute("select now()")
            if writes == "before the sync":
                late[table].execute(f"insert into {table} values (2)")
            elif writes == "in a savepoint":
                late[table].execute("savepoint s")
                late[table].execute(f"insert into {table} values (2)")
                late[table].execute("release savepoint s")
            postgres_database.execute(f"insert into {table} values (3)")
        assert _count_appended(project, tables) == dict.fromkeys(tables, 1)
        late["after_it"].execute("insert into after_it values (2)")
        for one in late.values():
            one.commit()
    assert _count_appended(project, tables) == dict.fromkeys(tables, 1)
    for table in tables:
        assert project.rows(f"select id from raw.{table} order by id") == [(1,), (2,), (3,)]
    quiet = project.run()
    for table in tables:
        reported = quiet.table(f"shop.{table}")
        assert (reported["status"], reported["read"]) == ("nothing new", 1)


def test_a_procedure_that_commits_is_as_old_as_its_call(
    project: Project, postgres_database: Database
) -> None:
    """Its later transactions may still write the time of the original CALL."""
    postgres_database.execute(
        "create table steps (id int primary key, at timestamptz default statement_timestamp())",
        "insert into steps values (1)",
        "create procedure slow() language plpgsql as $$ begin for n in 2..4 loop "
        "insert into steps values (n); commit; perform pg_sleep(0.8); end loop; "
        "perform pg_sleep(30); end $$",
    )
    calls = postgres_database.connect()
    calls.autocommit = True
    began = dt.datetime.now(dt.UTC)
    caller = threading.Thread(target=_execute_until_terminated, args=(calls, "call slow()"))
    caller.start()
    time.sleep(2.6)  # by now, the last transaction sleeps
    options = {
        "url": postgres_database.url,
        "driver": "org.postgresql.Driver",
        "user": postgres_database.user,
        "password": postgres_database.password,
    }
    with Connection.open(project.spark, options, "source shop") as connection:
        since = read_activity(connection).since
    postgres_database.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where query = 'call slow()'"
    )
    caller.join()
    assert since is not None
    seen = dt.datetime.fromisoformat(since).replace(tzinfo=dt.UTC)
    assert abs((seen - began).total_seconds()) < 1


def _execute_until_terminated(connection: Any, statement: str) -> None:
    """Runs a statement until its session is terminated."""
    with suppress(psycopg.OperationalError):
        connection.execute(statement)


def test_a_transaction_that_rolls_back_leaves_the_next_windows_small(
    project: Project, events: Database
) -> None:
    with _transaction(events) as late:
        late.execute("insert into events values (2)")
        events.execute(*(f"insert into events values ({n})" for n in range(10, 20)))
        project.run()
        late.rollback()
    project.run()
    assert project.run().table("shop.events")["read"] == 1


def test_late_rows_with_times_without_a_zone_are_found(
    project: Project, postgres_database: Database
) -> None:
    name = postgres_database.name
    postgres_database.execute(
        f"alter database {name} set timezone to 'America/New_York'",
        "create table events (id int primary key, at timestamp default localtimestamp)",
        "insert into events values (1)",
    )
    options = {"events": {"cursor_field": "at"}}
    project.jdbc(postgres_database, ["events"], table_options=options, time_zone="America/New_York")
    project.run()
    with _transaction(postgres_database) as late:
        late.execute("insert into events values (2)")
        postgres_database.execute("insert into events values (3)")
        project.run()
        late.commit()
    assert project.run().table("shop.events")["appended"] == 1


def test_a_role_that_cannot_see_transactions_is_warned_and_misses_no_row(
    project: Project, events: Database
) -> None:
    role = f"plain_{events.name}"
    events.execute(f"create role {role} login password 'tide'", f"grant select on events to {role}")
    own = {"user": role, "password": "tide"}
    project.jdbc(events, ["events"], table_options={"events": {"cursor_field": "at"}}, **own)
    try:
        assert any("pg_read_all_stats" in warning for warning in project.run().warnings)
        # No row is missed, because each sync scans the table for rows written since the last one.
        with _transaction(events) as late:
            late.execute("insert into events values (2, now() - interval '1 day')")
            events.execute("insert into events values (3)")
            project.run()
            late.commit()
        ran = project.run()
        assert ran.table("shop.events")["appended"] == 1
        assert any("each sync scans the table" in warning for warning in ran.warnings)
        events.execute(f"grant pg_read_all_stats to {role}")
        assert not project.run().warnings
    finally:
        events.execute(f"drop owned by {role}", f"drop role {role}")


def test_sessions_that_do_not_show_their_transactions_lose_no_row(
    project: Project, events: Database
) -> None:
    """With `track_activities = off`, the start of a session's transaction is not visible."""
    project.run()
    with _transaction(events) as late:
        late.execute("set track_activities = off")
        late.commit()
        late.execute("insert into events values (2)")
        events.execute("insert into events values (3)")
        ran = project.run()
        assert any("track_activities" in warning for warning in ran.warnings)
        late.commit()
    assert project.run().table("shop.events")["appended"] == 1
    assert project.rows("select id from raw.events order by id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("ahead", [20, 3600])
def test_a_clock_that_was_set_back_loses_no_row(
    project: Project, events: Database, ahead: int
) -> None:
    """Simulates that the clock was ahead at the last sync, and was then corrected by NTP."""
    project.run()
    then = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=ahead)
    text = then.isoformat(sep=" ").partition("+")[0]
    reported = project.state("shop.events")
    reported |= {"cursor": text, "mark": {**reported["mark"], "since": text}}
    project.spark.sql(
        f"insert into {project.schema}._cq_state select key, '{json.dumps(reported)}', "
        f"version + 1, updated_at from {project.schema}._cq_state"
    )
    events.execute("insert into events values (2)", "insert into events values (3)")
    ran = project.run()
    assert ran.table("shop.events")["appended"] == 2
    assert any("clock was set back" in warning for warning in ran.warnings)
    events.execute("insert into events values (4)")
    again = project.run()
    assert again.table("shop.events")["appended"] == 1
    assert not any("clock was set back" in warning for warning in again.warnings)


def test_a_view_is_synced(project: Project, events: Database) -> None:
    events.execute("create view v as select * from events")
    project.jdbc(events, ["v"], table_options={"v": {"cursor_field": "at", "primary_key": "id"}})
    project.run()
    assert project.run().table("shop.v")["status"] == "nothing new"


def test_late_rows_with_a_number_or_string_as_cursor_are_found(
    project: Project, postgres_database: Database
) -> None:
    kinds = {"int": "insert into ints values ({0})", "text": "insert into texts values ('k{0}')"}
    tables = [f"{kind}s" for kind in kinds]
    for kind, insert in kinds.items():
        postgres_database.execute(
            f"create table {kind}s (id {kind} primary key)", insert.format(100), insert.format(200)
        )
    options = {table: {"cursor_field": "id"} for table in tables}
    project.jdbc(postgres_database, tables, table_options=options)
    with _transaction(postgres_database) as late:
        for insert in kinds.values():
            late.execute("savepoint s")
            late.execute(insert.format(150))  # as if drawn before 300
            late.execute("release savepoint s")
        project.run()
        postgres_database.execute(*(insert.format(300) for insert in kinds.values()))
        assert _count_appended(project, tables) == dict.fromkeys(tables, 1)
        for insert in kinds.values():
            late.execute(insert.format(120))
        late.commit()
    assert _count_appended(project, tables) == dict.fromkeys(tables, 2)
    quiet = project.run()
    for table in tables:
        reported = quiet.table(f"shop.{table}")
        assert (reported["appended"], reported["read"]) == (0, 1)
        assert project.rows(f"select count(*), count(distinct id) from raw.{table}") == [(5, 5)]


def test_without_sweeps_late_numbers_are_found_within_the_lookback(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table keys (id int primary key)", "insert into keys values (1000)"
    )
    options = {"keys": {"cursor_field": "id", "lookback": "50", "sweep": "never"}}
    project.jdbc(postgres_database, ["keys"], table_options=options)
    with _transaction(postgres_database) as late:
        late.execute("insert into keys values (940), (960)")
        project.run()
        late.commit()
    assert project.run().table("shop.keys")["appended"] == 1
    assert project.rows("select id from raw.keys order by id") == [(960,), (1000,)]


def test_a_late_duplicate_of_a_table_without_a_key(
    project: Project, postgres_database: Database
) -> None:
    old = {"times": "'2025-01-01Z'", "numbers": "1"}
    new = {"times": "now()", "numbers": "2"}
    for table, kind in (("times", "timestamptz"), ("numbers", "int")):
        postgres_database.execute(
            f"create table {table} (page text, at {kind})",
            f"insert into {table} select 'home', {old[table]} from generate_series(1, 3)",
        )
    options = {table: {"cursor_field": "at"} for table in old}
    project.jdbc(postgres_database, [*old], table_options=options)
    project.run()
    with _transaction(postgres_database) as late:
        late.execute("select now()")
        copied = "insert into times select 'home', now() from generate_series(1, 3)"
        postgres_database.execute(copied)
        [(at,)] = postgres_database.query("select max(at)::text from times")
        old["times"] = f"'{at}'"
        for table in old:
            late.execute(f"insert into {table} values ('home', {old[table]})")
            postgres_database.execute(f"insert into {table} values ('home', {new[table]})")
        project.run()
        late.commit()
    assert _count_appended(project, old) == dict.fromkeys(old, 1)
    assert _count_appended(project, old) == dict.fromkeys(old, 0)
    for table in old:
        assert project.rows(f"select count(*) from raw.{table}") == postgres_database.query(
            f"select count(*) from {table}"
        )


def test_numbers_that_commit_out_of_order_are_found_with_nothing_open(
    project: Project, postgres_database: Database
) -> None:
    tables = {
        "cached": "by the sequence's cache",
        "chosen": "by the application",
        "drawn": "before",
    }
    for table in tables:
        postgres_database.execute(
            f"create sequence {table}_numbers cache 20",
            f"create table {table} (id int primary key default nextval('{table}_numbers'))",
        )
    options = {table: {"cursor_field": "id"} for table in tables}
    project.jdbc(postgres_database, [*tables], table_options=options)
    with postgres_database.connect() as first, postgres_database.connect() as second:
        first.autocommit = second.autocommit = True
        for table, drawn in tables.items():
            first.execute(f"insert into {table} default values")
            if drawn == "before":  # draws a number and does not use it
                first.execute(f"select nextval('{table}_numbers')")
            second.execute(f"insert into {table} default values")
        project.run()
        for table, drawn in tables.items():
            assert project.state(f"shop.{table}")["cursor"] == "21"
            first.execute(
                f"insert into {table} values (2)"
                if drawn == "by the application"
                else f"insert into {table} default values"
            )
            second.execute(f"insert into {table} default values")
    assert _count_appended(project, tables) == dict.fromkeys(tables, 2)
    quiet = project.run()
    for table in tables:
        reported = quiet.table(f"shop.{table}")
        assert (reported["read"], reported["appended"]) == (1, 0)


def test_transactions_open_while_the_cursor_is_set_by_hand_are_found(
    project: Project, postgres_database: Database
) -> None:
    tables = {"by_time": "at", "by_xmin": "xmin"}
    postgres_database.execute(*(each for table in tables for each in _create_sql(table)))
    options = {table: {"cursor_field": cursor} for table, cursor in tables.items()}
    project.jdbc(postgres_database, [*tables], table_options=options)
    versions = "select count(*) from raw._cq_state"

    def set_again() -> None:
        for table in tables:
            before = project.state(f"shop.{table}")["cursor"]
            assert project.loader("state", "set", f"shop.{table}", before).code == 0

    def ids(table: str) -> list[int]:
        return [row[0] for row in project.rows(f"select id from raw.{table} order by id")]

    for number, quiet in ((2, False), (4, True)):
        with _transaction(postgres_database) as late:
            for table in tables:
                late.execute(f"insert into {table} values ({number})")
                postgres_database.execute(f"insert into {table} values ({number + 1})")
            project.run()
            set_again()
            if quiet:
                ran = project.run()
                assert {ran.table(f"shop.{table}")["status"] for table in tables} == {"nothing new"}
            late.commit()
        assert _count_appended(project, tables) == dict.fromkeys(tables, 1)
    assert [ids(table) for table in tables] == [[1, 2, 3, 4, 5]] * 2
    project.run()
    before = project.rows(versions)
    project.run()
    assert project.rows(versions) == before
    for table, lower in (("by_time", "2020-01-01"), ("by_xmin", "1")):
        assert project.loader("state", "set", f"shop.{table}", lower).code == 0
    ran = project.run()
    assert [ran.table(f"shop.{table}")["read"] for table in tables] == [5, 5]
    assert [ids(table) for table in tables] == [[1, 2, 3, 4, 5]] * 2
