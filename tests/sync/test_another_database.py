"""A different database behind the same URL (restore, failover, replica) is detected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services import Database, MariaDb, Postgres
from tests.sync.project import Project

TABLES = {
    "by_time": "create table by_time (id int primary key, at timestamptz default now())",
    "by_number": "create table by_number (id int primary key)",
    "by_writer": "create table by_writer (id int primary key)",
}
OPTIONS = {
    "by_time": {"cursor_field": "at"},
    "by_number": {"cursor_field": "id"},
    "by_writer": {"cursor_field": "xmin"},
}


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A server for the tests in this file, which create and promote replicas of it."""
    server = Postgres()
    yield server
    server.remove()


def _fill(database: Database, *ids: int) -> None:
    for number in ids:
        database.execute(*(f"insert into {table} (id) values ({number})" for table in TABLES))


def _configure(project: Project, database: Database) -> None:
    project.jdbc(database, list(TABLES), table_options=OPTIONS)


def test_a_lagging_replica_is_not_reported_as_a_restored_database(
    project: Project, primary: Postgres
) -> None:
    with primary.database() as database:
        database.execute(*TABLES.values())
        replica = primary.replica()
        try:
            replica._execute("select pg_wal_replay_pause()")
            _fill(database, 1, 2)
            _configure(project, database)
            project.run()
            _configure(project, Database(replica, database.name))
            ran = project.loader("run")
            assert [w for w in ran.warnings if "was restored" in w] == []
            assert any("this replica is behind" in w for w in ran.warnings)
            assert [e for e in ran.errors if "Run again once it has caught up" in e] == ran.errors
            assert len(ran.errors) == 2
        finally:
            replica.remove()


def test_a_replica_is_read_and_then_promoted(project: Project, primary: Postgres) -> None:
    with primary.database() as database:
        database.execute(*TABLES.values())
        _fill(database, 1, 2, 3)
        replica = primary.replica()
        try:
            copy = Database(replica, database.name)
            _configure(project, copy)
            reported = project.run()
            assert [w for w in reported.warnings if "read replica" in w] == [
                "shop.by_time: a read replica does not show the transactions that are open "
                "on its primary: each sync scans the table for rows that commit late"
            ]
            replica.promote()
            _fill(copy, 4)
            ran = project.loader("run")
            assert ran.table("shop.by_time")["appended"] == 1
            assert any("was failed over since the last sync" in w for w in ran.warnings)
            assert ran.table("shop.by_number")["appended"] == 1
            assert ran.errors == [
                "table shop.by_writer: the database failed over since the last sync; it may reuse "
                "values of xmin that are below the stored cursor, "
                f"{project.state('shop.by_writer')['cursor']}. "
                "`loader run --full-refresh --select shop.by_writer`"
            ]
            project.run("--full-refresh", "--select", "shop.by_writer")
            _fill(copy, 5)
            again = project.run()
            assert {again.table(f"shop.{name}")["appended"] for name in TABLES} == {1}
        finally:
            replica.remove()


