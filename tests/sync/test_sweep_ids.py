"""PostgreSQL: which transaction ids a sweep treats as new."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator

import pytest

from loader.sources.jdbc.postgresql import continuity
from loader.sources.jdbc.postgresql.continuity import TransactionMark
from loader.sources.jdbc.postgresql.sweep import SweepRecord
from tests.services import Database, Postgres, ServerMissing
from tests.sync.project import Project
from tests.sync.test_late_commits import _transaction
from tests.sync.test_sweep import (
    _appended,
    _change_record,
    _create_sql,
    _load,
    _read_newest,
    _read_source,
)


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A server that a test may damage."""
    server = Postgres()
    yield server
    server.remove()


def _sync(project: Project, table: str) -> tuple[int, int]:
    """Syncs; returns the rows read and appended."""
    ran = project.run().table(f"shop.{table}")
    return ran["read"], ran["appended"]


@pytest.mark.parametrize("passed", [0, 200])  # beyond 100 ids, they are compared as a range
def test_a_long_transaction_in_another_database_does_not_repeat_sweeps(
    project: Project, postgres: Postgres, postgres_database: Database, passed: int
) -> None:
    burn = ["select pg_current_xact_id()"] * passed
    with postgres.database() as elsewhere, _transaction(elsewhere) as writer:
        writer.execute("create table other (id int)")
        postgres_database.execute(*_create_sql("events"))
        _load(project, postgres_database, ["events"])
        assert _sync(project, "events") == (1, 0)  # the row at the cursor
        with _transaction(postgres_database) as late, _transaction(postgres_database) as undone:
            late.execute("update events set note = 'top' where id = 1")
            late.execute("savepoint s")
            late.execute("update events set note = 'saved' where id = 2")
            late.execute("release savepoint s")
            undone.execute("update events set note = 'undone' where id = 3")
            undone.rollback()
            for id_ in range(20, 24):
                postgres_database.execute(f"insert into events values ({id_}, 'new', now())")
            postgres_database.execute("update events set note = 'unmoved' where id = 4", *burn)
            assert _sync(project, "events") == (6, 5)
            assert _sync(project, "events") == (1, 0)
            writer.execute("insert into other values (1)")
            late.commit()
            postgres_database.execute(*burn)
        assert _sync(project, "events") == (3, 2)
        assert _sync(project, "events") == (1, 0)
        writer.commit()
    assert _sync(project, "events") == (1, 0)
    assert _read_newest(project, "events") == _read_source(postgres_database, "events")


