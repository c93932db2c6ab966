"""Each mistake or outage causes one clear error and exit code 1; other tables are synced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from loader.cli import run_once
from loader.spark.error_translation import translate_error
from loader.spec.plugins import SourceSpec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.services.server import PASSWORD, USER
from tests.sync.project import Project, Ran

FINE = {"cursor_field": "c"}
SECRET = "hunter2-tide"


def _create(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"create table {table} (id int primary key, c int, name varchar(20))",
            f"insert into {table} values (1, 1, 'a'), (2, 2, 'b')",
        )


def _list_failed(ran: Ran) -> set[str]:
    return {e["table"] for e in ran.events if e["event"] == "table" and e["status"] == "failed"}


def _read_ledger(project: Project) -> dict[str, tuple[str, str | None]]:
    """Returns the status and the error of each table's only sync."""
    rows = project.rows("select source_name, table_name, status, error from raw._cq_syncs")
    return {f"{source}.{table}": (status, error) for source, table, status, error in rows}


def test_each_unreadable_source_has_its_error_and_the_others_are_synced(
    project: Project, postgres_database: Database, mariadb_database: Database, tmp_path: Path
) -> None:
    _create(postgres_database, "fine")
    pg, my = postgres_database.url, mariadb_database.url
    parameter = f"?password={SECRET}"
    sources: dict[str, tuple[dict[str, Any], str, str]] = {
        "wrong_password": (
            {"password": SECRET},
            'password authentication failed for user "strandline"',
            "Check user and password of the source",
        ),
        "down": (
            {"url": "jdbc:postgresql://127.0.0.1:1/shop" + parameter},
            "Connection to 127.0.0.1:1 refused",
            "Check that the database is up and that the source's url names its host and port",
        ),
        "unknown_host": (
            {"url": "jdbc:postgresql://db.invalid/shop" + parameter},
            "the host 'db.invalid' does not exist",
            "Check the host in the source's url",
        ),
        "no_database": (
            {"url": pg + "_x"},
            f'database "{postgres_database.name}_x" does not exist',
            "Check the database's name in the source's url",
        ),
        "no_driver": (
            {"url": f"jdbc:oracle:thin:scott/{SECRET}@//localhost:1521/x"},
            "there is no JDBC driver for jdbc:oracle",
            "Put the driver's jar into",
        ),
        "no_class": (
            {"driver": "org.nowhere.Driver"},
            "there is no JDBC driver for jdbc:postgresql (org.nowhere.Driver)",
            "Run `loader setup postgresql`",
        ),
        "mariadb_password": (
            {"url": my, "password": SECRET},
            "Access denied for user 'strandline'@'localhost' (using password: YES)",
            "Check user and password of the source",
        ),
        "mariadb_down": (
            {"url": "jdbc:mariadb://127.0.0.1:1/shop" + parameter},
            "Connection refused",
            "Check that the database is up",
        ),
        "mariadb_host": (
            {"url": "jdbc:mariadb://db.invalid/shop" + parameter},
            "db.invalid",
            "Check the host in the source's url",
        ),
        "mariadb_database": (
            {"url": my + "_x"},
            f"Unknown database '{mariadb_database.name}_x'",
            "Check the database's name in the source's url",
        ),
        "derby_database": (
            {"url": f"jdbc:derby:{tmp_path}/nowhere;password={SECRET}"},
            f"Database '{tmp_path}/nowhere' not found",
            "Check the database's name in the source's url",
        ),
        "no_folder": ({}, f"there is no folder {tmp_path}/nowhere", "Create it, or correct"),
    }
    for name, (changed, _, _) in sources.items():
        if name == "no_folder":
            project.add(name, "file", ["a", "b"], {"path": "nowhere", "format": "csv"})
            continue
        project.jdbc(postgres_database, ["a", "b"], name=name, **changed)
    project.jdbc(postgres_database, ["fine"], table_options={"fine": FINE})
    ran = project.loader("run", options=("--debug",))
    assert ran.code == 1
    assert ran.table("shop.fine")["appended"] == 2
    reported = {
        e["where"].split(" ")[1].rstrip(","): e for e in ran.events if e["event"] == "error"
    }
    assert set(reported) == set(sources)
    for name, (_, what, remedy) in sources.items():
        assert what in reported[name]["what"], name
        assert reported[name]["remedy"].startswith(remedy), name
    # There is one error per source; each of its tables has a row in the summary and the ledger.
    failed = {f"{name}.{table}" for name in sources for table in ("a", "b")}
    assert _list_failed(ran) == failed
    ledger = _read_ledger(project)
    assert {name for name, (status, _) in ledger.items() if status == "failed"} == failed
    assert "Traceback" in ran.text  # because of --debug; secrets must not be in it
    for text in (ran.text, str(ledger)):
        assert SECRET not in text
        assert postgres_database.password not in text


