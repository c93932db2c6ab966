"""Killed between altering raw and publishing the batch: the ledger tells each change once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

CHANGED = "changed note string to int, in note__int; added extra string; dropped gone string"


@pytest.fixture(scope="module")
def workers(warehouse: Path) -> Iterator[Workers]:
    """Loader processes that may be killed."""
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
def changed(project: Project, postgres_database: Database) -> Database:
    """A table that was synced, whose columns have changed since."""
    postgres_database.execute(
        "create table t (id int primary key, c int, note text, gone text)",
        "insert into t select n, n, n, 'g' from generate_series(1, 3) n",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute(
        "alter table t drop gone",
        "alter table t add extra text",
        "alter table t alter note type int using note::int",
        "insert into t values (4, 4, 44, 'x')",
    )
    return postgres_database


def _told(project: Project) -> list[tuple[object, ...]]:
    return project.rows("select batch, schema_changes from raw._cq_syncs order by started_at")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["extracted", "prepared", "staged", "published", "state-recorded"])
def test_killed(project: Project, changed: Database, workers: Workers, step: str) -> None:
    worker = workers.take()
    worker.start(project, "run", crash_at=step)
    assert worker.died() == signal.SIGKILL
    ran = project.run().table("shop.t")
    published = step in ("published", "state-recorded")
    assert ran["status"] == ("nothing new" if published else "synced")
    rows = _told(project)
    assert [row for row in rows if row[1]] == [(2, CHANGED)]
    project.run()
    assert _told(project)[:-1] == rows
    columns = "note, note__int, extra, gone"
    assert project.rows(f"select {columns} from raw.t order by _cq_batch, _cq_seq") == [
        ("1", None, None, "g"),
        ("2", None, None, "g"),
        ("3", None, None, "g"),
        (None, 3, None, None),
        (None, 44, "x", None),
    ]


@pytest.mark.slow
def test_the_source_changes_once_more_after_the_crash(
    project: Project, changed: Database, workers: Workers
) -> None:
    worker = workers.take()
    worker.start(project, "run", crash_at="prepared")
    assert worker.died() == signal.SIGKILL
    changed.execute("alter table t alter note type text", "alter table t drop extra")
    project.run()
    assert [row for row in _told(project) if row[1]] == [(2, "dropped gone string")]
    assert project.rows("select note, note__int, extra, gone from raw.t where id = 4") == [
        ("44", None, None, None)
    ]
