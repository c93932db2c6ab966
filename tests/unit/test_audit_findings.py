"""The sentences with which an audit says what it found."""

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
    ],
)
def test_the_result_is_one_sentence(found: Audit, expected: str) -> None:
    assert found.sentence == expected


def test_only_lag_is_equal() -> None:
    assert replace(BARE, lag=5).is_equal
    assert not replace(BARE, rewritten=(("body", 980),)).is_equal
    assert not replace(BARE, counts={"extra": 1}).is_equal


def test_many_days_become_months_or_years() -> None:
    days = tuple((f"2025-{m:02}-{d:02}", {"lost": 1}) for m in range(1, 13) for d in (1, 2))
    found = replace(BARE, days=(*days, ("none", {"lost": 7})))
    assert len(found.group_days(25)) == 25
    assert found.group_days(13)[0] == ("2025-01", {"lost": 2})
    assert found.group_days(12) == (("2025", {"lost": 24}), ("none", {"lost": 7}))
