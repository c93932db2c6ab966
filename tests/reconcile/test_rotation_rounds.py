"""`loader run --every` with the `reconcile` option: one process compares one part after another."""

from __future__ import annotations

import time
from typing import Any

import pytest

from loader.cli.daemon import Daemon
from loader.cli.run_once import RunRequest
from loader.cli.settings import Settings, open_pipeline
from loader.reconcile import rotation
from loader.reconcile.history import VerificationHistory
from loader.reconcile.rotation import Rotation
from tests.reconcile.shop import FIRST, MISSED, ServerShop, assert_equal, moment
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_daemon import Script

PARTS = 8


def test_the_parts_take_turns_in_one_process(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = ServerShop(postgres_database)
    shop.open(project)
    more = [f"({n}, 'p', 'more', 1, timestamp('{moment(FIRST + 1)}'))" for n in range(3000, 4500)]
    shop.execute(f"insert into orders values {', '.join(more)}")
    project.run()
    at_any_cost = {"every": "1 day", "budget": "100 %"}
    shop.configure(project, ["orders"], cursor_field="changed", reconcile=at_any_cost)
    shop.damage()
    monkeypatch.setattr(rotation, "SMALL_ROWS", 0)
    reads: list[int] = []
    read = VerificationHistory.last_comparisons

    def count_reads(self: VerificationHistory, buckets: int) -> Any:
        reads.append(buckets)
        return read(self, buckets)

    monkeypatch.setattr(VerificationHistory, "last_comparisons", count_reads)
    compared: list[tuple[Any, ...]] = []

    def look() -> None:
        compared.extend(
            project.rows("select count(*), count(distinct bucket) from raw._cq_reconciled")
        )

    script = Script([look] * (PARTS + 1), every=0.05)
    settings = Settings(project.folder / "loader.yml", output=script)
    with open_pipeline(settings) as pipeline:
        # an eighth of a day after the last comparison
        work = Rotation(clock=lambda: time.time() + 86_400 / PARTS)
        request = RunRequest(choose_work=work)
        loop = Daemon(settings, pipeline, request, every=script.every, stopped=script.stop)
        assert loop.run() == 0
    turns = [(8 * n, 8 * n) for n in range(1, PARTS + 1)]
    assert compared == [*turns, (72, 64)]
    assert len(reads) == 1, "only the first round reads the history"
    assert sum(one["appended"] for one in script.rounds) == sum(MISSED.values())
    assert_equal(project, shop)
