"""Two loader processes that sync one table at the same time: only one appends the new row.

STRANDLINE_RACES sets the number of rounds; the default is six, because each takes some seconds.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from tests.crash import shop
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

ROUNDS = int(os.environ.get("STRANDLINE_RACES", "6"))


@pytest.mark.slow
def test_two_processes_race_for_one_table(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    racers = [workers.take(), workers.take()]
    head_start = random.Random(4711)
    outcomes: Counter[str] = Counter()
    wins: Counter[int] = Counter()
    for number in range(1, ROUNDS + 1):
        postgres_database.execute(
            f"insert into orders values ({1000 + number}, 'r{number}', clock_timestamp())"
        )
        first = number % 2
        racers[first].start(project, "run")
        time.sleep(head_start.choice((0, 0, 0.01, 0.1, 0.5)))
        racers[1 - first].start(project, "run")
        results = [racer.ended() for racer in racers]
        statuses = []
        for index, ran in enumerate(results):
            reported = ran.table("shop.orders")
            status = reported["status"]
            assert (ran.code, status) in (
                (0, "synced"),
                (0, "nothing new"),  # it started when the other had finished
                (1, "locked"),
            ), ran.text
            statuses.append(status)
            if status == "synced":
                wins[index] += 1
        assert statuses.count("synced") == 1, f"round {number}: {statuses}"
        outcomes.update(statuses)

    print(f"wins by process: {dict(wins)}; outcomes: {dict(outcomes)}")
    assert outcomes["synced"] == ROUNDS
    assert outcomes["locked"] > 0, "the two never met"
    shop.assert_whole(project, postgres_database, ["orders"], [shop.FIRST + 1, *[1] * (ROUNDS - 1)])
