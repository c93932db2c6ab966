"""Schedules are reproducible from a seed or a file, and shrink to the operations that fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.nemesis.faults import FAULTS, planted
from benchmarks.nemesis.mariadb import VOCABULARY as MARIADB
from benchmarks.nemesis.postgresql import VOCABULARY as POSTGRESQL
from benchmarks.nemesis.schedule import Op, Schedule, Vocabulary, drawn
from benchmarks.nemesis.shrinking import shrunk


@pytest.mark.parametrize("vocabulary", [POSTGRESQL, MARIADB], ids=["postgresql", "mariadb"])
def test_a_seed_draws_the_same_schedule_again(vocabulary: Vocabulary) -> None:
    assert drawn(7, vocabulary, 40) == drawn(7, vocabulary, 40)
    assert drawn(7, vocabulary, 40) != drawn(8, vocabulary, 40)


def test_a_schedule_is_replayed_from_its_file() -> None:
    for seed in range(30):
        schedule = drawn(seed, POSTGRESQL, 40)
        assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_planted(name: str) -> None:
    """The code that the fault changes must still exist; otherwise, nothing would be tested."""
    with planted(name):
        pass


def test_a_schedule_ends_in_a_quiet_point_with_proofs() -> None:
    assert drawn(3, POSTGRESQL, 20).ops[-1] == Op("quiet", {"proofs": True})


@given(
    noise=st.lists(st.integers(0, 99), max_size=40),
    cause=st.lists(st.integers(100, 103), min_size=1, max_size=3, unique=True),
    places=st.lists(st.integers(0, 40), min_size=3, max_size=3),
)
def test_a_schedule_shrinks_to_the_ops_that_make_it_fail(
    noise: list[int], cause: list[int], places: list[int]
) -> None:
    numbers = list(noise)
    for number, place in zip(cause, places, strict=False):
        numbers.insert(place, number)
    ops = tuple(Op("op", {"n": number}) for number in numbers)

    def fails(schedule: Schedule) -> bool:
        return set(cause) <= {op.given["n"] for op in schedule.ops}

    smaller = shrunk(Schedule(1, (), ops), fails, tries=10_000)
    assert sorted(op.given["n"] for op in smaller.ops) == sorted(cause)


def test_operations_during_a_run_shrink_too() -> None:
    inner = tuple(Op("op", {"n": n}) for n in range(4))
    schedule = Schedule(1, (), (Op("run_amid", {"step": "staged"}, inner),))

    def fails(tried: Schedule) -> bool:
        return any(op.given["n"] == 2 for outer in tried.ops for op in outer.during)

    [left] = shrunk(schedule, fails, tries=100).ops
    assert [op.given["n"] for op in left.during] == [2]
