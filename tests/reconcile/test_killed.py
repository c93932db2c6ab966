"""Killed in the midst of a repair: the next run completes it, or finds it undone."""

from __future__ import annotations

import signal

import pytest

from tests.crash.workers import Workers
from tests.reconcile.shop import missed, nothing, reconcile
from tests.services import Database
from tests.sync.project import Project


@pytest.mark.slow
@pytest.mark.parametrize("step", ["prepared", "staged", "published"])
def test_killed_in_a_repair(
    project: Project, postgres_database: Database, workers: Workers, step: str
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text, at timestamptz)",
        "insert into t select i, 'n', now() - i * interval '1 day' from generate_series(1, 20) i",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    project.run()
    postgres_database.execute("delete from t where id = 4", "update t set note = 'm' where id > 18")
    worker = workers.take()
    # its sync has nothing to append, so the step is the repair's
    worker.start(project, "reconcile", "--repair", crash_at=step)
    assert worker.died() == signal.SIGKILL
    published = step == "published"
    assert project.rows("select count(*) from raw.t") == [(23 if published else 20,)]

    ran = reconcile(project, "--repair")
    wanted = {"missed_updates": 2, "missed_rows": 0, "missed_deletes": 1}
    assert missed(ran, "shop.t") == (nothing() if published else wanted)
    assert project.rows(
        "select mode, status, rows_appended, generation from raw._cq_syncs where batch = 2"
    ) == [("reconcile", "recovered" if published else "synced", 3, 2)]
    assert project.snapshots("t") == 2, "a staged batch was left behind"
    assert project.run().table("shop.t")["appended"] == 0
    assert missed(reconcile(project), "shop.t") == nothing()
