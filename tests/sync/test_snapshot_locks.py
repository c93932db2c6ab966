"""On PostgreSQL, a run locks its tables and reads one snapshot, or the affected table fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from pyspark.sql.types import StructType

from loader.errors import TableError
from loader.sources.interface import SourceTable, TableRef, Window
from loader.sources.jdbc.metadata import NativeColumns
from loader.sources.jdbc.snapshot import JdbcSnapshot
from loader.spark import interruption
from loader.spark.error_translation import DatabaseError
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.runner import Outcome
from tests.crash.steps import run_with
from tests.services import Database
from tests.sync.project import Project


@pytest.fixture
def shop(project: Project, postgres_database: Database) -> Database:
    """Two tables, synced once; ten rows have been added to `orders` since."""
    postgres_database.execute(
        "create table orders (id int primary key)",
        "create table customers (id int primary key)",
        "insert into orders select generate_series(1, 10)",
        "insert into customers select generate_series(1, 10)",
    )
    options = {"orders": {"cursor_field": "id"}, "customers": {"cursor_field": "id"}}
    tables = ["orders", "customers"]
    project.jdbc(postgres_database, tables, table_options=options, lock_timeout="1 second")
    project.run()
    postgres_database.execute("insert into orders select generate_series(11, 20)")
    return postgres_database


def _run_at(step: str, call: Callable[[], None], project: Project) -> Outcome:
    """Runs, calling a function when `orders` reaches a step; returns the outcome of `orders`."""

    def reached(name: str, table: str) -> None:
        if (name, table) == (step, "shop.orders"):
            call()

    outcomes = run_with(project, reached)
    assert outcomes["shop.customers"].error is None
    return outcomes["shop.orders"]


def _count(project: Project) -> int:
    [(count,)] = project.rows("select count(distinct id) from raw.orders")
    return int(count)


CHANGES = [
    "truncate orders",
    "begin; truncate orders; insert into orders select generate_series(1, 20); commit",
    "alter table orders add column c float default random()",
    "vacuum full orders",
]


def test_ddl_that_is_not_mvcc_safe_waits_for_the_run(project: Project, shop: Database) -> None:
    reported = []

    def try_changes() -> None:
        for change in CHANGES:
            with shop.connect() as session:
                session.autocommit = True
                session.execute("set lock_timeout = '20ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    session.execute(change)
                reported.append(change)
                session.rollback()

    # No reader has opened the table yet: only the lock of the snapshot's session blocks changes.
    done = _run_at("locked", try_changes, project)
    assert reported == CHANGES
    assert done.error is None
    assert _count(project) == 20


@pytest.mark.parametrize("others", [[], ["m"]], ids=["tables only", "with a materialized view"])
def test_all_tables_that_can_be_locked_are_locked(
    project: Project, postgres_database: Database, others: list[str]
) -> None:
    """Tables are locked in one statement, or one at a time if one of them cannot be locked."""
    postgres_database.execute(
        'create table "a" (id int)',
        'create table "b;""{}" (id int)',
        'create schema "s.t"',
        'create table "s.t"."a" (id int)',
        "create table base (id int)",
        "create view v as select * from base",
        "create materialized view m as select * from base",
    )
    tables = [*others, "a", 'b;"{}', "s.t.a", "v"]
    project.jdbc(postgres_database, tables, table_options={"*": {"cursor_field": "id"}})
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    [part] = pipeline.plan_tables()
    assert not part.problems
    with part.source.snapshot([plan.table for plan in part.plans]):
        locked = postgres_database.query(
            "select relation::regclass::text from pg_locks where mode = 'AccessShareLock' and "
            "granted and relation in (select oid from pg_class where relkind in ('r', 'v', 'm') "
            "and relnamespace <> 'pg_catalog'::regnamespace) order by 1"
        )
    assert locked == [(name,) for name in ('"b;""{}"', '"s.t".a', "a", "base", "v")]


def test_a_table_that_another_session_locks_fails_alone(project: Project, shop: Database) -> None:
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    [part] = pipeline.plan_tables()
    tables = {plan.table.ref.name: plan.table for plan in part.plans}
    with shop.connect() as session:
        session.autocommit = False
        session.execute("lock table orders in access exclusive mode")
        # The table fails both when the snapshot is opened and when its columns are read.
        with part.source.snapshot(list(tables.values())) as snapshot:
            with pytest.raises(DatabaseError) as refused:
                snapshot.bounds(tables["orders"], Window())
            assert snapshot.bounds(tables["customers"], Window()).rows == 10
        ran = project.loader("run")
        session.rollback()
    reported = (
        "table shop.orders: another session has or awaits a lock that blocks readers "
        "(ALTER, TRUNCATE, VACUUM FULL, CLUSTER), and lock_timeout has expired. "
        "Run again when the session has ended (see pg_stat_activity), or raise the source's "
        "lock_timeout"
    )
    assert str(refused.value) == reported
    assert ran.errors == [reported]
    assert ran.table("shop.customers")["status"] == "nothing new"
    assert project.run().table("shop.orders")["appended"] == 10


def test_a_signal_cancels_the_wait_for_a_locked_table(project: Project, shop: Database) -> None:
    """Tests both waits: when the columns are read, and when the snapshot locks the table."""
    reported: list[str] = []
    options = {"orders": {"cursor_field": "id"}}
    project.jdbc(shop, ["orders"], table_options=options, lock_timeout="60 seconds")
    [(_, source)] = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).sources
    ref = TableRef("orders", NativeColumns(None, "public", "orders"))

    def describe() -> None:
        source.describe(ref)

    def hold() -> None:
        with source.snapshot([SourceTable(ref, StructType())]):
            pass

    def collect_error(work: Callable[[], None]) -> None:
        try:
            work()
        except TableError as error:
            reported.append(error.what)

    with shop.connect() as session:
        session.autocommit = False
        session.execute("lock table orders in access exclusive mode")
        for work in (describe, hold):
            thread = threading.Thread(target=collect_error, args=(work,))
            thread.start()
            waits = "select count(*) from pg_locks where not granted"
            while shop.query(waits) == [(0,)]:
                pass
            interruption.interrupt()
            try:
                thread.join(20)
            finally:
                interruption.resume()
        session.rollback()
    assert reported == ["the run was interrupted"] * 2
    assert project.run().table("shop.orders")["appended"] == 10


def test_a_migration_that_locks_in_another_order_causes_no_deadlock(
    project: Project, shop: Database
) -> None:
    options = {name: {"cursor_field": "id"} for name in ("orders", "customers")}
    project.jdbc(shop, list(options), table_options=options, lock_timeout="30 seconds")
    refused: list[object] = []
    with shop.connect() as migration:
        migration.autocommit = False
        migration.execute("lock table customers in access exclusive mode")
        pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)

        def snapshot() -> None:
            refs = [TableRef(name, NativeColumns(None, "public", name)) for name in options]
            tables = [SourceTable(ref, StructType()) for ref in refs]
            [(_, source)] = pipeline.sources
            with source.snapshot(tables) as found:
                assert isinstance(found, JdbcSnapshot)
                refused.append(found.refused)

        run = threading.Thread(target=snapshot)
        run.start()
        locked = "select count(*) from pg_locks where mode = 'AccessShareLock' and not granted"
        while shop.query(locked) == [(0,)]:
            pass
        migration.execute("lock table orders in access exclusive mode")
        migration.commit()
    run.join()
    assert refused == [{}]


def test_a_table_fails_if_a_change_waits_in_front_of_its_readers(
    project: Project, shop: Database
) -> None:
    session = shop.connect()
    session.autocommit = True
    waiting = threading.Thread(target=session.execute, args=("alter table orders add c int",))

    def queue_change() -> None:
        waiting.start()
        waits = "select count(*) from pg_locks where not granted"
        while shop.query(waits) == [(0,)]:
            pass

    done = _run_at("windowed", queue_change, project)
    waiting.join()
    session.close()
    assert "another session has or awaits a lock" in str(done.error)
    assert project.state("shop.orders")["cursor"] == "10"
    assert project.run().table("shop.orders")["appended"] == 10


def test_a_batch_with_more_rows_than_were_counted_is_not_published(
    project: Project, shop: Database
) -> None:
    shop.execute(
        "create table parts (id int primary key) partition by range (id)",
        "create table high partition of parts for values from (100) to (200)",
        "create table low (id int primary key)",
        "insert into parts select generate_series(101, 103)",
        "insert into low select generate_series(1, 5)",
    )
    project.jdbc(shop, ["parts"], table_options={"parts": {"cursor_field": "id"}})

    def attach_partition(step: str, table: str) -> None:
        attach = "alter table parts attach partition low for values from (0) to (100)"
        shop.execute(attach) if step == "windowed" else None

    def refused() -> str:
        error = run_with(project, attach_partition)["shop.parts"].error
        assert error is not None
        return error.what

    # In the first load, whose rows are not compared.
    assert refused().startswith("8 rows were read, but 3 were counted in the same snapshot")
    assert project.rows("select count(*) from raw.parts") == [(0,)]
    assert project.run().table("shop.parts")["appended"] == 8
    # In a later sync, whose rows are compared with the raw table.
    shop.execute("alter table parts detach partition low", "insert into parts values (104)")
    project.loader("state", "set", "shop.parts", "1")
    assert refused().startswith("9 rows were read, but 4 were counted in the same snapshot")
    assert project.state("shop.parts")["cursor"] == "1"
    assert project.run().table("shop.parts")["appended"] == 1


def test_timeouts_do_not_end_the_session_that_holds_the_snapshot(
    project: Project, shop: Database
) -> None:
    timeouts = ["idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout"]
    [(version,)] = shop.query("select current_setting('server_version_num')::int / 10000")
    for timeout in timeouts[: 3 if version >= 17 else 1]:
        value = "1ms" if timeout.startswith("idle") else "1500ms"
        shop.execute(f"alter database {shop.name} set {timeout} = '{value}'")
    assert project.run().table("shop.orders")["appended"] == 10


def test_the_end_of_the_session_that_holds_the_snapshot_is_reported(
    project: Project, shop: Database
) -> None:
    def end_session() -> None:
        shop.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and state = 'idle in transaction'"
        )

    ended_at_extract = _run_at_any("locked", end_session, project)
    assert "the session with the run's snapshot has ended" in str(ended_at_extract.error)
    assert "run again" in str(ended_at_extract.error)
    assert project.run().table("shop.orders")["appended"] == 10


def _run_at_any(step: str, call: Callable[[], None], project: Project) -> Outcome:
    def reached(name: str, table: str) -> None:
        if name == step:
            call()

    return run_with(project, reached)["shop.orders"]


def test_connections_of_a_long_read_are_kept_alive(
    project: Project, postgres_database: Database
) -> None:
    """Otherwise, a firewall could drop the idle connection while the server sorts the rows."""
    postgres_database.execute(
        "create table t (id int primary key, at timestamptz default now())",
        "insert into t values (1)",
        "create view v as select t.*, current_setting('tcp_keepalives_idle')::int as idle from t",
    )
    options = {"v": {"cursor_field": "at", "primary_key": ["id"]}}
    project.jdbc(postgres_database, ["v"], table_options=options)
    project.run()
    [(name,)] = postgres_database.query("select current_database()")
    sooner = f"alter database {name} set tcp_keepalives_idle = 20"
    postgres_database.execute(sooner, "insert into t values (2)")
    project.run()
    seen = project.rows("select distinct _cq_batch, idle from raw.v order by _cq_batch")
    assert [idle for _, idle in seen] == [60, 20]