def test_each_bad_table_has_its_error_and_the_others_are_synced(
    project: Project, postgres_database: Database
) -> None:
    names = [
        "fine",
        "typed",
        "none",
        "keyless",
        "begins",
        "back",
        "back_text",
        "ranges",
        "range_text",
    ]
    _create(postgres_database, *names, "typo", "unsorted")
    postgres_database.execute(
        "alter table typed add column flag boolean",
        "alter table unsorted add column doc jsonb default '{}'",
        "create table nokey (a int, c int)",
        "insert into nokey values (1, 1), (1, 1)",
    )
    options = {
        "fine": FINE,
        "typo": {"cursor_field": "cc"},
        "typed": {"cursor_field": "flag"},
        "none": {},
        "keyless": {**FINE, "primary_key": ["idd"]},
        "begins": {**FINE, "initial_cursor": "yesterday"},
        "back": {**FINE, "lookback": "10 minutes"},
        "back_text": {"cursor_field": "name", "lookback": 5},
        "ranges": {**FINE, "partition_column": "iid"},
        "range_text": {**FINE, "partition_column": "name"},
        "unsorted": {"cursor_field": "doc"},
        "nokey": FINE,
        "ghost": FINE,
    }
    tables = [*(name for name in options if name != "ghost"), "fines", "x*"]
    project.jdbc(postgres_database, tables, table_options=options)
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("shop.fine")["appended"] == 2
    # A table without a key is synced, with a warning that a latest table needs a key.
    assert ran.table("shop.nokey")["appended"] == 2
    assert "shop.nokey: no primary key: a deduped_latest model needs a key" in ran.warnings
    shown = ", ".join([*sorted([*names, "typo", "unsorted", "nokey"])[:10], "..."])
    expected = {
        "source shop, tables: the source has no table 'fines'. Did you mean `fine`? "
        f"It has: {shown}",
        f"source shop, tables: the source has no table 'x*'. It has: {shown}",
        "source shop, table_options: there are options for 'ghost', but the source has no such "
        "table. `loader discover` lists its tables",
        "table shop.typo, cursor_field: there is no column 'cc'. Did you mean `c`? "
        "Its columns: id, c, name, and the cursor xmin",
        "table shop.typed, cursor_field: the column 'flag' of type boolean cannot be a cursor. "
        "Choose a timestamp, date, number or string that increases with every change",
        "table shop.none: an incremental sync needs a cursor, but the table's options name none. "
        "Set table_options.none.cursor_field, or sync_mode: full_refresh",
        "table shop.keyless, primary_key: there is no column 'idd'. Did you mean `id`? "
        "Its columns: id, c, name",
        "table shop.begins, initial_cursor: 'yesterday' is not a value of the column's type, "
        "integer. Write it as 42",
        "table shop.back, lookback: '10 minutes' does not fit a cursor of type integer. "
        "Use a whole number: the distance below the cursor at which to start",
        "table shop.back_text, lookback: '5' does not fit a cursor of type string. "
        "Remove it: string cursors do not support a lookback",
        "table shop.ranges, partition_column: there is no column 'iid'. Did you mean `id`? "
        "Its columns: id, c, name",
        "table shop.range_text, partition_column: the column 'name' of type string cannot be split "
        "into ranges. Choose a number, date or timestamp column, or remove partition_column",
        "table shop.unsorted: function min(jsonb) does not exist. "
        "Choose a cursor_field of a type that the database can order",
    }
    assert set(ran.errors) == expected
    bad = set(options) - {"fine", "nokey", "ghost"} | {"fines"}
    assert _list_failed(ran) == {f"shop.{name}" for name in bad}
    ledger = _read_ledger(project)
    assert {name for name, (status, _) in ledger.items() if status == "failed"} == _list_failed(ran)
    assert ledger["shop.typo"][1] in expected
    assert not any(project.lake().exists(name) for name in bad)

    checked = project.loader("check")
    assert checked.code == 1
    assert set(checked.errors) == expected

    one = project.run("--select", "shop.fine")
    assert (one.errors, one.table("shop.fine")["status"]) == ([], "nothing new")
    typo = project.loader("run", "--select", "shop.fin")
    assert typo.code == 2
    [error] = typo.errors
    assert error.startswith("--select: no table of the spec matches 'shop.fin'. Did you mean")
    missing = project.loader("run", "--select", "shop.fines")
    assert (missing.code, len(missing.errors), _list_failed(missing)) == (1, 1, {"shop.fines"})


