"""Which buckets a comparison chooses, and into how many parts it divides them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loader.lake.ledger import now
from loader.reconcile.comparison import Bucket, find_smallest_share, parts_per_bucket
from loader.reconcile.history import VerifiedBucket, choose_buckets
from loader.reconcile.repair import has_too_many_deletes
from loader.sources.contents import KeySelection


@pytest.mark.parametrize(
    ("last", "per_run", "expected"),
    [
        ({}, None, (0, 1, 2, 3)),
        ({}, 2, (0, 1)),
        ({0: 10, 1: 10}, 2, (2, 3)),
        ({0: 30, 1: 10, 2: 20, 3: 40}, 2, (1, 2)),
        ({0: 30, 1: 10, 2: 20}, 2, (1, 3)),
        ({0: 10, 1: 10, 2: 10, 3: 10}, 3, (0, 1, 2)),
        ({0: 10}, 99, (0, 1, 2, 3)),
    ],
)
def test_buckets_verified_longest_ago_are_due(
    last: dict[int, int], per_run: int | None, expected: tuple[int, ...]
) -> None:
    assert choose_buckets(last, 4, per_run) == expected


@pytest.mark.parametrize(
    ("rows", "buckets", "parts"),
    [(0, 64, 1), (16_000, 64, 1), (16_001, 64, 2), (1_000_000, 64, 64), (10**10, 64, 1024)],
)
def test_parts_hold_a_few_hundred_rows_until_there_are_too_many_of_them(
    rows: int, buckets: int, parts: int
) -> None:
    assert parts_per_bucket(rows, buckets) == parts


def _buckets(*parts: tuple[int, ...]) -> list[Bucket]:
    return [Bucket(number, 10, 10, found) for number, found in enumerate(parts)]


def test_only_differing_parts_are_read_if_a_list_can_name_them() -> None:
    assert find_smallest_share(_buckets((), (), ()), 3, 2) is None
    assert find_smallest_share(_buckets((0, 3), (), (5,)), 3, 2) == KeySelection(6, (0, 3, 5))
    many = tuple(range(0, 3 * 5000, 3))
    assert find_smallest_share(_buckets(many, (), ()), 3, 5000) == KeySelection(3, (0,))
    assert find_smallest_share(_buckets(many, (1,), (2,)), 3, 5000) == KeySelection(3)


@pytest.mark.parametrize(
    ("rows", "deletes", "doubted"),
    [(0, 0, False), (1, 1, True), (9, 1, True), (10, 1, False), (100, 10, False), (100, 11, True)],
)
def test_more_than_a_tenth_of_deleted_rows_is_doubted(
    rows: int, deletes: int, doubted: bool
) -> None:
    compared = VerifiedBucket("r", "shop", "t", 0, 2, now(), rows, rows, missed_deletes=deletes)
    assert has_too_many_deletes([compared]) is doubted
    assert (
        has_too_many_deletes([compared, replace(compared, missed_deletes=0, rows_snapshot=0)])
        is doubted
    )