def test_a_restored_database_is_detected(
    project: Project, primary: Postgres, postgres_database: Database
) -> None:
    postgres_database.execute(*TABLES.values())
    _fill(postgres_database, 1, 2, 3)
    _configure(project, postgres_database)
    project.run()
    with primary.database() as restored:
        restored.execute(*TABLES.values())
        _fill(restored, 1, 2)
        _fill(restored, 4)
        _configure(project, restored)
        ran = project.loader("run")
        assert ran.code == 1
        # All rows since the last sync are read again, regardless of their transaction ids.
        assert ran.table("shop.by_time")["appended"] == 3
        assert any("was restored since the last sync" in w for w in ran.warnings)
        refused = [e for e in ran.errors if "restored or replaced" in e]
        assert [e.partition(":")[0] for e in sorted(refused)] == [
            "table shop.by_number",
            "table shop.by_writer",
        ]
        assert "or accept it with `loader state set shop.by_number 3`" in min(refused)
        assert project.rows("select count(*) from raw.by_number") == [(3,)]
        project.loader("state", "set", "shop.by_number", "1")
        project.run("--select", "shop.by_number")
        assert project.rows("select id from raw.by_number order by id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("same_server", [True, False])
def test_a_view_in_another_database_is_detected(
    project: Project, primary: Postgres, postgres_database: Database, same_server: bool
) -> None:
    """With a time as cursor, the view is read completely; with a number, it is rejected.

    A view does not show which transactions wrote its rows.
    """
    views = {
        "by_time": "create view by_time as select * from t",
        "kept": "create materialized view kept as select * from t",
        "by_number": "create view by_number as select * from t",
    }
    options = {name: {"cursor_field": "at"} for name in views}
    options["by_number"] = {"cursor_field": "id"}

    def create(database: Database, low: int, high: int, day: str) -> None:
        database.execute(
            "create table t (id int, at timestamptz)",
            f"insert into t select n, '{day}' from generate_series({low}, {high}) as n",
            *views.values(),
        )

    server = postgres_database.server if same_server else primary
    create(postgres_database, 1, 5, "2025-02-01")
    project.jdbc(postgres_database, list(views), table_options=options)
    project.run()
    ran = project.run()
    assert {ran.table(f"shop.{name}")["status"] for name in views} == {"nothing new"}
    late = "shop.{}: in a view or a table of another server, rows that commit late are found"
    assert all(any(late.format(name) in w for w in ran.warnings) for name in views)
    with server.database() as other:
        create(other, 4, 9, "2025-01-01")
        project.jdbc(other, list(views), table_options=options)
        ran = project.loader("run")
        for name in ("by_time", "kept"):
            assert ran.table(f"shop.{name}")["appended"] == 6
            reported = (
                f"shop.{name}: the database has been replaced since the last sync: all its rows"
            )
            assert any(reported in w for w in ran.warnings)
        [refused] = ran.errors
        assert "table shop.by_number: this is not the database of the last sync" in refused
        project.loader("state", "set", "shop.by_number", "0")
        ran = project.run()
        assert ran.table("shop.by_number")["appended"] == 6
        assert {ran.table(f"shop.{n}")["status"] for n in ("by_time", "kept")} == {"nothing new"}
        # Many tools drop and re-create their views in each run.
        other.execute("drop view by_number", views["by_number"])
        ran = project.run()
        assert {ran.table(f"shop.{name}")["status"] for name in views} == {"nothing new"}


def test_a_view_that_was_redefined_is_read_completely(
    project: Project, postgres_database: Database
) -> None:
    """A view of the same name in another schema (`currentSchema`) needs a full refresh."""
    names = {"by_time": "at", "by_number": "id"}
    columns = "id int, at timestamptz"
    postgres_database.execute(
        "create schema other",
        *(f"create table {schema}.t ({columns})" for schema in ("public", "other")),
        "insert into t select n, '2025-02-01' from generate_series(1, 9) as n",
        "insert into other.t select n, '2025-01-01' from generate_series(11, 13) as n",
        *(f"create view {name} as select * from t where id <> 2" for name in names),
        "insert into t values (90, '2025-02-02')",
        *(f"create view other.{name} as select * from other.t" for name in names),
    )
    options = {name: {"cursor_field": cursor} for name, cursor in names.items()}

    def appended() -> list[int]:
        ran = project.run()
        return [ran.table(f"shop.{name}")["appended"] or 0 for name in names]

    project.jdbc(postgres_database, list(names), table_options=options)
    assert (appended(), appended()) == ([9, 9], [0, 0])
    postgres_database.execute(
        *(f"create or replace view {name} as select * from t" for name in names)
    )
    assert (appended(), appended()) == ([1, 1], [0, 0])
    project.jdbc(
        postgres_database, list(names), table_options=options, properties={"currentSchema": "other"}
    )
    # Anyone who may create schemas could cause this, so the owner of the spec must confirm it.
    for name in names:
        assert "would now be loaded from other." in project.loader("run", "-s", name).errors[0]
        ran = project.run("--full-refresh", "--select", name)
        assert ran.table(f"shop.{name}")["appended"] == 3
    assert appended() == [0, 0]


def test_a_view_in_another_mariadb_database_is_detected(
    project: Project, mariadb: MariaDb, mariadb_database: Database
) -> None:
    def create(database: Database, numbers: str, day: str) -> None:
        database.execute(
            "create table t (id int, at datetime)",
            *(f"insert into t values ({n}, '{day}')" for n in numbers),
            "create view v as select * from t where id <> 2",
        )

    options = {"v": {"cursor_field": "at"}}
    create(mariadb_database, "12", "2025-02-01")
    project.jdbc(mariadb_database, ["v"], table_options=options)
    assert project.run().table("shop.v")["appended"] == 1
    mariadb_database.execute("create or replace view v as select * from t")
    assert project.run().table("shop.v")["appended"] == 1
    assert project.run().table("shop.v")["status"] == "nothing new"
    with mariadb.database() as other:
        create(other, "345", "2025-01-01")
        project.jdbc(other, ["v"], table_options=options)
        ran = project.run()
        assert ran.table("shop.v")["appended"] == 3
        assert any(
            "the view or its server was replaced since the last sync" in w for w in ran.warnings
        )
        assert project.run().table("shop.v")["status"] == "nothing new"


def test_numbers_that_are_reused_after_a_failover_are_read(
    project: Project, primary: Postgres
) -> None:
    options = {"keys": {"cursor_field": "id"}, "bounded": {"cursor_field": "id", "lookback": "2"}}
    fill = "insert into {} select n, '{}' from generate_series({}, {}) n"
    with primary.database() as database:
        for table in options:
            database.execute(
                f"create table {table} (id int primary key, note text)",
                fill.format(table, "kept", 1, 3),
            )
        replica = primary.replica()
        try:
            _write_pages(database, Database(replica, database.name))
            replica.promote()  # the primary keeps writing for a while; these rows are lost
            for table in options:
                database.execute(fill.format(table, "lost", 4, 12))
            project.jdbc(database, list(options), table_options=options)
            project.run()
            copy = Database(replica, database.name)
            for table in options:
                copy.execute(fill.format(table, "new", 4, 6))
            project.jdbc(copy, list(options), table_options=options)
            ran = project.run()
            for table in options:
                assert ran.table(f"shop.{table}")["appended"] == 3
                assert project.state(f"shop.{table}")["cursor"] == "6"
                copy.execute(fill.format(table, "new", 7, 9))
            assert sum("was failed over since" in warning for warning in ran.warnings) == 2
            ran = project.run()
            for table in options:
                assert ran.table(f"shop.{table}")["appended"] == 3
                newest = project.rows(
                    "select id, max_by(note, struct(_cq_generation, id, _cq_batch, _cq_seq)) "
                    f"from raw.{table} where id <= 9 group by id order by id"
                )
                assert newest == copy.query(f"select id, note from {table} order by id")
            assert project.run().warnings == []
        finally:
            replica.remove()


def _write_pages(primary: Database, replica: Database) -> None:
    """Writes so many pages that the first checkpoint after a promotion takes minutes."""
    primary.execute(
        "create table pages as select n, repeat('x', 2000) from generate_series(1, 20000) n"
    )
    while replica.query("select to_regclass('pages') is null") == [(True,)]:
        pass


def test_late_rows_from_logical_replication_are_found(project: Project, primary: Postgres) -> None:
    events = "create table events (id int primary key, at timestamptz)"
    with primary.database() as publisher, primary.database() as subscriber:
        slot = subscriber.name
        publisher.execute(
            events,
            "create publication all_events for table events",
            f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
        connection = (
            f"host=127.0.0.1 port={primary.port} dbname={publisher.name} "
            f"user={publisher.user} password={publisher.password}"
        )
        subscriber.execute(
            events,
            f"create subscription shop connection '{connection}' publication all_events "
            f"with (create_slot = false, copy_data = false, slot_name = '{slot}')",
        )

        def await_rows(count: int) -> None:
            while subscriber.query("select count(*) from events") != [(count,)]:
                pass

        try:
            project.jdbc(subscriber, ["events"], table_options={"events": {"cursor_field": "at"}})
            late = publisher.connect()
            late.autocommit = False
            late.execute("insert into events values (1, now() - interval '1 hour')")
            publisher.execute("insert into events values (2, now())")
            await_rows(1)
            assert project.run().table("shop.events")["appended"] == 1
            late.commit()
            late.close()
            await_rows(2)
            assert project.run().table("shop.events")["appended"] == 1
            publisher.execute("insert into events values (3, now() - interval '2 hours')")
            await_rows(3)
        finally:
            subscriber.execute("drop subscription shop")
        # Late rows are found even if the subscription has been dropped since the last sync.
        assert project.run().table("shop.events")["appended"] == 1
        assert project.run().table("shop.events")["read"] == 1
