"""Cases of the generic tests about rows: keys, ties, duplicates, cursors and latest tables."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.dbt.generic_test_case import INCIDENT, TWO, Case, version, window

FUTURE = "the cursor lies in the future of its sync"
LOWER = "the cursor is lower than that of an earlier batch"
DIFFERS = "differs from the raw table"

ROW_CASES = {
    "unique_key_pass": Case("unique_key", ([version(1, 1), version(2, 1), version(None, 1)],)),
    "unique_key_null_twice": Case(
        "unique_key",
        ([version(None, 1), version(None, 2), version(3, 1)],),
        "fail",
        ({"id": None, "rows_of_key": 2},),
    ),
    "unique_key_composite": Case(
        "unique_key",
        ([version(1, 1, part="a"), version(1, 1, part=None), version(1, 2, part=None)],),
        "fail",
        ({"id": 1, "part": None, "rows_of_key": 2},),
        arguments={"unique_key": ["id", "part"]},
    ),
    "conflict_pass": Case(
        "no_cursor_ties",
        (
            [version(1, 1, "1.00"), version(2, None, "1.00")],
            # the same row again, a newer one, and one without a cursor that changed
            [version(1, 1, "1.00"), version(1, 2, "2.00"), version(2, None, "2.00")],
            [version(1, 2, None, _deleted=True)],
        ),
    ),
    "conflict_across_batches": Case(
        "no_cursor_ties",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")]),
        "fail",
        ({"id": 1, "previous_batch": 1, "_cq_batch": 2, "duplicate_kind": "conflict"},),
    ),
    "conflict_and_back": Case(
        "no_cursor_ties",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(1, 1, "1.00")]),
        "fail",
        ({"previous_batch": 1, "_cq_batch": 2}, {"previous_batch": 2, "_cq_batch": 3}),
    ),
    "conflict_full_refresh_pass": Case(
        "no_cursor_ties",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00", _generation=2)]),
    ),
    "conflict_read_again_pass": Case(
        "no_cursor_ties",
        (
            [version(1, 1, "1.00"), version(2, 1)],
            [version(1, 1, "2.00")],
            [version(1, 1, "2.00", _generation=2)],
        ),
    ),
    "conflict_of_a_key_that_was_not_read_again": Case(
        "no_cursor_ties",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(2, 1, _generation=2)]),
        "fail",
        ({"id": 1, "_cq_batch": 2},),
    ),
    "redelivery_pass": Case(
        "no_duplicates",
        ([version(1, 1)], [version(1, 2)], [version(1, 2, _deleted=True)]),
        arguments={"kinds": "across_batches"},
    ),
    "redelivery_same_batch_pass": Case(
        "no_duplicates", ([version(1, 1), version(1, 1)],), arguments={"kinds": "across_batches"}
    ),
    "redelivery_back_again_pass": Case(
        "no_duplicates",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(1, 1, "1.00")]),
        arguments={"kinds": "across_batches"},
    ),
    "redelivery_warn": Case(
        "no_duplicates",
        (TWO, TWO, TWO),
        "warn",
        tuple(
            {"id": key, "previous_batch": batch - 1, "_cq_batch": batch}
            for key in (1, 2)
            for batch in (2, 3)
        ),
        arguments={"kinds": "across_batches"},
    ),
    "redelivery_tolerated_pass": Case(
        "no_duplicates",
        ([version(1, 1), version(2, 1), version(3, 1)], [version(1, 1)]),
        arguments={"kinds": "across_batches", "max_share": 0.25},
    ),
    "redelivery_share_exceeded": Case(
        "no_duplicates",
        ([version(1, 1), version(2, 1), version(3, 1)], [version(1, 1)]),
        "warn",
        ({"id": 1, "_cq_batch": 2},),
        arguments={"kinds": "across_batches", "max_share": 0.24},
    ),
    "in_batch_pass": Case(
        "no_duplicates",
        ([version(1, 1), version(1, 2), version(2, 1)], [version(1, 2)]),
        arguments={"kinds": "in_batch"},
    ),
    "in_batch_warn": Case(
        "no_duplicates",
        ([version(1, 1), version(2, 1)], [version(1, 2), version(1, 2), version(1, 2, "9.00")]),
        "warn",
        ({"id": 1, "_cq_batch": 2, "previous_batch": 2, "previous_seq": 0, "_cq_seq": 1},),
        arguments={"kinds": "in_batch"},
    ),
    "in_batch_condition_pass": Case(
        "no_duplicates",
        ([version(1, 1), version(1, 1)],),
        arguments={"kinds": "in_batch", "row_condition": "id > 1"},
    ),
    "boundary_pass": Case(
        "no_duplicates",
        (TWO, [version(2, 1), version(3, 2), version(4, None)], [version(4, None), version(3, 2)]),
        syncs=(window(1, None, 1), window(2, 1, 2), window(3, 2, 2)),
        arguments={"kinds": "at_boundary"},
    ),
    "boundary_lookback_pass": Case(
        "no_duplicates",
        ([version(1, 1), version(2, 3)], [version(1, 1)]),
        syncs=(window(1, None, 3), window(2, 1, 3, lookback="2 days")),
        arguments={"kinds": "at_boundary"},
    ),
    "boundary_below": Case(
        "no_duplicates",
        ([version(1, 1), version(2, 3)], [version(1, 1), version(2, 3)]),
        "warn",
        ({"id": 1, "previous_batch": 1, "_cq_batch": 2},),
        syncs=(window(1, None, 3), window(2, 3, 3)),
        arguments={"kinds": "at_boundary"},
    ),
    "future_pass": Case("cursor_plausible", ([version(1, 1), version(2, 1)], [version(1, 2)])),
    "future_fail": Case(
        "cursor_plausible",
        ([version(1, 1), version(2, 3)],),
        "fail",
        ({"id": 2, "_cq_batch": 1, "problem": FUTURE},),
    ),
    "future_tolerated_pass": Case(
        "cursor_plausible", ([version(2, 3)],), arguments={"tolerance": "2 days"}
    ),
    "future_mended_pass": Case(
        "cursor_plausible", ([version(2, 3)], [version(2, 2, _generation=2)])
    ),
    "future_outranks": Case(
        "cursor_plausible",
        ([version(2, 3)], [version(2, 2, "9.00")]),
        "fail",
        (
            {"id": 2, "_cq_batch": 1, "problem": FUTURE},
            {"id": 2, "_cq_batch": 2, "problem": LOWER},
        ),
    ),
    "future_refreshed_pass": Case(
        "cursor_plausible",
        ([version(2, 3)], [version(1, 1, _generation=2)]),
        syncs=(
            {"batch": 1, "rows_appended": 1},
            {"batch": 2, "rows_appended": 1, "mode": "full_refresh", "generation": 2},
        ),
    ),
    "future_read_in_part": Case(
        "cursor_plausible",
        ([version(2, 3)], [version(1, 1, _generation=2)]),
        "fail",
        ({"id": 2, "_cq_batch": 1, "problem": FUTURE},),
        syncs=(
            {"batch": 1, "rows_appended": 1},
            {"batch": 2, "rows_appended": 1, "mode": "reconcile", "generation": 2},
        ),
    ),
    "regression_pass": Case(
        "cursor_plausible",
        # in one batch versions may come in any order
        ([version(1, 2), version(1, 1), version(2, 2)], [version(1, 2)]),
        arguments={"tolerance": "10 days"},
    ),
    "regression_fail": Case(
        "cursor_plausible",
        ([version(1, 3), version(2, 3)], [version(1, 2), version(2, 2, _generation=2)]),
        "fail",
        ({"id": 1, "_cq_batch": 2, "problem": LOWER},),
        arguments={"tolerance": "10 days"},
    ),
    "regression_read_again_pass": Case(
        "cursor_plausible",
        ([version(1, 3)], [version(1, 2)], [version(1, 2, _generation=2)]),
        arguments={"tolerance": "10 days"},
    ),
    "not_null_pass": Case("cursor_plausible", ([version(1, 1)], [version(1, None, _deleted=True)])),
    "not_null_fail": Case(
        "cursor_plausible",
        ([version(1, 1), version(2, None)],),
        "fail",
        ({"id": 2, "_cq_batch": 1, "problem": "the cursor is missing"},),
    ),
    "not_null_condition_pass": Case(
        "cursor_plausible",
        ([version(1, 1), version(2, None)],),
        arguments={"row_condition": "id <> 2"},
    ),
    "not_null_acknowledged": Case(
        "cursor_plausible",
        ([version(1, 1), version(2, None)], [version(3, None)]),
        "fail",
        ({"id": 3, "_cq_batch": 2},),
        meta={"acknowledged": [{"test": "cursor_plausible", "batches": 1, **INCIDENT}]},
    ),
    "matches_pass": Case(
        "matches_raw", ([version(1, 1), version(2, 1), version(None, 1)], [version(1, 2)])
    ),
    "matches_missing": Case(
        "matches_raw",
        ([version(1, 1), version(2, 1), version(None, 1)],),
        "fail",
        (
            {"id": 2, "problem": "missing from the table", "expected": {"_cq_batch": 1}},
            {"id": None, "expected": {"_cq_batch": 1}, "actual": None},
        ),
    ),
    "matches_extra": Case(
        "matches_raw",
        ([version(1, 1), version(2, 1)], [version(1, 2, _deleted=True), version(2, 2)]),
        "fail",
        (
            {
                "id": 1,
                "problem": "not in the raw table, or deleted there",
                "expected": None,
                "actual": {"_cq_batch": 1},
            },
        ),
    ),
    "matches_differs": Case(
        "matches_raw",
        ([version(1, 1, tags={"a": 1}), version(2, 1, None)],),
        "fail",
        (
            {"id": 1, "problem": DIFFERS, "expected": {"amount": Decimal("1.00")}},
            {
                "id": 2,
                "problem": DIFFERS,
                "expected": {"amount": None},
                "actual": {"amount": Decimal("5.00")},
            },
        ),
    ),
}

# selects the raw rows of the table that a matches_raw case tests
SNAPSHOTS = {
    "matches_pass": "where id = 1 and _cq_batch = 2 or id <=> 2 or id is null",
    "matches_missing": "where id = 1",
    "matches_extra": "where id = 1 and _cq_batch = 1 or id = 2 and _cq_batch = 2",
    "matches_differs": "",
}

# by test: arguments that name a missing column, and that column in the error
TYPOS: dict[str, tuple[Mapping[str, Any], str]] = {
    "unique_key": ({"unique_key": ["id", "teil"]}, "unique_key 'teil'"),
    "no_cursor_ties": ({}, "cursor_field 'updated'"),
    "no_duplicates": (
        {"unique_key": "idd", "cursor_field": "updated_at"},
        "unique_key 'idd'",
    ),
    "cursor_plausible": ({"cursor_field": "updatet_at"}, "cursor_field 'updatet_at'"),
}