def test_a_table_that_is_dropped_while_the_run_is_planned(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create(postgres_database, "fine", "gone")
    project.jdbc(postgres_database, ["fine", "gone"], table_options={"fine": FINE, "gone": FINE})
    prepare = Pipeline.prepare

    def drop_and_prepare(pipeline: Pipeline, source: SourceSpec) -> None:
        postgres_database.execute("drop table gone")
        prepare(pipeline, source)

    monkeypatch.setattr(Pipeline, "prepare", drop_and_prepare)
    ran = project.loader("run")
    assert (ran.code, ran.table("shop.fine")["appended"]) == (1, 2)
    assert ran.errors == [
        'table shop.gone: relation "public.gone" does not exist. '
        "`loader discover` lists the tables that exist"
    ]
    assert not project.lake().exists("gone")


def test_a_state_that_another_tool_wrote_is_refused_until_it_is_set_or_reset(
    project: Project, postgres_database: Database
) -> None:
    _create(postgres_database, "fine", "foreign_")
    project.jdbc(
        postgres_database, ["fine", "foreign_"], table_options={"fine": FINE, "foreign_": FINE}
    )
    project.run()
    key = "shop.foreign_"
    project.rows(
        f"insert into raw._cq_state values ('{key}', '2025-01-01T00:00:00Z', 2, "
        "current_timestamp())"
    )
    ran = project.loader("run")
    assert (ran.code, ran.table("shop.fine")["status"]) == (1, "nothing new")
    [error] = ran.errors
    assert error.startswith(
        f"state {key}: the stored state '2025-01-01T00:00:00Z' was not written by this loader"
    )
    assert "`loader state set`, or start over with `loader state reset`" in error
    listed = project.loader("state", "list")
    assert {e["table"]: e["cursor"] for e in listed.events if e["event"] == "state"} == {
        "shop.fine": "2",
        key: "2025-01-01T00:00:00Z",
    }
    assert project.loader("state", "set", key, "1").code == 0
    again = project.run().table(key)
    assert (again["status"], again["redelivered"]) == ("nothing new", 2)


@pytest.mark.parametrize(
    ("wrong", "reported", "remedy"),
    [
        ({"password": "x"}, "password authentication failed", "Check the catalog's user and pass"),
        ({"database": "nowhere"}, 'database "nowhere" does not', "Check the catalog's host, port"),
        ({"port": "1"}, "Connection to 127.0.0.1:1 refused", "Check the catalog's host, port"),
    ],
)
def test_errors_of_the_catalog_are_not_blamed_on_the_source(
    spark: SparkSession,
    postgres_database: Database,
    wrong: dict[str, str],
    reported: str,
    remedy: str,
) -> None:
    server = postgres_database.server
    right = {"password": PASSWORD, "database": postgres_database.name, "port": str(server.port)}
    given = {**right, **wrong}
    catalog = f"wrong_{next(iter(wrong))}"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:postgresql://127.0.0.1:{given['port']}/{given['database']}",
        ".jdbc.user": USER,
        ".jdbc.password": given["password"],
        ".warehouse": "/nowhere",
    }.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    with pytest.raises(Py4JJavaError) as raised:
        spark.sql(f"create namespace {catalog}.raw")
    text = str(translate_error(raised.value, "source shop"))
    assert text.startswith("source shop: the catalog's database: ")
    assert reported in text
    assert remedy in text
    assert "spark.sql.catalog.<name>.uri" in text
    assert "source's" not in text


