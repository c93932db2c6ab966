"""A short hunt: a schedule passes, and a planted fault is found. `make nemesis` hunts longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from benchmarks.nemesis.faults import planted
from benchmarks.nemesis.hunt import Hunt
from benchmarks.nemesis.postgresql import PostgresArena
from benchmarks.nemesis.schedule import Op, Schedule, drawn

SEEDS = (3,)


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Hunt]:
    """A hunt on its own PostgreSQL."""
    folder = tmp_path_factory.mktemp("nemesis")
    arena = PostgresArena(folder)
    found = Hunt(arena, spark, folder)
    yield found
    found.close()
    arena.remove()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_schedule_leaves_the_lake_as_the_source(hunt: Hunt, seed: int) -> None:
    schedule = drawn(seed, hunt.arena.vocabulary, 12)
    found = hunt.violation(schedule)
    assert found is None, f"{found}\n{schedule.to_json()}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "write"), [("horizon", "insert"), ("sweep", "insert_by_application")]
)
def test_a_fault_in_the_search_for_late_rows_is_found(hunt: Hunt, fault: str, write: str) -> None:
    row = {"session": 1, "table": "orders", "at": 0.0}  # the application is ten minutes behind
    ops = (Op("begin", {"session": 1}), Op(write, row), Op("insert", {**row, "session": 0}))
    late = Schedule(0, ("orders",), (*ops, Op("run"), Op("quiet", {"proofs": False})))
    with planted(fault):
        assert "orders: lost" in (hunt.violation(late) or "")
    assert hunt.violation(late) is None
