"""MariaDB: rows that are committed after a sync, with older cursors, are found by the next sync."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from tests.services import Database
from tests.sync.project import Project

# Without a lookback, only the list of open transactions and statements can reveal the rows.
OPTIONS = {"events": {"cursor_field": "at", "lookback": "0 seconds"}}
LATE = "insert into events (id) values (2)"
WAITING = "insert into events select 2, now(6) from (select get_lock('gate', 60)) as gate"


@pytest.fixture
def events(project: Project, mariadb_database: Database) -> Database:
    """A table whose cursor is set by now(), with one row, synced once."""
    return _create_events(project, mariadb_database)


def _create_events(
    project: Project, database: Database, kind: str = "timestamp(6)", engine: str = "innodb"
) -> Database:
    default = "now(6)" if "6" in kind else "now()"
    database.execute(
        f"create table events (id int primary key, at {kind} default {default}) engine={engine}",
        "insert into events (id) values (1)",
    )
    project.jdbc(database, ["events"], table_options=OPTIONS)
    project.run()
    return database


@contextmanager
def _transaction(database: Database, *statements: str) -> Iterator[Any]:
    """An open transaction; the caller commits it."""
    with closing(database.connect()) as connection:
        connection.autocommit(False)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        yield connection


@contextmanager
def _block_statement(database: Database, connection: Any, statement: str) -> Iterator[None]:
    """Starts a statement that waits for a lock; after the block, it continues and ends."""
    with closing(database.connect()) as gate:
        gate.cursor().execute("select get_lock('gate', 0)")
        cursor = connection.cursor()
        thread = threading.Thread(target=cursor.execute, args=(statement,))
        thread.start()
        shown = "select id from information_schema.processlist where state = 'User lock'"
        while (connection.thread_id(),) not in database.query(shown):
            assert thread.is_alive(), "the statement did not wait"
        yield
        gate.cursor().execute("select release_lock('gate')")
        thread.join()
        cursor.execute("select release_lock('gate')")


def _sync_and_count(project: Project) -> int:
    appended: int = project.run().table("shop.events")["appended"]
    return appended


def _assert_nothing_new(project: Project, read: int = 1) -> None:
    table = project.run().table("shop.events")
    assert (table["status"], table["read"]) == ("nothing new", read)


@pytest.mark.parametrize("kind", ["timestamp(6)", "datetime"])
def test_a_transaction_open_during_a_sync_is_found_by_the_next(
    project: Project, mariadb_database: Database, kind: str
) -> None:
    events = _create_events(project, mariadb_database, kind)
    with _transaction(events, LATE, "savepoint s", LATE.replace("2", "3")) as late:
        time.sleep(1.1)  # more than the window is extended by for columns that store whole seconds
        events.execute("insert into events (id) values (9)")
        assert _sync_and_count(project) == 1
        events.execute("insert into events (id) values (10)")
        assert _sync_and_count(project) == 1
        late.commit()
    assert _sync_and_count(project) == 2
    assert project.rows("select count(*), count(distinct id) from raw.events") == [(5, 5)]


def test_a_late_row_with_a_wall_clock_of_another_time_zone_is_found(
    project: Project, mariadb_database: Database
) -> None:
    events, behind = mariadb_database, "set time_zone = '-08:00'"
    events.execute("create table events (id int primary key, at datetime(6) default now(6))")
    project.jdbc(events, ["events"], table_options=OPTIONS)
    with closing(events.connect()) as connection, connection.cursor() as writer:
        writer.execute(behind)
        writer.execute("insert into events (id) values (1)")
        project.run()
        with _transaction(events, behind, LATE) as late:
            time.sleep(1.1)
            writer.execute("insert into events (id) values (9)")
            assert _sync_and_count(project) == 1
            late.commit()
    assert _sync_and_count(project) == 1


@pytest.mark.parametrize("engine", ["innodb", "aria"])
def test_a_statement_that_waits_during_a_sync_is_found_by_the_next(
    project: Project, mariadb_database: Database, engine: str
) -> None:
    events = _create_events(project, mariadb_database, engine=engine)
    with closing(events.connect()) as late:
        with _block_statement(events, late, WAITING):
            time.sleep(1.1)
            # Aria's table is not locked yet, because the wait comes first.
            events.execute("insert into events (id) values (9)")
            assert _sync_and_count(project) == 1
        assert _sync_and_count(project) == 1


def test_a_first_statement_that_waited_before_its_transaction_began_is_found(
    project: Project, events: Database
) -> None:
    with _transaction(events) as late:
        with _block_statement(events, late, WAITING):
            events.execute("insert into events (id) values (8)")
            time.sleep(2.2)  # InnoDB's transaction start is that much later than now()
            events.execute("insert into events (id) values (9)")
        assert _sync_and_count(project) == 2
        late.commit()
    assert _sync_and_count(project) == 1


def test_a_select_whose_function_writes_is_found_and_one_that_reads_costs_nothing(
    project: Project, events: Database
) -> None:
    events.execute(
        "create table one (n int)",
        "insert into one values (1)",
        """
        create function note(n int) returns int modifies sql data
        begin
            do get_lock('gate', 60);
            insert into events values (n, now(6));
            return n;
        end
        """,
    )
    with closing(events.connect()) as late:
        with _block_statement(events, late, "select note(2) from one"):
            time.sleep(1.1)
            events.execute("insert into events (id) values (9)")
            assert _sync_and_count(project) == 1
        assert _sync_and_count(project) == 1
        project.run()
        time.sleep(1.1)
        events.execute("insert into events (id) values (10)")
        with _block_statement(events, late, "select get_lock('gate', 60) from one"):
            time.sleep(1.1)
            events.execute("insert into events (id) values (11)")
            assert _sync_and_count(project) == 2
            _assert_nothing_new(project)


def test_a_prepared_transaction_whose_session_is_gone_is_found(
    project: Project, events: Database
) -> None:
    with closing(events.connect()) as late:
        for statement in ("xa start 'x'", LATE, "xa end 'x'", "xa prepare 'x'"):
            late.cursor().execute(statement)
        events.execute("insert into events (id) values (8)")
        assert _sync_and_count(project) == 1
    time.sleep(1.1)
    events.execute("insert into events (id) values (9)")
    assert _sync_and_count(project) == 1
    events.execute("xa commit 'x'")
    assert _sync_and_count(project) == 1


def test_a_stale_list_of_transactions_is_reported(project: Project, events: Database) -> None:
    stop = threading.Event()

    def poll() -> None:
        with closing(events.connect()) as monitor, monitor.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("select count(*) from information_schema.innodb_trx")

    monitors = [threading.Thread(target=poll) for _ in range(2)]
    for monitor in monitors:
        monitor.start()
    try:
        [note] = project.run().warnings
    finally:
        stop.set()
        for monitor in monitors:
            monitor.join()
    assert "innodb_trx does not show the current transactions: rows that commit late" in note
    assert not project.run().warnings


def test_what_hides_open_transactions_is_reported(project: Project, events: Database) -> None:
    account = f"'plain_{events.name}'@'127.0.0.1'"
    events.execute(
        f"create user {account} identified by 'tide'",
        f"grant select on {events.name}.* to {account}",
        "create view v as select * from events",
    )
    own = {"user": f"plain_{events.name}", "password": "tide"}
    project.jdbc(events, ["events"], table_options=OPTIONS, **own)
    with ExitStack() as undo:
        undo.callback(events.execute, f"drop user {account}")
        for command in ("run", "check"):
            assert "grant it PROCESS" in project.loader(command).text
        events.execute(f"grant process on *.* to {account}")
        for command in ("run", "check"):
            assert "PROCESS" not in project.loader(command).text
        undo.callback(events.execute, "set global read_only = 0")
        events.execute("set global read_only = 1")
        assert "a replica does not show" in project.loader("check").text
        events.execute("set global read_only = 0")
        undo.callback(events.execute, "stop slave", "reset slave all")
        events.execute(
            "change master to master_host='127.0.0.1', master_port=1, master_user='x'",
            "start slave",
        )
        assert "a replica does not show" in project.loader("check").text
        events.execute("stop slave", "reset slave all")
        assert "replica" not in project.loader("check").text
        view = {"v": {"cursor_field": "at", "primary_key": "id"}}
        project.jdbc(events, ["v"], table_options=view, **own)
        assert "in a view" in project.loader("check").text


def test_no_row_is_missed_after_the_clock_is_set_back(project: Project, events: Database) -> None:
    """The stored state has times from a clock that was two hours ahead."""
    reported = project.state("shop.events")
    ahead = str(dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) + dt.timedelta(hours=2))
    times = dict.fromkeys(("base", "clock", "until"), ahead)
    reported |= {"cursor": ahead, "mark": {**reported["mark"], **times}}
    project.spark.sql(
        f"insert into {project.schema}._cq_state select key, '{json.dumps(reported)}', "
        f"version + 1, updated_at from {project.schema}._cq_state"
    )
    events.execute("insert into events (id) values (2)", "insert into events (id) values (3)")
    ran = project.run()
    assert ran.table("shop.events")["appended"] == 2
    assert any("clock was set back" in warning for warning in ran.warnings)
    assert not any("clock was set back" in warning for warning in project.run().warnings)
