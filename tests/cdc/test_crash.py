"""`sync_mode: cdc`: a sync or first load that is killed leaves neither gaps nor duplicates.

`tests/crash/test_matrix.py` describes what is durable at each step. Reading the log into the spool
leaves nothing behind (`windowed` comes after it), and a run killed at `unlocked` has not moved the
slot.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from pathlib import Path

import pytest

from loader.spark.temporary_files import name_prefix
from loader.sync.fault_injection import STEPS
from tests.cdc.test_changes import follow, newest, position
from tests.crash.conftest import workers as workers
from tests.crash.steps import break_off
from tests.crash.workers import Worker, Workers
from tests.services import Database
from tests.sync.project import Project

RECOVERING = ("recovered-state", "recovered")
DURABLE = ("staged", "published", "state-recorded", "ledger-recorded")
CHANGES = (
    "update {t} set v = v + 10",
    "begin; update {t} set v = v + 100 where id = 1; update {t} set v = v + 100 where id = 1; "
    "delete from {t} where id = 2; insert into {t} values (4, 4); commit",
)
VERSIONS = {1: [1, 11, 111, 211], 2: [2, 12, None], 3: [3, 13], 4: [4]}


def _read_versions(project: Project, table: str) -> dict[int, list[int | None]]:
    found: dict[int, list[int | None]] = {}
    for key, value in project.rows(
        f"select id, if(_cq_deleted, null, v) from raw.{table} "
        "order by id, _cq_generation, _cq_batch, _cq_seq"
    ):
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.slow
def test_killed_at_every_step_of_a_sync_and_during_a_first_load(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """First loads die in the second of three chunks; published chunks are not read again."""
    victim = workers.take()
    places = {f"t_{step.replace('-', '_')}": step for step in STEPS}
    pieces = {f"p_{step.replace('-', '_')}": step for step in DURABLE}
    for table in (*places, *pieces):
        postgres_database.execute(
            f"create table {table} (id int primary key, v int)",
            f"insert into {table} values (1, 1), (2, 2), (3, 3)",
        )
    follow(project, postgres_database, *places)
    project.run("--concurrency", "4")
    for table in places:
        postgres_database.execute(*(change.format(t=table) for change in CHANGES))
    slot = "strandline_shop"
    before = position(postgres_database, slot)
    recovering = [f"shop.{table}" for table, step in places.items() if step in RECOVERING]
    break_off(project, "published", recovering)
    follow(project, postgres_database, *pieces, name="load", batch_rows=1)
    wanted = [f"{step}:shop.{table}" for table, step in places.items()]
    wanted += [f"{step}:load.{table}#2" for table, step in pieces.items()]
    victim.start(project, "run", "--concurrency", str(len(wanted)), crash_at=",".join(wanted))
    assert victim.died() == signal.SIGKILL
    # The slot moves only after the changes of all tables are published.
    assert position(postgres_database, slot) == before
    for table in pieces:
        postgres_database.execute(
            f"update {table} set v = v + 10",
            f"delete from {table} where id = 2",
            f"insert into {table} values (4, 14)",
        )
    ran = project.run("--concurrency", "4")
    assert {ran.table(f"load.{table}")["appended"] for table in pieces} == {2}
    for table in places:
        assert _read_versions(project, table) == VERSIONS, table
        assert newest(project, table, "id", "v") == [(1, 211), (3, 13), (4, 4)]
    assert position(postgres_database, slot) != before
    project.run("--concurrency", "4")
    for table, step in pieces.items():
        # If row 2 was deleted before its chunk was published, the raw table never has it.
        second = {} if step == "staged" else {2: [2, 12, None]}
        assert _read_versions(project, table) == {1: [1, 11], **second, 3: [13], 4: [14]}, table
    again = project.run("--concurrency", "4")
    names = [f"shop.{table}" for table in places] + [f"load.{table}" for table in pieces]
    assert {again.table(name)["status"] for name in names} == {"nothing new"}


@pytest.mark.slow
def test_interrupted_while_the_log_is_read(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """A closed connection, Ctrl-C and a kill: no change is lost, no process or file is left."""
    victim = workers.take()
    postgres_database.execute(
        "create table things (id int primary key, v int)", "insert into things values (0, 0)"
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        "insert into things select i, i from generate_series(1, 40000) as i",
        "update things set v = v + 1",
    )
    victim.start(project, "run")
    _wait_until_reading(postgres_database, victim)
    postgres_database.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots "
        "where database = current_database()"
    )
    ran = victim.ended()
    [error] = ran.errors
    assert (ran.code, ran.table("shop.things")["status"]) == (1, "failed")
    assert "source shop, sync_mode: cdc: the database closed the connection" in error
    assert error.endswith("No changes were appended; run again")
    victim.start(project, "run")
    _wait_until_reading(postgres_database, victim)
    victim.process.send_signal(signal.SIGINT)
    ran = victim.ended()
    assert ran.code == 1
    assert len(ran.errors) == 1
    assert "reading the log was interrupted" in ran.errors[0]
    victim.start(project, "run")
    children = _wait_until_reading(postgres_database, victim)
    victim.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline, "the process that reads the log has outlived the run"
        time.sleep(0.1)
    assert project.run().table("shop.things")["appended"] == 80001
    [(keys, versions)] = project.rows("select count(distinct id), count(*) from raw.things")
    assert (keys, versions) == (40001, 80002)
    assert _find_spools(victim) == []


def _wait_until_reading(database: Database, worker: Worker) -> list[int]:
    """Waits until a run has read some changes; returns the processes that read them."""
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size for file in _find_spools(worker)):
        assert time.monotonic() < deadline
        assert worker.process.poll() is None
        time.sleep(0.02)
    [(active,)] = database.query("select count(active_pid) from pg_replication_slots")
    assert active == 1
    return _find_readers(worker.process.pid)


def _find_spools(worker: Worker) -> list[Path]:
    """Returns the files with the changes that a process has read; it deletes them at its end."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{name_prefix('cdc')}{worker.process.pid}-*"):
        with contextlib.suppress(OSError):
            found += folder.glob("*/0/*.txt")
    return found


def _find_readers(parent: int) -> list[int]:
    """Returns the child processes of a run that read the log."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            reported = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(reported[1]) == parent and b"debezium.program" in command:
            found.append(int(path.parent.name))
    return found
