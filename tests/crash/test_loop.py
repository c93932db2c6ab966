"""`loader run --every` as a real process: signals, and an exit of Spark's JVM."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.crash import shop
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_bad_input import _find_jvm, _Slow, _start_loader


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


@pytest.mark.slow
def test_a_loop_continues_only_if_java_exits_during_a_sync(
    project: Project, postgres_database: Database
) -> None:
    slow = _Slow(postgres_database)
    project.jdbc(postgres_database, ["slow"], table_options={"slow": {"cursor_field": "c"}})
    with _start_loader(project, "--log-format", "json", "run", "--every", "10s") as process:
        slow.await_reader()
        os.kill(_find_jvm(process.pid), signal.SIGKILL)
        slow.stop_reading()
        slow.hurry()
        assert process.stdout is not None
        events = map(json.loads, process.stdout)
        rounds = (event for event in events if event.get("event") == "round")
        assert next(rounds)["failed"] == ["shop.slow"]
        assert next(each["appended"] for each in rounds if each["appended"]) == 1200
        os.kill(_find_jvm(process.pid), signal.SIGKILL)  # the next round begins seconds later
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert "Spark has stopped, and this process cannot continue without it" in text
