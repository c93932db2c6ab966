"""With `sync_mode: cdc`, `complete_until` never passes a write that the raw table lacks."""

from __future__ import annotations

import datetime as dt
import statistics
from contextlib import closing
from typing import Any

from benchmarks.complete_until import LOG, create_tables, judge, sync_often, write
from tests.cdc.test_changes import follow
from tests.services import Database
from tests.sync.project import Project


def _complete_until(project: Project) -> dt.datetime | None:
    """Syncs; returns the `complete_until` that is recorded for the table `t`."""
    text = project.run().table("shop.t")["complete_until"]
    return dt.datetime.fromisoformat(text) if text else None


def _clock(database: Database) -> dt.datetime:
    [(now,)] = database.query("select clock_timestamp()")
    assert isinstance(now, dt.datetime)
    return now


def test_no_sync_lacks_an_earlier_write(project: Project, postgres_database: Database) -> None:
    create_tables(postgres_database, [*LOG])
    follow(project, postgres_database, *LOG)
    project.run()
    with write(postgres_database, [*LOG], True, seed=1):
        moments = list(sync_often(project, 10, seed=1))
    project.run()
    found = judge(postgres_database, project, moments, exact=True)
    assert found.ahead == []
    assert found.unknown == 0
    assert len(found.behind_truth) >= 8
    assert statistics.median(found.behind_truth) < 20


def test_a_log_without_changes_moves_it_on_and_an_open_transaction_holds_it_back(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key)", "insert into t values (1)")
    follow(project, postgres_database, "t")
    began = _clock(postgres_database)
    times = [_complete_until(project) for _ in range(3)]
    for until in times:
        assert until is not None
        assert until > began
        began = until
    with closing(postgres_database.connect()) as late:
        late.autocommit = False
        [(opened,)] = late.execute("select now()").fetchall()
        postgres_database.execute("insert into t values (2)")
        assert _complete_until(project) == opened
        late.execute("insert into t values (3)")
        late.commit()
    until = _complete_until(project)
    assert until is not None
    assert until > opened
    assert project.rows("select count(*) from raw.t") == [(3,)]


def test_the_commit_times_of_another_server_do_not_count(
    project: Project, postgres_database: Database
) -> None:
    """Logical replication writes the publisher's commit times, which may be later, to the log."""
    database = postgres_database
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    follow(project, database, "t")
    project.run()
    origin = database.name
    with closing(database.connect()) as worker:
        worker.execute(f"select pg_replication_origin_create('{origin}')")
        worker.execute(f"select pg_replication_origin_session_setup('{origin}')")
        worker.autocommit = False
        worker.execute("select pg_replication_origin_xact_setup('0/1', '2999-01-01')")
        worker.execute("insert into t values (2)")
        worker.commit()
    try:
        until = _complete_until(project)
    finally:
        database.execute(f"select pg_replication_origin_drop('{origin}')")
    assert project.rows("select count(*) from raw.t") == [(2,)]
    assert until is not None
    assert until < _clock(database)


def test_it_is_unknown_until_a_first_load_in_chunks_is_complete(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key)", "insert into t select generate_series(1, 9)"
    )
    follow(project, postgres_database, "t", batch_rows=4)
    assert _complete_until(project) is None
    recorded: list[Any] = project.rows("select batch, complete_until from raw._cq_syncs order by 1")
    assert recorded == [(1, None), (2, None), (3, None)]
    assert _complete_until(project) is not None


def test_it_is_unknown_if_sessions_are_hidden(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key)", "insert into t values (1)")
    follow(project, postgres_database, "t")
    project.run()
    with closing(postgres_database.connect()) as hidden:
        hidden.execute("set track_activities = off")
        postgres_database.execute("insert into t values (2)")
        assert _complete_until(project) is None
    assert _complete_until(project) is not None


def test_a_failed_table_has_no_time_and_holds_back_no_other(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key)",
        "create table failing (id int primary key, cents int[])",
        "insert into t values (1)",
        "insert into failing values (1, '{1}')",
        "alter table failing replica identity full",
    )
    follow(project, postgres_database, "t", "failing")
    before = _complete_until(project)
    assert before is not None
    postgres_database.execute("update failing set cents = '{{1, 2}, {3, 4}}'")
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("shop.failing")["status"] == "failed"
    assert ran.table("shop.failing")["complete_until"] is None
    assert dt.datetime.fromisoformat(ran.table("shop.t")["complete_until"]) > before
