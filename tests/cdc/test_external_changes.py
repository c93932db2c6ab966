"""No gap: changes that others make to the log, the slot or the tables are detected.

They occur between two runs, or while one runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loader.cdc import wal_reader
from loader.cdc.debezium.launcher import read_into_spool
from loader.cdc.debezium.spool import ChangeSpool
from tests.cdc.test_changes import follow, newest, position
from tests.services import Database
from tests.services.server import PASSWORD, USER
from tests.sync.project import Project

POLLS = (
    "select pid, query_start::text from pg_stat_activity "
    "where query like '%confirmed_flush_lsn%' and pid <> pg_backend_pid()"
)


def test_commits_that_are_not_flushed_are_read(
    project: Project, postgres_database: Database
) -> None:
    """With `synchronous_commit = off`, a commit is flushed later; only flushed log can be read."""
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (1, 1)"
    )
    follow(project, postgres_database, "things")
    project.run()
    try:
        postgres_database.execute(
            "alter system set wal_writer_delay = '10s'", "select pg_reload_conf()"
        )
        time.sleep(0.5)  # until its last sleep with the shorter delay is over
        postgres_database.execute("update things set v = 2")
        assert project.run().table("shop.things")["appended"] == 1
    finally:
        postgres_database.execute("alter system reset wal_writer_delay", "select pg_reload_conf()")


def test_another_reader_moves_the_slot_during_a_run(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    """The slot moves after the run has read its position, while it waits for the other reader."""
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (1, 1)"
    )
    follow(project, postgres_database, "things")
    project.run()
    began = position(postgres_database)
    with _reader(postgres_database, tmp_path) as reader:
        reader.send_signal(signal.SIGSTOP)
        postgres_database.execute("set synchronous_commit = on", "update things set v = 2")
        mover = threading.Thread(target=_move_slot, args=(postgres_database, reader, began))
        mover.start()
        ran = project.loader("run")
        mover.join()
    assert position(postgres_database) != began
    [error] = ran.errors
    assert "another run moved the replication slot during this run" in error
    assert any("is gone: all rows are read again" in w for w in project.run().warnings)
    assert newest(project, "things", "id", "v") == [(1, 2)]


@pytest.mark.parametrize("does", ["drop_replication_slot", "replication_slot_advance"])
def test_the_slot_is_dropped_or_advanced_just_before_it_is_read(
    project: Project,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    does: str,
) -> None:
    """Otherwise, Debezium would start after the run's marker, and wait for it for ever."""
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (1, 1)"
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute("update things set v = 2")
    more = ", pg_current_wal_lsn()" if does.endswith("advance") else ""

    def late(*arguments: Any) -> ChangeSpool | None:
        postgres_database.execute(f"select pg_{does}('strandline_shop'{more})")
        return read_into_spool(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(wal_reader, "read_into_spool", late)
        ran = project.loader("run")
    [error] = ran.errors
    assert "another run moved the replication slot during this run" in error
    assert any("all rows are read again" in w for w in project.run().warnings)
    assert newest(project, "things", "id", "v") == [(1, 2)]


@contextmanager
def _reader(database: Database, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts another reader of the source's slot, which confirms the changes that it reads."""
    server = database.server
    command = [str(server._bin / "pg_recvlogical"), "-h", "127.0.0.1", "-p", str(server.port)]
    command += ["-U", USER, "-d", database.name, "--slot", "strandline_shop", "--start"]
    command += ["-o", "proto_version=1", "-o", "publication_names=strandline_shop"]
    command += ["-s", "1", "-F", "1", "--no-loop", "-f", str(folder / "read")]
    process = subprocess.Popen(command, env={**os.environ, "PGPASSWORD": PASSWORD})
    try:
        while not database.query("select 1 from pg_replication_slots where active"):
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _move_slot(database: Database, reader: subprocess.Popen[bytes], began: str) -> None:
    polls: dict[int, set[str]] = {}
    while all(len(starts) < 3 for starts in polls.values()):  # the run waits for the reader
        for pid, start in database.query(POLLS):
            polls.setdefault(pid, set()).add(start)
        time.sleep(0.03)
    reader.send_signal(signal.SIGCONT)
    while position(database) == began:
        time.sleep(0.05)
    reader.terminate()


def test_columns_that_replace_others(project: Project, postgres_database: Database) -> None:
    """A column name in the log may mean another column than the one that has this name now."""
    tables = ("again", "contracted", "renamed", "plain")
    postgres_database.execute(
        "create table again (id int primary key, v int)",
        "create table contracted (id int primary key, price int)",
        "create table renamed (id int primary key)",
        "create table plain (id int primary key)",
        *(f"insert into {table} values (1{', 1' * (i < 2)})" for i, table in enumerate(tables)),
    )
    follow(project, postgres_database, *tables)
    project.run()
    postgres_database.execute(
        "alter table again drop column v",
        "alter table again add column v int",
        "alter table contracted add column price_new bigint",
        "update contracted set price_new = price * 100",
        "alter table contracted drop column price",
        "alter table contracted rename column price_new to price",
        "alter table renamed add column a int",
        "update renamed set a = 7",
        "alter table renamed rename column a to b",
        "alter table plain add column a int",
        "update plain set a = 7",
    )
    ran = project.run()
    assert newest(project, "again", "id", "v") == [(1, None)]
    assert newest(project, "contracted", "id", "price") == [(1, 100)]
    assert newest(project, "renamed", "id", "b") == [(1, 7)]
    assert newest(project, "plain", "id", "a") == [(1, 7)]
    anew = {w.split(":")[0] for w in ran.warnings if "all rows are read again" in w}
    assert anew == {"shop.again", "shop.contracted", "shop.renamed"}


def test_a_table_that_replaces_another(project: Project, postgres_database: Database) -> None:
    """The publication is for all tables, so it contains the new table without an ALTER."""
    postgres_database.execute(
        "create table things (id int primary key, v int)",
        "insert into things values (1, 1), (2, 2)",
        "create publication strandline_shop for all tables "
        "with (publish_via_partition_root = true)",
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        "create table things_new (id int primary key, v int)",
        "insert into things_new values (1, 10), (3, 30)",
        "alter table things rename to things_old",
        "alter table things_new rename to things",
        "drop table things_old",
    )
    ran = project.run()
    assert any("all rows are read again" in warning for warning in ran.warnings)
    assert newest(project, "things", "id", "v") == [(1, 10), (3, 30)]


def test_a_source_that_is_renamed_keeps_the_log_for_all_of_its_tables(
    project: Project, postgres_database: Database
) -> None:
    """The slot waits for a table that is not in the run, although its state has the old name."""
    postgres_database.execute(
        "create table one (id int primary key, v int)",
        "create table two (id int primary key, v int)",
        "insert into one values (1, 1)",
        "insert into two values (1, 1)",
    )
    follow(project, postgres_database, "one", "two", slot="kept")
    project.run()
    began = position(postgres_database)
    postgres_database.execute("update one set v = 2", "update two set v = 2")
    project.sources.clear()
    follow(project, postgres_database, "one", "two", slot="kept", name="store")
    project.sources[0]["formerly"] = ["shop"]
    project.sources[0]["spec"]["table_options"] = {
        "one": {"sync_mode": "cdc"},
        "TWO": {"sync_mode": "cdc"},
    }
    project.write()
    assert project.run("--select", "store.one").table("store.one")["appended"] == 1
    assert position(postgres_database) == began
    ran = project.run()
    assert (ran.table("store.two")["appended"], ran.warnings) == (1, [])
    project.sources[0]["spec"]["slot"] = "other"
    project.write()
    warnings = " ".join(project.run().warnings)
    assert "select pg_drop_replication_slot('kept')" in warnings


def test_the_slot_does_not_move_during_a_first_load(
    project: Project, postgres_database: Database
) -> None:
    """A table needs the log from the slot's position at the start of its first load."""
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (1, 1)"
    )
    follow(project, postgres_database, "things")
    with _poll(
        postgres_database,
        "select mode from pg_locks where locktype = 'advisory' and database = "
        "(select oid from pg_database where datname = current_database())",
    ) as held:
        project.run()
    assert held == {"ShareLock"}
    began = position(postgres_database)
    with postgres_database.connect() as other:  # another run's first load
        other.execute(
            "select pg_advisory_lock_shared(hashtext('strandline'), hashtext('strandline_shop'))"
        )
        postgres_database.execute("update things set v = 2")
        assert project.run().table("shop.things")["appended"] == 1
        assert position(postgres_database) == began
    postgres_database.execute("update things set v = 3")
    assert project.run().table("shop.things")["appended"] == 1
    assert position(postgres_database) != began


def test_a_first_load_locks_the_table_that_it_reads(
    project: Project, postgres_database: Database
) -> None:
    """An ALTER of another table does not wait for the load."""
    postgres_database.execute(
        "create table old (id int primary key)", "create table new (id int primary key)"
    )
    follow(project, postgres_database, "old")
    project.run()
    follow(project, postgres_database, "old", "new")
    with _poll(
        postgres_database,
        "select relation::regclass::text from pg_locks join pg_stat_activity using (pid) "
        "where state = 'idle in transaction' and relation in ('old'::regclass, 'new'::regclass)",
    ) as locked:
        project.run()
    assert locked == {"new"}


@contextmanager
def _poll(database: Database, query: str) -> Iterator[set[str]]:
    """Polls a query during a block; yields the set of the values that it returns."""
    found: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        with database.connect() as connection:
            while not ended.wait(0.01):
                found.update(value for (value,) in connection.execute(query).fetchall())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def test_the_option_reconcile_has_no_effect_on_the_log(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (1, 1)"
    )
    follow(project, postgres_database, "things", things={"reconcile": {"every": "1 second"}})
    project.run()
    postgres_database.execute("update things set v = 2")
    ran = project.run()
    assert ran.table("shop.things")["appended"] == 1
    assert any(
        "`reconcile` option has no effect: sync_mode: cdc" in warning for warning in ran.warnings
    )
    assert not project.lake().exists("_cq_reconciled")
    [checked] = [event for event in project.loader("check").events if "notes" in event]
    assert "`reconcile` option has no effect" in checked["notes"]
