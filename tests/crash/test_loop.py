"""`loader run --every` as a real process: a signal ends it, and synced rows are kept."""

from __future__ import annotations

import os
import signal
import time

from tests.crash import shop
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project


def test_a_signal_ends_the_loop(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    worker = workers.take()
    worker.start(project, "run", "--every", "1s")
    # Its output is available only at its end, so wait for its rows in the lake.
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if project.lake().exists("_cq_syncs") and project.rows(
            "select count(*) from raw._cq_syncs where status = 'nothing new'"
        ) > [(0,)]:
            break
        time.sleep(0.2)
    shop.change(postgres_database, ["orders"])
    os.kill(worker.process.pid, signal.SIGTERM)
    ended = worker.ended()
    assert ended.code == 0, ended.text
    [stopped] = [event for event in ended.events if event["event"] == "stopped"]
    assert stopped["rounds"] >= 2
    project.run()
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )
