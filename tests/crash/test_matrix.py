"""Killed at every step, and run again: as if nothing had happened.

`pytest tests/crash/test_matrix.py -v` prints the matrix: every step, in a first sync and in an
incremental one, with one table and with four at once.
"""

from __future__ import annotations

import signal

import pytest

from loader.drill import STEPS
from tests.crash import shop
from tests.crash.workers import Worker, Workers
from tests.services import Database
from tests.sync.project import Project

FIRST = shop.FIRST
DELTA = shop.ADDED + shop.UPDATED


def _killed(worker: Worker, project: Project, step: str) -> None:
    worker.start(project, "run", "--concurrency", "4", crash_at=step)
    assert worker.died() == signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("tables", [1, 4], ids=["1-table", "4-tables"])
@pytest.mark.parametrize("kind", ["first", "incremental"])
@pytest.mark.parametrize("step", list(STEPS))
def test_killed(
    project: Project,
    postgres_database: Database,
    workers: Workers,
    step: str,
    kind: str,
    tables: int,
) -> None:
    names = shop.names(tables)
    shop.create(postgres_database, names)
    shop.configure(project, postgres_database, names)
    batches = [FIRST]
    if kind == "incremental":
        project.run()
        shop.change(postgres_database, names)
        batches = [FIRST, DELTA]
    before = list(enumerate(batches, 1))[:-1]
    after = list(enumerate(batches, 1))

    if step == "recovered-state":  # reached with something to do only after another crash
        _killed(workers.take(), project, "published")
    _killed(workers.take(), project, step)
    for seen in shop.batches_seen(project, names).values():
        assert seen in (before, after), "a reader sees part of a batch"

    project.run("--concurrency", "4")
    shop.assert_whole(project, postgres_database, names, batches)
    again = project.run("--concurrency", "4")
    assert {again.table(f"shop.{name}")["status"] for name in names} == {"nothing new"}
    shop.assert_whole(project, postgres_database, names, batches)
