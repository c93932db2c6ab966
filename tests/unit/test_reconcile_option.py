"""The `reconcile` option: its values, and which buckets are compared in which run."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from loader.cli.reconcile import BUCKETS as COMMAND_BUCKETS
from loader.errors import SpecError
from loader.reconcile.history import BUCKETS, LastComparison
from loader.reconcile.rotation import Attempt, choose_due_buckets
from loader.sources.file.options import FileOptions
from loader.sources.jdbc.options import JdbcOptions
from loader.spec.options import ReconcileOptions
from loader.spec.redaction import Redactor
from loader.spec.validation import validate_options

DAY = 86_400.0


def _options(**table: Any) -> dict[str, Any]:
    return {"url": "jdbc:mariadb://h/shop", "table_options": {"orders": table}}


def test_only_every_is_required() -> None:
    options = validate_options(
        JdbcOptions, _options(reconcile={"every": "1 day"}), "loader.yml", Redactor()
    )
    rotation = options.table_options["orders"].rotation
    assert rotation is not None
    assert (rotation.seconds, rotation.share) == (DAY, 0.05)
    assert ReconcileOptions(every="1h 30m", budget="2.5%").share == 0.025
    assert ReconcileOptions(every="1h", budget="100 %").share == 1


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"reconcile": {"evry": "1 day"}}, "orders.reconcile.evry: unknown key. Did you mean `eve"),
        ({"reconcile": {"every": "1 day", "buget": 1}}, "unknown key. Did you mean `budget`"),
        ({"reconcile": {"budget": "5 %"}}, "orders.reconcile.every: this key is missing"),
        ({"reconcile": "1 day"}, "'1 day'. Use for example {every: 1 day}"),
        (
            {"reconcile": {"every": "daily"}},
            "'daily' is not a valid interval for comparing all keys",
        ),
        ({"reconcile": {"every": "0 days"}}, "'0 days' is not a valid interval for comparing"),
        *(
            (
                {"reconcile": {"every": "1 day", "budget": budget}},
                f"{str(budget)!r} is not a valid percentage. Use more than 0 % and at most 100 %",
            )
            for budget in ("5", 5, 0.05, "0 %", "101 %", "-1 %", "five %", "")
        ),
        (
            {"reconcile": {"every": "1 day"}, "sync_mode": "full_refresh"},
            "sync_mode: full_refresh reads all rows in each run, so there is nothing to reconcile. "
            "Remove reconcile",
        ),
    ],
)
def test_invalid_values_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        validate_options(JdbcOptions, _options(**table), "loader.yml", Redactor())
    assert says in str(refused.value)


def test_other_connectors_do_not_have_it() -> None:
    own = {"path": "x", "format": "csv", "table_options": {"o": {"reconcile": {"every": "1 day"}}}}
    with pytest.raises(SpecError, match=r"reconcile: unknown key\. Valid keys: .*primary_key"):
        validate_options(FileOptions, own, "loader.yml", Redactor())


def test_the_command_and_the_runs_have_the_same_number_of_buckets() -> None:
    assert COMMAND_BUCKETS == BUCKETS


class _Table:
    """A table whose comparisons take a known time, on a clock that the test sets."""

    def __init__(self, options: ReconcileOptions, parts: int) -> None:
        self.options = options
        self.parts = parts
        self.clock = 1_000_000.0
        self.compared: dict[int, LastComparison] = {}
        self.broken: frozenset[int] = frozenset()
        """The buckets whose differences cannot be repaired."""
        self.spans: list[tuple[float, float]] = []
        """The start and end of each comparison."""

    def run(self, fixed: float, per_bucket: float) -> tuple[int, ...]:
        """Simulates a run. A comparison reads all keys, and hashes the rows of its buckets."""
        last = Attempt.find_last(self.compared)
        numbers = choose_due_buckets(self.compared, last, self.options, self.clock, self.parts)
        if numbers:
            began, seconds = self.clock, fixed + per_bucket * len(numbers)
            self.clock += seconds
            for number in numbers:
                self.compared[number] = LastComparison(
                    began, seconds / len(numbers), 10_000, has_unrepaired=number in self.broken
                )
            self.spans.append((began, self.clock))
        return numbers

    def oldest(self) -> float:
        """Returns the age of the bucket that was compared least recently."""
        return self.clock - min(each.at for each in self.compared.values())


@pytest.mark.parametrize("minutes", [1, 7, 60, 180, 24 * 60, 48 * 60])
@pytest.mark.parametrize("parts", [1, 8])
def test_every_bucket_is_compared_in_time_however_often_the_table_is_synced(
    minutes: int, parts: int
) -> None:
    table = _Table(ReconcileOptions(every="1 day"), parts)
    sizes = []
    while len(table.spans) < 60 and table.clock < 1_000_000 + 20 * DAY:
        sizes.append(len(table.run(0.1, 0.001)))
        if len(table.compared) == BUCKETS:
            assert table.oldest() <= DAY + minutes * 60
        elif table.compared:
            assert table.clock - table.spans[0][1] <= DAY + minutes * 60
        table.clock += minutes * 60
    assert len(table.compared) == BUCKETS
    if minutes <= 180:  # never more than one part at once
        assert {size for size in sizes if size} == {BUCKETS // parts}
        began = [begin for begin, _ in table.spans]
        steps = [later - earlier for earlier, later in itertools.pairwise(began)]
        assert min(steps) >= DAY / parts - 2 * minutes * 60 - 1


@pytest.mark.parametrize("seed", range(20))
def test_comparisons_never_take_a_larger_share_of_the_time_than_the_budget(seed: int) -> None:
    some = random.Random(seed)
    share = some.choice((1, 5, 20, 50))
    every = some.choice(("1 second", "1 hour", "1 day"))
    table = _Table(ReconcileOptions(every=every, budget=f"{share} %"), some.choice((1, 8)))
    while len(table.spans) < 40:
        # the time that a comparison takes may change by any factor
        table.run(some.choice((0.6, 20.0, 900.0)), some.choice((0.01, 1.0, 30.0)))
        table.clock += some.choice((0.5, 60.0, 3600.0))
    for (began, ended), (following, _) in zip(table.spans, table.spans[1:], strict=False):
        assert ended - began <= (following - began) * share / 100 * 1.000001
    # and every bucket is compared
    turns = len(table.spans) * (BUCKETS // table.parts)
    assert turns < 2 * BUCKETS or len(table.compared) == BUCKETS


def test_a_slow_rotation_takes_longer_but_skips_nothing() -> None:
    table = _Table(ReconcileOptions(every="1 hour"), 8)
    seen: list[int] = []
    while len(seen) < 2 * BUCKETS:
        seen += table.run(100.0, 1.0)
        table.clock += 60
    assert sorted(seen[:BUCKETS]) == sorted(seen[BUCKETS : 2 * BUCKETS]) == list(range(BUCKETS))
    assert table.clock - 1_000_000 > 16 * 108 / 0.05 * 0.9


@pytest.mark.parametrize("broken", [0, 1, 8, 20, 50])
def test_buckets_that_cannot_be_repaired_and_all_others_take_turns(broken: int) -> None:
    """The budget suffices for an eighth of the keys in each run, and there are eight runs a day."""
    table = _Table(ReconcileOptions(every="1 day"), 8)
    table.broken = frozenset(range(broken))
    turns: dict[int, list[int]] = {number: [] for number in range(BUCKETS)}
    for run in range(100):
        table.clock = 1_000_000 + run * DAY / 8
        numbers = table.run(500.0, 1.0)
        assert len(numbers) == 8
        for number in numbers:
            turns[number].append(run)
    for number, runs in turns.items():
        waits = [later - earlier for earlier, later in itertools.pairwise([0, *runs, 100])]
        periods = 2 if broken else 1
        assert max(waits) <= periods * 8 + 1, number


def _choose_due(
    compared: dict[int, LastComparison], clock: float, parts: int = 8, budget: str = "5 %"
) -> tuple[int, ...]:
    options = ReconcileOptions(every="1 day", budget=budget)
    return choose_due_buckets(compared, Attempt.find_last(compared), options, clock, parts)


def test_missing_or_wrong_records_of_comparisons() -> None:
    begin, now = tuple(range(8)), 10 * DAY
    assert _choose_due({}, now) == begin
    assert _choose_due({}, now, parts=1) == tuple(range(BUCKETS))
    # a clock that was set back
    assert _choose_due(dict.fromkeys(range(64), LastComparison(now + DAY, 9999.0, 1)), now) == begin
    # all compared at once by `loader reconcile`: the rotation starts again, in even steps
    at_once = dict.fromkeys(range(64), LastComparison(now, 1.0, 1))
    assert _choose_due(at_once, now + DAY / 8 - 1) == ()
    assert _choose_due(at_once, now + DAY / 8) == begin
    assert _choose_due(at_once, now + DAY - 1, parts=1) == ()
    assert len(_choose_due(at_once, now + DAY, parts=1)) == BUCKETS
    # buckets that were never compared come first
    some = {number: LastComparison(now, 1.0, 1) for number in range(3, 11)}
    assert _choose_due(some, now + DAY / 8) == (0, 1, 2, *range(11, 16))
    # a comparison whose duration is unknown does not delay the next
    assert len(_choose_due(dict.fromkeys(range(64), LastComparison(1.0, 0.0, 1)), now)) == BUCKETS


def test_buckets_with_unrepaired_differences_are_due() -> None:
    now = 10 * DAY
    fresh = dict.fromkeys(range(64), LastComparison(now - 60, 0.0, 1))
    differing = LastComparison(now - 60, 0.0, 1, has_unrepaired=True)
    assert _choose_due(fresh, now) == ()
    assert _choose_due(fresh | {40: differing}, now) == (40, *range(7))
    assert len(_choose_due(dict.fromkeys(range(64), differing), now, parts=1)) == BUCKETS
    # the first part of the first rotation is repeated, together with the second one
    assert _choose_due(dict.fromkeys(range(8), differing), now) == (*range(8, 16), *range(8))
    # the budget still applies
    slow = LastComparison(now - 60, 9.0, 1, has_unrepaired=True)
    assert _choose_due(dict.fromkeys(range(64), slow), now, parts=1) == ()


def test_the_next_comparison_waits_for_its_budget() -> None:
    now = 10 * DAY
    slow = {number: LastComparison(now - 100.0, 100 / 8, 1) for number in range(8)}
    slow |= {number: LastComparison(now - 2 * DAY, 1.0, 1) for number in range(8, 64)}
    assert _choose_due(slow, now + 19 * 100 - 1) == ()
    assert _choose_due(slow, now + 19 * 100) == tuple(range(8, 16))
    assert _choose_due(slow, now + 3 * 19 * 100) == tuple(range(8, 32))
    assert _choose_due(slow, now, budget="100 %") == tuple(range(8, 64))
    # the last attempt took 100 seconds for 8 of the 64 buckets
    assert Attempt.find_last(slow) == Attempt(now, 100.0, 8)
    assert Attempt.find_last(slow).seconds_for_all() == 800.0