def test_if_invisible_transactions_are_unknown_all_later_rows_are_read(
    project: Project,
    postgres: Postgres,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stored state may lack the ids, or there may be too many transactions to list them."""
    with postgres.database() as elsewhere, _transaction(elsewhere) as writer:
        writer.execute("create table other (id int)")
        postgres_database.execute(*_create_sql("events"))
        _load(project, postgres_database, ["events"])
        _change_record(project, "events", unseen=None, unseen_from=None)
        assert _sync(project, "events") == (5, 0)
        assert _sync(project, "events") == (1, 0)
        for limit in ("_MOST_UNSEEN", "_MOST_CHECKED"):
            monkeypatch.setattr(continuity, limit, 0)
            postgres_database.execute("update events set note = note || '!' where id = 1")
            assert _sync(project, "events")[1] == 1
            assert project.state("shop.events")["mark"]["sweep"]["unseen_from"] == "0"
            assert _sync(project, "events") == (5, 0)
            monkeypatch.undo()


def test_a_replica_is_swept(project: Project, own_server: Postgres) -> None:
    with own_server.database() as database:
        database.execute(*_create_sql("events"))
        replica = own_server.replica()
        try:
            copy = Database(replica, database.name)
            _load(project, copy, ["events"])
            with _transaction(database) as late:
                late.execute("update events set note = 'top' where id = 1")
                for id_ in range(100, 200):  # more savepoints than the log lists for a replica
                    late.execute("savepoint s")
                    late.execute(f"insert into events values ({id_}, 'saved', '2020-01-01Z')")
                    late.execute("release savepoint s")
                for id_ in range(20, 24):
                    database.execute(f"insert into events values ({id_}, 'new', now())")
                _await_replay(own_server, replica)
                assert _sync(project, "events")[1] == 4
                assert _sync(project, "events") == (1, 0)
                late.commit()
            _await_replay(own_server, replica)
            assert _sync(project, "events") == (102, 101)
            assert _sync(project, "events") == (1, 0)
            assert _read_newest(project, "events") == _read_source(database, "events")
        finally:
            replica.remove()


def _await_replay(primary: Postgres, replica: Postgres) -> None:
    with primary.connect("postgres") as one, replica.connect("postgres") as other:
        [written] = one.execute("select pg_current_wal_insert_lsn()").fetchone() or ()
        one.execute("select pg_switch_wal()")
        for _ in range(100):
            [done] = other.execute(
                "select pg_last_wal_replay_lsn() >= %s::pg_lsn", [written]
            ).fetchone() or [False]
            if done:
                return
            time.sleep(0.1)
    raise AssertionError("the replica has not caught up")


def test_prepared_transactions_and_the_oldest_times(project: Project, own_server: Postgres) -> None:
    own_server._execute("alter system set max_prepared_transactions = 4")
    own_server._run("pg_ctl", "-w", "-s", "stop")
    own_server.start()
    times = {"of_now": "now()", "unknown_start": "'1970-01-02Z'", "older": "'1969-07-20 20:17Z'"}
    options = {"swept": "auto", "unswept": "never"}
    with own_server.database() as database:
        for table in options:
            database.execute(*_create_sql(table))
        project.jdbc(
            database,
            [*options],
            table_options={t: {"cursor_field": "at", "sweep": o} for t, o in options.items()},
        )
        project.run()
        with database.connect() as session:
            session.execute("begin")
            for table, (number, at) in itertools.product(options, enumerate(times.values())):
                session.execute("savepoint s")
                session.execute(f"insert into {table} values ({100 + number}, 'prepared', {at})")
                session.execute("release savepoint s")
            session.execute("prepare transaction 'late'")
        for table in options:
            database.execute(f"insert into {table} values (20, 'between', now())")
        assert _appended(project, options) == dict.fromkeys(options, 1)
        assert _appended(project, options) == dict.fromkeys(options, 0)
        own_server._run("pg_ctl", "-w", "-s", "stop")  # a prepared transaction survives a restart
        own_server.start()
        database.execute("commit prepared 'late'")
        # Without sweeps, rows are found by the transaction's start, which is taken for 1970.
        assert _appended(project, options) == {"swept": 3, "unswept": 2}
        assert _appended(project, options) == dict.fromkeys(options, 0)
        assert _read_newest(project, "swept") == _read_source(database, "swept")


def test_rows_that_are_two_billion_transactions_old_are_not_new(
    project: Project, own_server: Postgres
) -> None:
    with own_server.database() as database:
        database.execute(*_create_sql("events"))
        own_server._execute(
            "update pg_database set datallowconn = true where datname = 'template0'"
        )
        for next_id in (45_000 * 32_768, 70_000 * 32_768):  # beyond 2^31, in two steps
            for name in ("postgres", "template0", "template1", database.name):
                with contextlib.closing(own_server.connect(name)) as connection:
                    connection.execute("vacuum (freeze)")
            own_server._run("pg_ctl", "-w", "-s", "stop")
            own_server._run("pg_resetwal", "-x", str(next_id))
            own_server.start()
        _load(project, database, ["events"])
        burn = ["select pg_current_xact_id()"] * 200  # too many to list in a query
        database.execute("update events set note = 'unmoved' where id = 1", *burn)
        ran = project.run().table("shop.events")
        assert (ran["read"], ran["appended"]) == (2, 1)
        assert _read_newest(project, "events") == _read_source(database, "events")


def test_a_range_of_transaction_ids_across_a_wraparound(postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int)", *(f"insert into t values ({n})" for n in range(5))
    )
    [(first,)] = postgres_database.query("select min(xmin::text::bigint) from t")
    for epoch, below in itertools.product((1, 2), (5, 1_000)):
        record = TransactionMark(None, epoch * 2**32 - below, False, "")
        for passed in range(7):
            xmin = epoch * 2**32 + first + passed
            now = TransactionMark(None, xmin, False, "", xmax=xmin)
            sql = f"select count(*) from t where {record.select_written_since(now)}"
            assert postgres_database.query(sql) == [(min(passed, 5),)]
    record = TransactionMark(None, first + 2, False, "")
    for passed in (0, 1, 3, 50, 5_000):
        xmin = first + 2 + passed
        now = TransactionMark(None, xmin, False, "", xmax=xmin)
        sql = f"select count(*) from t where {record.select_written_since(now)}"
        assert postgres_database.query(sql) == [(min(passed, 3),)]


def test_transaction_ids_that_are_assigned_again_after_a_crash(
    project: Project, own_server: Postgres
) -> None:
    options = {
        "by_time": {"cursor_field": "at"},
        "by_number": {"cursor_field": "id"},
        "by_writer": {"cursor_field": "xmin"},
    }
    name = "crashed"
    own_server._create(name)
    database = Database(own_server, name)
    for table in options:
        database.execute(*_create_sql(table))
    project.jdbc(database, list(options), table_options=options)
    project.run()
    [(log_writer,)] = database.query(
        "select pid from pg_stat_activity where backend_type = 'walwriter'"
    )
    os.kill(log_writer, signal.SIGSTOP)
    burn = ["select pg_current_xact_id()"] * 40
    database.execute(*burn, *(f"insert into {table} values (11, 'a', now())" for table in options))
    assert _appended(project, options) == dict.fromkeys(options, 1)
    for pid in (int((own_server._data / "postmaster.pid").read_text().split()[0]), log_writer):
        os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        time.sleep(0.2)  # until the other processes have ended
        with contextlib.suppress(ServerMissing):
            own_server.start()
            break
    for table in options:
        assert database.query(f"select max(id) from {table}") == [(9,)], "the crash lost nothing"
        database.execute(f"insert into {table} values (5, 'late', now() - interval '1 day')")
    database.execute(*burn, *burn)
    assert _appended(project, options) == dict.fromkeys(options, 1)
    for table in options:
        assert project.rows(f"select note from raw.{table} where id = 5") == [("late",)]


def test_the_ids_of_another_database_are_not_used(
    project: Project, postgres_database: Database
) -> None:
    """After a restore, the database assigns the ids in the stored record again."""
    postgres_database.execute(*_create_sql("events"))
    _load(project, postgres_database, ["events"], sweep="1 hour")
    _change_record(project, "events", xmin=str(2**40))
    postgres_database.execute("update events set note = 'unmoved' where id = 1")
    assert _appended(project, ["events"]) == {"events": 1}
    assert int(project.state("shop.events")["mark"]["sweep"]["xmin"]) < 2**40
    assert _read_newest(project, "events") == _read_source(postgres_database, "events")


def test_a_replica_that_lacks_what_the_last_sweep_saw_is_not_swept() -> None:
    seen = SweepRecord(TransactionMark(None, 100, False, "7/1", log_end=50), 1.0, 2, 3.0)
    assert SweepRecord.from_mark({"sweep": seen.to_mark()}) == seen
    for replica, log_end, xmin, is_behind in (
        (True, 49, 100, True),
        (True, 60, 99, True),
        (True, 50, 100, False),
        (False, 49, 100, False),  # a primary after a failover is recognized by its timeline
    ):
        now = TransactionMark(None, xmin, False, "7/1", replica=replica, log_end=log_end)
        assert seen.is_behind(now) is is_behind