class _Slow:
    """A view whose rows are slow to read but fast to count."""

    def __init__(self, database: Database, rows: int = 1200) -> None:
        self.database = database
        database.execute(
            "create function slowly(i int) returns int language plpgsql stable as "
            "$$ begin perform pg_sleep(0.05); return i; end $$",
            f"create view slow as select i as id, i as c, slowly(i) as v "
            f"from generate_series(1, {rows}) as i",
        )

    def await_reader(self, count: int = 1) -> int:
        """Waits until this many backends read the view; returns the process id of one."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = self.database.query(
                "select pid from pg_stat_activity "
                "where wait_event = 'PgSleep' and query like '%slow%' and pid <> pg_backend_pid()"
            )
            if len(found) >= count:
                return int(found[0][0])
            time.sleep(0.1)
        raise AssertionError("nobody reads the view")

    def stop_reading(self) -> None:
        """Terminates the backends that read the view."""
        self.database.query(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
            "where query like '%slow%' and pid <> pg_backend_pid()"
        )

    def hurry(self) -> None:
        """Makes the view fast to read."""
        self.database.execute(
            "create or replace function slowly(i int) returns int language sql stable as 'select i'"
        )


def test_a_database_that_dies_in_mid_read(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_once, "RETRY_PAUSES", ())
    _create(postgres_database, "fine")
    slow = _Slow(postgres_database)
    options = {"fine": FINE, "slow": {**FINE, "primary_key": "id"}}
    project.jdbc(postgres_database, ["fine", "slow"], table_options=options)

    def kill() -> None:
        postgres_database.query(f"select pg_terminate_backend({slow.await_reader()})")

    killer = threading.Thread(target=kill)
    killer.start()
    ran = project.loader("run", "--concurrency", "2")
    killer.join()
    assert (ran.code, ran.table("shop.fine")["appended"]) == (1, 2)
    assert ran.errors == [
        "table shop.slow: terminating connection due to administrator command. "
        "The database ended the connection: no row of this batch is visible; run again"
    ]
    assert _count_rows(project, "slow") == 0
    slow.hurry()
    assert project.run().table("shop.slow")["appended"] == 1200
    assert project.run().table("shop.slow")["status"] == "nothing new"


@pytest.mark.parametrize("command", ["run", "reconcile"])
def test_a_table_is_retried_after_a_lost_connection(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(run_once, "RETRY_PAUSES", (0.1, 0.1))
    _create(postgres_database, "fine")
    slow = _Slow(postgres_database)
    options = {"fine": FINE, "slow": {**FINE, "primary_key": "id"}}
    project.jdbc(postgres_database, ["fine", "slow"], table_options=options)

    def kill() -> None:
        reader = slow.await_reader()
        slow.hurry()
        postgres_database.query(f"select pg_terminate_backend({reader})")

    killer = threading.Thread(target=kill)
    killer.start()
    ran = project.loader(command, "--concurrency", "2")
    killer.join()
    assert ran.errors == []
    assert [text for text in ran.warnings if "connection" in text] == [
        "the connection to the database was lost: shop.slow. Syncing again, up to 2 times"
    ]
    assert ran.code == 0
    event, appended = ("table", "appended") if command == "run" else ("reconciled", "synced")
    tables = {e["table"]: e[appended] for e in ran.events if e["event"] == event}
    assert tables == {"shop.fine": 2, "shop.slow": 1200}
    statuses = "select table_name, status from raw._cq_syncs where status <> 'nothing new'"
    assert sorted(project.rows(statuses)) == [
        *(("fine", "synced"), ("slow", "failed"), ("slow", "synced")),
    ]
    assert _count_rows(project, "slow") == 1200


def test_an_interrupted_run_ends_cleanly(project: Project, postgres_database: Database) -> None:
    """Tests Ctrl-C; tests/unit/test_signals.py covers the other signals."""
    slow = _Slow(postgres_database)
    options = {"slow": {**FINE, "primary_key": "id"}}
    project.jdbc(postgres_database, ["slow"], table_options=options)
    with _start_loader(project, "run") as process:
        slow.await_reader()
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert "error: table shop.slow: the run was interrupted. No row of this batch" in text
    assert "Traceback" not in text
    assert _count_rows(project, "slow") == 0
    slow.hurry()
    assert project.run().table("shop.slow")["appended"] == 1200


def test_a_run_continues_in_a_new_java_process(
    project: Project, postgres_database: Database
) -> None:
    """If Java dies, its tables are retried one at a time; a table that was synced alone fails."""
    slow = _Slow(postgres_database)
    names = ("slow", "slow2", "slow3")
    options = {name: {**FINE, "primary_key": "id"} for name in names}
    postgres_database.execute(*(f"create view {name} as select * from slow" for name in names[1:]))
    project.jdbc(postgres_database, list(names), table_options=options)
    with _start_loader(project, "run", "--concurrency", "2") as process:
        slow.await_reader(2)
        first = _find_jvm(process.pid)
        os.kill(first, signal.SIGKILL)
        slow.stop_reading()  # they detect that their client died only when they send rows
        slow.await_reader()
        second = _find_jvm(process.pid)
        assert second != first
        os.kill(second, signal.SIGKILL)
        slow.hurry()
        text, _ = process.communicate(timeout=240)
    assert process.returncode == 1, text
    ended = "Spark's Java process was killed by SIGKILL, perhaps for lack of memory"
    assert text.count(f"warning: {ended}: the run continues in a new process") == 2, text
    assert "then with each of these tables alone: shop.slow, shop.slow2" in text
    [error] = [line for line in text.splitlines() if line.startswith("error: ")]
    alone = f"error: table shop.slow3: {ended}, while only this table was being synced. "
    assert error.startswith(alone), text
    for unclear in ("Traceback", "ERROR:", "Errno", "state table", "py4j"):
        assert unclear not in text
    ledger = project.rows(
        "select table_name, status, error from raw._cq_syncs order by table_name, started_at"
    )
    assert [(name, status) for name, status, _ in ledger] == [
        ("slow", "synced"),
        ("slow2", "synced"),
        ("slow3", "failed"),
    ]
    assert "while only this table was being synced" in ledger[2][2]
    assert project.run().table("shop.slow3")["appended"] == 1200
    assert [_count_rows(project, name) for name in names] == [1200] * 3


def _find_jvm(pid: int) -> int:
    """Returns the process id of a loader's JVM."""
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    [java] = [
        int(child)
        for child in chain.from_iterable(children)
        if Path(f"/proc/{child}/comm").read_text().strip() == "java"
    ]
    return java


def test_output_that_cannot_be_written_fails_no_table(
    project: Project, postgres_database: Database
) -> None:
    _create(postgres_database, "fine")
    project.jdbc(postgres_database, ["fine"], table_options={"fine": FINE})
    run = ("--log-format", "json", "run")
    with Path("/dev/full").open("w") as full, _start_loader(project, *run, stdout=full) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    [line] = errors.splitlines()
    assert json.loads(line)["what"] == "it cannot be written to: No space left on device"
    assert _count_rows(project, "fine") == 2
    assert project.run().table("shop.fine")["status"] == "nothing new"


def _count_rows(project: Project, table: str) -> int:
    lake = project.lake()
    return lake.frame(table).count() if lake.exists(table) else 0


@contextlib.contextmanager
def _start_loader(
    project: Project, *arguments: str, stdout: IO[str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "loader", *arguments],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.PIPE if stdout else subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
