"""The result of `loader audit`: its summary sentence, its verdict and its grouping of days."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loader.audit.findings import Audit

BARE = Audit("orders", "copy", "", ("id",), "at", 1000, 990, compared=4)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (BARE, "copy has the same rows as orders."),
        (
            replace(BARE, counts={"lost": 1200, "stale": 0, "extra": 1, "doubled": 2}),
            "copy differs from orders: 1,200 rows lost, 1 extra, 2 doubled.",
        ),
        (
            replace(BARE, not_compared={"a": "", "b": ""}, share=0.05),
            "copy has the same rows as orders (4 of 6 columns and 5.0% of the keys were compared).",
        ),
        (
            replace(BARE, rewritten=(("body", 980),)),
            "copy has the same rows as orders except in the columns named above.",
        ),
        (replace(BARE, rows_copy=0, counts={"lost": 1000}), "copy is empty."),
        (
            replace(BARE, behind=1, lag=1, highest="2026-01-01 00:00:00", age=60.0),
            "copy has the older rows of orders. It has not been loaded since 2026-01-01 00:00:00, "
            "and it is 1 row behind.",
        ),
        (
            replace(BARE, counts={"stale": 3}, behind=20, lag=20, highest="990"),
            "copy differs from orders: 3 rows stale. Its newest at is 990, and it is 20 rows "
            "behind.",
        ),
    ],
)
def test_the_result_is_one_sentence(found: Audit, expected: str) -> None:
    assert found.sentence == expected


def test_lag_below_the_maximum_counts_as_equal() -> None:
    assert replace(BARE, lag=5).is_equal
    behind = replace(BARE, lag=5, behind=5, age=90000.0, max_lag=86400.0)
    assert not behind.is_equal
    assert "1 day 1 hour ago: more than --max-lag, 1 day." in behind.notes[0]
    assert replace(behind, age=86400.0).is_equal
    assert not replace(BARE, rewritten=(("body", 980),)).is_equal
    assert not replace(BARE, counts={"extra": 1}).is_equal


def test_many_days_become_months_or_years() -> None:
    days = tuple((f"2025-{m:02}-{d:02}", {"lost": 1}) for m in range(1, 13) for d in (1, 2))
    found = replace(BARE, days=(*days, ("none", {"lost": 7})))
    assert len(found.group_days(25)) == 25
    assert found.group_days(13)[0] == ("2025-01", {"lost": 2})
    assert found.group_days(12) == (("2025", {"lost": 24}), ("none", {"lost": 7}))
