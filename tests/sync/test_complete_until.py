"""`complete_until` is never later than the first write that is missing from the raw table."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest

from loader.rows.cursor import CursorType
from loader.rows.window import CursorField, Window
from loader.sources.jdbc.source import JdbcSource
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.sync.project import Project

_AUDITED = """
create table {table} (id serial primary key, at timestamptz, written timestamptz);
create index on {table} (at);
create function note_{table}() returns trigger language plpgsql as
$$ begin new.written := clock_timestamp(); return new; end $$;
create trigger note before insert on {table} for each row execute procedure note_{table}();
insert into {table} (at) values (now())
"""
"""Creates a table in which a trigger records the time of each write (before its commit)."""


@contextmanager
def _run_writers(database: Database, tables: list[str], count: int) -> Iterator[None]:
    """Runs sessions that insert rows with various cursors, in transactions of various lengths."""
    ended = threading.Event()

    def write(seed: int) -> None:
        generator = random.Random(seed)
        with closing(database.connect()) as connection:
            connection.autocommit = False
            while not ended.is_set():
                for _ in range(generator.randint(1, 3)):
                    table = generator.choice(tables)
                    behind = generator.choice(["0 s", "0 s", "2 s", "3 days"])
                    at = f"clock_timestamp() - '{behind}'::interval"
                    connection.execute(f"insert into {table} (at) values ({at})")
                    time.sleep(generator.choice([0, 0, 0.01, 0.3]))
                if generator.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                time.sleep(generator.choice([0, 0.01, 0.1]))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _plan_source(project: Project) -> tuple[JdbcSource, Any]:
    [part] = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).plan_tables()
    assert isinstance(part.source, JdbcSource)
    return part.source, part.plans[0].table


@pytest.mark.slow
def test_no_snapshot_lacks_an_earlier_commit(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(_AUDITED.format(table="t"))
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    source, table = _plan_source(project)
    window = Window(CursorField("at", CursorType.TIMESTAMPTZ))
    moments: list[tuple[dt.datetime, set[int]]] = []
    behind: list[float] = []
    with _run_writers(postgres_database, ["t"], 6), source.reuse_connections():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(moments) < 300:
            with source.snapshot([table]) as snapshot:
                until = snapshot.bounds(table, window).complete_until
                began = dt.datetime.now(dt.UTC)
                exported = snapshot.session[-1]  # type: ignore[attr-defined]
                with closing(postgres_database.connect()) as reader:
                    reader.autocommit = False
                    reader.execute("set transaction isolation level repeatable read")
                    reader.execute(exported)
                    ids = {row[0] for row in reader.execute("select id from t").fetchall()}
            assert until is not None
            moments.append((until, ids))
            behind.append((began - until).total_seconds())
    written = dict(postgres_database.query("select id, written from t"))
    assert len(moments) > 50
    assert len(written) > 200
    for until, ids in moments:
        assert {key for key, at in written.items() if at < until} <= ids
    assert sorted(behind)[len(behind) // 2] < 2


@pytest.mark.slow
def test_recorded_times_are_correct_while_sessions_write(
    project: Project, postgres_database: Database
) -> None:
    tables = {"swept": "always", "unswept": "never"}
    postgres_database.execute(*(_AUDITED.format(table=table) for table in tables))
    options = {table: {"cursor_field": "at", "sweep": sweep} for table, sweep in tables.items()}
    project.jdbc(postgres_database, [*tables], table_options=options)
    project.run()
    with _run_writers(postgres_database, [*tables], 4):
        for _ in range(4):
            time.sleep(0.5)
            project.run()
    project.run()
    project.run()  # finds nothing new
    for table in tables:
        written = dict(postgres_database.query(f"select id, written from {table}"))
        syncs = project.rows(
            "select max(batch) over (order by started_at), "
            "unix_micros(complete_until), status from raw._cq_syncs "
            f"where table_name = '{table}' order by started_at"
        )
        assert len(syncs) == 7
        if table == "unswept":
            assert all(micros is None for _, micros, _ in syncs[1:5])
        else:
            assert all(micros is not None for _, micros, _ in syncs)
            assert [micros for _, micros, _ in syncs] == sorted(micros for _, micros, _ in syncs)
            assert syncs[-1][2] == "nothing new"
        for batch, micros, _ in syncs:
            if micros is None:
                continue
            until = dt.datetime.fromtimestamp(micros / 1e6, dt.UTC)
            ids = {
                row[0]
                for row in project.rows(f"select id from raw.{table} where _cq_batch <= {batch}")
            }
            assert {key for key, at in written.items() if at < until} <= ids


def _sync(project: Project, table: str = "t") -> dt.datetime | None:
    """Syncs; returns the table's `complete_until`."""
    text = project.run().table(f"shop.{table}")["complete_until"]
    return dt.datetime.fromisoformat(text) if text else None


