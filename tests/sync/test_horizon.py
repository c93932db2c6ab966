"""PostgreSQL: rows of transactions that commit after a sync, with cursors from before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

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
    """A table whose cursor is set by now(), with a row, synced once."""
    postgres_database.execute(
        "create table events (id int primary key, at timestamptz default now())",
        "insert into events values (1)",
    )
    project.jdbc(postgres_database, ["events"], table_options={"events": {"cursor_field": "at"}})
    return postgres_database


def _ids(project: Project) -> list[int]:
    return [row[0] for row in project.rows("select id from raw.events order by id")]


@pytest.mark.parametrize("writes", ["before the sync", "after the sync", "in a savepoint"])
def test_a_transaction_open_during_a_sync_is_found_by_the_next(
    project: Project, events: Database, writes: str
) -> None:
    project.run()
    with _transaction(events) as late:
        late.execute("select now()")
        if writes == "before the sync":
            late.execute("insert into events values (2)")
        elif writes == "in a savepoint":
            late.execute("savepoint s")
            late.execute("insert into events values (2)")
            late.execute("release savepoint s")
        events.execute("insert into events values (3)")
        assert project.run().table("shop.events")["appended"] == 1
        if writes == "after the sync":
            late.execute("insert into events values (2)")
        late.commit()
    assert project.run().table("shop.events")["appended"] == 1
    assert _ids(project) == [1, 2, 3]
    quiet = project.run().table("shop.events")
    assert (quiet["status"], quiet["read"]) == ("nothing new", 1)


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


def test_a_wall_clock_cursor_is_reached_back_to_in_its_own_zone(
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


def test_a_role_that_cannot_see_transactions_is_told_so(project: Project, events: Database) -> None:
    role = f"plain_{events.name}"
    events.execute(f"create role {role} login password 'tide'", f"grant select on events to {role}")
    own = {"user": role, "password": "tide"}
    project.jdbc(events, ["events"], table_options={"events": {"cursor_field": "at"}}, **own)
    try:
        assert any("pg_read_all_stats" in warning for warning in project.run().warnings)
        # Nothing is lost: the table is scanned for what was written since.
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


def test_a_view_is_synced_without_a_horizon(project: Project, events: Database) -> None:
    events.execute("create view v as select * from events")
    project.jdbc(events, ["v"], table_options={"v": {"cursor_field": "at", "primary_key": "id"}})
    project.run()
    assert project.run().table("shop.v")["status"] == "nothing new"


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_cursor_that_is_no_time_misses_no_late_row_either(
    project: Project, postgres_database: Database, kind: str
) -> None:
    value = {"int": "({0})", "text": "('k{0}')"}[kind]
    insert = f"insert into keys values {value}"
    postgres_database.execute(
        f"create table keys (id {kind} primary key)", insert.format(100), insert.format(200)
    )
    project.jdbc(postgres_database, ["keys"], table_options={"keys": {"cursor_field": "id"}})
    with _transaction(postgres_database) as late:
        late.execute("savepoint s")
        late.execute(insert.format(150))  # a number that it took before others took 300
        late.execute("release savepoint s")
        project.run()
        postgres_database.execute(insert.format(300))
        assert project.run().table("shop.keys")["appended"] == 1
        late.execute(insert.format(120))
        late.commit()
    ran = project.run().table("shop.keys")
    assert ran["appended"] == 2
    quiet = project.run().table("shop.keys")
    assert (quiet["appended"], quiet["read"]) == (0, 1)
    assert project.rows("select count(*), count(distinct id) from raw.keys") == [(5, 5)]


def test_a_lookback_bounds_how_far_late_numbers_are_sought(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table keys (id int primary key)", "insert into keys values (1000)"
    )
    options = {"keys": {"cursor_field": "id", "lookback": "50"}}
    project.jdbc(postgres_database, ["keys"], table_options=options)
    with _transaction(postgres_database) as late:
        late.execute("insert into keys values (940), (960)")
        project.run()
        late.commit()
    assert project.run().table("shop.keys")["appended"] == 1
    assert project.rows("select id from raw.keys order by id") == [(960,), (1000,)]


@pytest.mark.parametrize("kind", ["timestamptz", "int"])
def test_a_late_duplicate_of_a_table_without_a_key(
    project: Project, postgres_database: Database, kind: str
) -> None:
    old, new = ("'2025-01-01Z'", "now()") if kind == "timestamptz" else ("1", "2")
    postgres_database.execute(
        f"create table clicks (page text, at {kind})",
        f"insert into clicks select 'home', {old} from generate_series(1, 3)",
    )
    project.jdbc(postgres_database, ["clicks"], table_options={"clicks": {"cursor_field": "at"}})
    project.run()
    with _transaction(postgres_database) as late:
        if kind == "timestamptz":
            late.execute("select now()")
            copied = "insert into clicks select 'home', now() from generate_series(1, 3)"
            postgres_database.execute(copied)
            [(at,)] = postgres_database.query("select max(at)::text from clicks")
            old = f"'{at}'"
        late.execute(f"insert into clicks values ('home', {old})")
        postgres_database.execute(f"insert into clicks values ('home', {new})")
        project.run()
        late.commit()
    ran = project.run().table("shop.clicks")
    assert ran["appended"] == 1
    ran = project.run().table("shop.clicks")
    assert ran["appended"] == 0
    assert project.rows("select count(*) from raw.clicks") == postgres_database.query(
        "select count(*) from clicks"
    )


@pytest.mark.parametrize("drawn", ["by the sequence's cache", "by the application", "before"])
def test_numbers_that_commit_out_of_order_are_found_with_nothing_open(
    project: Project, postgres_database: Database, drawn: str
) -> None:
    postgres_database.execute(
        "create sequence numbers cache 20",
        "create table keys (id int primary key default nextval('numbers'))",
    )
    project.jdbc(postgres_database, ["keys"], table_options={"keys": {"cursor_field": "id"}})
    with postgres_database.connect() as first, postgres_database.connect() as second:
        first.autocommit = second.autocommit = True
        first.execute("insert into keys default values")
        if drawn == "before":  # a number taken by a statement of its own, used later
            first.execute("select nextval('numbers')")
        second.execute("insert into keys default values")
        project.run()
        assert project.state("shop.keys")["cursor"] == "21"
        first.execute(
            "insert into keys values (2)"
            if drawn == "by the application"
            else "insert into keys default values"
        )
        second.execute("insert into keys default values")
    assert project.run().table("shop.keys")["appended"] == 2
    quiet = project.run().table("shop.keys")
    assert (quiet["read"], quiet["appended"]) == (1, 0)


@pytest.mark.parametrize("cursor", ["at", "xmin"])
def test_what_is_in_flight_when_a_cursor_is_set_by_hand_and_after_is_found(
    project: Project, events: Database, cursor: str
) -> None:
    project.jdbc(events, ["events"], table_options={"events": {"cursor_field": cursor}})
    versions = "select count(*) from raw._cq_state"

    def set_again() -> None:
        before = project.state("shop.events")["cursor"]
        assert project.loader("state", "set", "shop.events", before).code == 0

    for number, quiet in ((2, False), (4, True)):
        with _transaction(events) as late:
            late.execute(f"insert into events values ({number})")
            events.execute(f"insert into events values ({number + 1})")
            project.run()
            set_again()
            if quiet:
                assert project.run().table("shop.events")["status"] == "nothing new"
            late.commit()
        assert project.run().table("shop.events")["appended"] == 1
    assert _ids(project) == [1, 2, 3, 4, 5]
    project.run()
    before = project.rows(versions)
    project.run()
    assert project.rows(versions) == before
    lower = "1" if cursor == "xmin" else "2020-01-01"
    assert project.loader("state", "set", "shop.events", lower).code == 0
    assert project.run().table("shop.events")["read"] == 5
    assert _ids(project) == [1, 2, 3, 4, 5]
