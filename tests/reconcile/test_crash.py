"""If a repair is killed, the next run completes it or repeats it."""

from __future__ import annotations

import signal

import pytest

from tests.crash.workers import Workers
from tests.reconcile.shop import line, missed, nothing, reconcile
from tests.services import Database
from tests.sync.project import Project

STEPS = ["prepared", "staged", "published"]


@pytest.mark.slow
def test_a_repair_killed_at_each_step(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """Three tables, each killed at a different step."""
    worker = workers.take()
    for table in STEPS:
        postgres_database.execute(
            f"create table {table} (id int primary key, note text, at timestamptz)",
            f"insert into {table} select i, 'n', now() - i * interval '1 day' "
            "from generate_series(1, 20) i",
        )
    options = {table: {"cursor_field": "at", "sweep": "never"} for table in STEPS}
    project.jdbc(postgres_database, STEPS, table_options=options)
    project.run()
    for table in STEPS:
        postgres_database.execute(
            f"delete from {table} where id = 4", f"update {table} set note = 'm' where id > 18"
        )
    # the syncs before the repairs append nothing, so the steps are those of the repairs
    places = ",".join(f"{step}:shop.{step}" for step in STEPS)
    worker.start(project, "reconcile", "--repair", "--concurrency", "3", crash_at=places)
    assert worker.died() == signal.SIGKILL
    for step in STEPS:
        count = 23 if step == "published" else 20
        assert project.rows(f"select count(*) from raw.{step}") == [(count,)]

    ran = reconcile(project, "--repair")
    wanted = {"missed_updates": 2, "missed_rows": 0, "missed_deletes": 1}
    for step in STEPS:
        published = step == "published"
        assert missed(ran, f"shop.{step}") == (nothing() if published else wanted)
        assert project.rows(
            "select mode, status, rows_appended, generation from raw._cq_syncs "
            f"where batch = 2 and table_name = '{step}'"
        ) == [("reconcile", "recovered" if published else "synced", 3, 2)]
        assert project.snapshots(step) == 2, "a staged batch was left behind"
    compared = reconcile(project)
    for step in STEPS:
        assert line(compared, f"shop.{step}")["synced"] == 0
        assert missed(compared, f"shop.{step}") == nothing()