def test_it_is_the_start_of_the_oldest_open_transaction(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(_AUDITED.format(table="t"))
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    with closing(postgres_database.connect()) as late:
        late.autocommit = False
        [(began,)] = late.execute("select now()").fetchall()
        time.sleep(0.1)
        assert _sync(project) == began
        late.commit()
    until = _sync(project)
    assert until is not None
    assert until > began


def test_it_is_unknown_after_a_sync_without_a_sweep(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(_AUDITED.format(table="t"))
    options = {"cursor_field": "at", "sweep": "1 hour"}
    project.jdbc(postgres_database, ["t"], table_options={"t": options})
    first = _sync(project)
    postgres_database.execute("insert into t (at) values (now() - interval '3 days'), (now())")
    assert _sync(project) is None
    assert project.rows("select count(*) from raw.t") == [(2,)]
    project.jdbc(postgres_database, ["t"], table_options={"t": {**options, "sweep": "always"}})
    until = _sync(project)
    assert first is not None
    assert until is not None
    assert until > first
    assert project.rows("select count(*) from raw.t") == [(3,)]


def test_a_backfill_records_no_time(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(_AUDITED.format(table="t"))
    options = {"cursor_field": "at", "sweep": "never"}
    project.jdbc(postgres_database, ["t"], table_options={"t": options})
    assert _sync(project) is not None
    postgres_database.execute("insert into t (at) values (now() - interval '3 days'), (now())")
    backfilled = project.run("--from", "2020-01-01").table("shop.t")
    assert (backfilled["appended"], backfilled["complete_until"]) == (1, None)
    assert project.rows("select count(*) from raw.t") == [(2,)]


def test_a_failed_table_has_no_time_and_does_not_affect_others(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*(_AUDITED.format(table=table) for table in ("t", "failing")))
    options = {"cursor_field": "at", "null_cursor": "fail"}
    project.jdbc(
        postgres_database, ["t", "failing"], table_options={"t": options, "failing": options}
    )
    before = _sync(project)
    assert before is not None
    postgres_database.execute("insert into failing (at) values (null), (now())")
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("shop.failing")["status"] == "failed"
    assert ran.table("shop.failing")["complete_until"] is None
    failed = project.rows("select complete_until from raw._cq_syncs where status = 'failed'")
    assert failed == [(None,)]
    assert dt.datetime.fromisoformat(ran.table("shop.t")["complete_until"]) > before
    postgres_database.execute("update failing set at = now() where at is null")
    until = _sync(project, "failing")
    assert until is not None
    assert until > before
    assert project.rows("select count(*) from raw.failing") == [(3,)]


def test_a_table_without_a_cursor_is_complete_and_a_view_is_unknown(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table plain (id int primary key, note text)",
        "insert into plain values (1, 'x')",
        "create table t (id int primary key, at timestamptz default now())",
        "insert into t values (1)",
        "create view v as select * from t",
    )
    project.jdbc(
        postgres_database,
        ["plain", "t", "v"],
        table_options={
            "plain": {"sync_mode": "full_refresh"},
            "t": {"cursor_field": "xmin"},
            "v": {"cursor_field": "at", "primary_key": ["id"]},
        },
    )
    ran = project.run()
    assert ran.table("shop.plain")["complete_until"] is not None
    assert ran.table("shop.t")["complete_until"] is not None
    assert ran.table("shop.v")["complete_until"] is None


@pytest.mark.parametrize("role", ["blind", "hidden"])
def test_it_is_unknown_if_transactions_are_not_visible(
    project: Project, postgres_database: Database, role: str
) -> None:
    database = postgres_database
    database.execute(_AUDITED.format(table="t"))
    options = {"t": {"cursor_field": "at"}}
    with ExitStack() as stack:
        if role == "hidden":
            session: psycopg.Connection[Any] = stack.enter_context(closing(database.connect()))
            session.execute("set track_activities = off")
            project.jdbc(database, ["t"], table_options=options)
        else:
            database.execute(
                "drop role if exists blind",
                "create role blind login password 'blind'",
                "grant select on t to blind",
            )
            stack.callback(database.execute, "drop owned by blind", "drop role blind")
            project.jdbc(database, ["t"], user="blind", password="blind", table_options=options)
        assert _sync(project) is None
    project.jdbc(database, ["t"], table_options=options)
    assert _sync(project) is not None


def test_it_is_unknown_on_mariadb(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table t (id int primary key, at datetime(6))", "insert into t select 1, now(6)"
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    assert _sync(project) is None
    failing = project.rows("select complete_until from raw._cq_syncs")
    assert failing == [(None,)]
