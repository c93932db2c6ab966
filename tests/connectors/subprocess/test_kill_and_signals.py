"""The loader is killed or interrupted while a connector runs: the next run has all records."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from loader.connectors.subprocess.program import KIND
from loader.spark.temporary_files import name_prefix
from loader.sync.fault_injection import STEPS
from tests.connectors.program import Program, items
from tests.crash.workers import Worker

ONCE = ("locked", "recovered-state", "recovered", "unlocked")
"""Steps that a table reaches once per run, regardless of its number of batches."""


@pytest.mark.parametrize(
    ("verb", "number", "command"),
    [
        ("discover", signal.SIGINT, ("run",)),
        ("discover", signal.SIGHUP, ("run", "--every", "1h")),
        ("discover", signal.SIGINT, ("discover",)),
        ("check", signal.SIGTERM, ("check",)),
    ],
)
def test_a_signal_ends_a_connector(
    program: Program, worker: Worker, verb: str, number: signal.Signals, command: tuple[str, ...]
) -> None:
    """One signal ends it within seconds, with each command, and its configuration is deleted.

    One process runs all of the commands; only the last one ends it.
    """
    program.stream("items", items(1))
    program.configure(config={"acts": {verb: [{"deaf": ["SIGTERM", "SIGINT"], "sleep": 300}]}})
    program.project.add("later", "airbyte", ["*"], program.project.sources[0]["spec"])
    worker.start(program.project, *command)
    before = time.monotonic()
    while not program.calls(verb) and time.monotonic() < before + 60:
        time.sleep(0.1)
    call = program.calls(verb)[0]
    before = time.monotonic()
    os.kill(worker.process.pid, number)
    if command[0] == "check":
        assert worker.died() == number
    else:
        ran = worker.ended()
        assert ran.code == (0 if "--every" in command else 1), ran.text
    assert time.monotonic() - before < 10
    assert not _is_running(call["pid"])
    assert not _find_private_folders(worker)


@pytest.mark.slow
def test_killed_at_every_step_of_a_second_batch(program: Program, worker: Worker) -> None:
    """Each table is at a different step of its second batch when the loader dies.

    The connector has begun another table, and would run for minutes.
    """
    places = {f"at_{step.replace('-', '_')}": step for step in STEPS if step not in ONCE}
    tables = [*places, "unread"]
    for table in tables:
        program.stream(table, items(*range(1, 11)))
    asleep = {"unread.0": [{"sleep": 300}]}
    program.configure(config={"every": 2, "acts": asleep}, batch_rows=4)
    crash_at = ",".join(f"{step}:api.{table}#2" for table, step in places.items())
    worker.start(program.project, "run", "--concurrency", str(len(tables)), crash_at=crash_at)
    assert worker.died() == signal.SIGKILL

    before = time.monotonic()
    [call] = program.calls()
    while _is_running(call["pid"]) and time.monotonic() < before + 60:
        time.sleep(0.1)
    assert not _is_running(call["pid"])
    order = list(STEPS)
    for table, step in places.items():
        seen = 8 if order.index(step) >= order.index("published") else 4
        assert program.raw(table) == [(n, (n - 1) // 4 + 1) for n in range(1, seen + 1)], table
    program.configure(config={"every": 2}, batch_rows=4)
    program.run("--concurrency", "4")
    # The next run of the same user deletes the folder, even if it belongs to another test.
    assert not _find_private_folders(worker), "its configuration holds secrets"
    again = program.run("--concurrency", "4")
    for table in tables:
        assert [row[0] for row in program.raw(table)] == list(range(1, 11)), table
        assert again.table(f"api.{table}")["status"] == "nothing new"
    ledger = program.project.rows(
        "select table_name, sum(rows_appended) from raw._cq_syncs group by 1 order by 1"
    )
    assert ledger == [(table, 10) for table in sorted(tables)]
    # it resumed from the state of the newest commit
    given = {
        part["stream"]["stream_descriptor"]["name"]: part["stream"]["stream_state"]["cursor"]
        for part in program.calls()[1]["state"]
    }
    assert given["at_staged"] == items(4)[0]["updated_at"]
    assert given["at_published"] == items(8)[0]["updated_at"]


def _find_private_folders(worker: Worker) -> list[Path]:
    """Returns the folders that the worker has created for connectors."""
    own = f"{name_prefix(KIND)}{worker.process.pid}-*"
    return [*Path(tempfile.gettempdir()).glob(own)]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True
    )
