"""Cases of the generic tests about rows: keys, contradictions, redeliveries, cursors, snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.dbt.proof_case import TWO, Case, cursor_text, version, window

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
        arguments={"primary_key": ["id", "part"]},
    ),
    "conflict_pass": Case(
        "cursor_conflict",
        (
            [version(1, 1, "1.00"), version(2, None, "1.00")],
            # the same row again, a newer one, and one without a cursor that changed
            [version(1, 1, "1.00"), version(1, 2, "2.00"), version(2, None, "2.00")],
            [version(1, 2, None, _deleted=True)],
        ),
    ),
    "conflict_across_batches": Case(
        "cursor_conflict",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")]),
        "fail",
        ({"id": 1, "previous_batch": 1, "_cq_batch": 2, "duplicate_kind": "conflict"},),
    ),
    "conflict_and_back": Case(
        "cursor_conflict",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(1, 1, "1.00")]),
        "fail",
        ({"previous_batch": 1, "_cq_batch": 2}, {"previous_batch": 2, "_cq_batch": 3}),
    ),
    "conflict_full_refresh_pass": Case(
        "cursor_conflict",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00", _generation=2)]),
    ),
    "conflict_read_again_pass": Case(
        "cursor_conflict",
        (
            [version(1, 1, "1.00"), version(2, 1)],
            [version(1, 1, "2.00")],
            [version(1, 1, "2.00", _generation=2)],
        ),
    ),
    "conflict_of_a_key_that_was_not_read_again": Case(
        "cursor_conflict",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(2, 1, _generation=2)]),
        "fail",
        ({"id": 1, "_cq_batch": 2},),
    ),
    "redelivery_pass": Case(
        "exact_redelivery", ([version(1, 1)], [version(1, 2)], [version(1, 2, _deleted=True)])
    ),
    "redelivery_same_batch_pass": Case("exact_redelivery", ([version(1, 1), version(1, 1)],)),
    "redelivery_back_again_pass": Case(
        "exact_redelivery",
        ([version(1, 1, "1.00")], [version(1, 1, "2.00")], [version(1, 1, "1.00")]),
    ),
    "redelivery_warn": Case(
        "exact_redelivery",
        (TWO, TWO, TWO),
        "warn",
        tuple(
            {"id": key, "previous_batch": batch - 1, "_cq_batch": batch}
            for key in (1, 2)
            for batch in (2, 3)
        ),
    ),
    "redelivery_tolerated_pass": Case(
        "exact_redelivery",
        ([version(1, 1), version(2, 1), version(3, 1)], [version(1, 1)]),
        arguments={"max_share": 0.25},
    ),
    "redelivery_share_exceeded": Case(
        "exact_redelivery",
        ([version(1, 1), version(2, 1), version(3, 1)], [version(1, 1)]),
        "warn",
        ({"id": 1, "_cq_batch": 2},),
        arguments={"max_share": 0.24},
    ),
    "in_batch_pass": Case(
        "duplicate_in_batch", ([version(1, 1), version(1, 2), version(2, 1)], [version(1, 2)])
    ),
    "in_batch_warn": Case(
        "duplicate_in_batch",
        ([version(1, 1), version(2, 1)], [version(1, 2), version(1, 2), version(1, 2, "9.00")]),
        "warn",
        ({"id": 1, "_cq_batch": 2, "previous_batch": 2, "previous_seq": 0, "_cq_seq": 1},),
    ),
    "in_batch_condition_pass": Case(
        "duplicate_in_batch",
        ([version(1, 1), version(1, 1)],),
        arguments={"row_condition": "id > 1"},
    ),
    "boundary_pass": Case(
        "redelivered_at_boundary",
        (TWO, [version(2, 1), version(3, 2), version(4, None)], [version(4, None), version(3, 2)]),
        syncs=(window(1, None, 1), window(2, 1, 2), window(3, 2, 2)),
    ),
    "boundary_lookback_pass": Case(
        "redelivered_at_boundary",
        ([version(1, 1), version(2, 3)], [version(1, 1)]),
        syncs=(window(1, None, 3), window(2, 1, 3, lookback="2 days")),
    ),
    "boundary_below": Case(
        "redelivered_at_boundary",
        ([version(1, 1), version(2, 3)], [version(1, 1), version(2, 3)]),
        "warn",
        ({"id": 1, "previous_batch": 1, "_cq_batch": 2, "cursor_low": cursor_text(3)},),
        syncs=(window(1, None, 3), window(2, 3, 3)),
    ),
    "future_pass": Case("no_future_cursor", ([version(1, 1), version(2, None)], [version(1, 2)])),
    "future_fail": Case(
        "no_future_cursor",
        ([version(1, 1), version(2, 3)],),
        "fail",
        ({"id": 2, "_cq_batch": 1, "seconds_ahead": 2 * 86400},),
    ),
    "future_tolerated_pass": Case(
        "no_future_cursor", ([version(2, 3)],), arguments={"tolerance": "2 days"}
    ),
    "future_mended_pass": Case(
        "no_future_cursor", ([version(2, 3)], [version(2, 2, _generation=2)])
    ),
    "future_outranks": Case(
        "no_future_cursor",
        ([version(2, 3)], [version(2, 2, "9.00")]),
        "fail",
        ({"id": 2, "_cq_batch": 1},),
    ),
    "future_refreshed_pass": Case(
        "no_future_cursor",
        ([version(2, 3)], [version(1, 1, _generation=2)]),
        syncs=(
            {"batch": 1, "rows_appended": 1},
            {"batch": 2, "rows_appended": 1, "mode": "full_refresh", "generation": 2},
        ),
    ),
    "regression_pass": Case(
        "no_cursor_regression",
        # in one batch versions may come in any order; a null claims none
        ([version(1, 2), version(1, 1), version(2, 2)], [version(1, 2), version(2, None)]),
    ),
    "regression_warn": Case(
        "no_cursor_regression",
        ([version(1, 3), version(2, 3)], [version(1, 2), version(2, 2, _generation=2)]),
        "warn",
        (
            {
                "id": 1,
                "newest_batch": 1,
                "_cq_batch": 2,
                "problem": "an older version came late: the newest cursor counts",
            },
            {
                "id": 2,
                "newest_batch": 1,
                "problem": "the cursor went back at the source: this version counts, "
                "its generation overrules",
            },
        ),
    ),
    "not_null_pass": Case("cursor_not_null", ([version(1, 1)], [version(1, None, _deleted=True)])),
    "not_null_warn": Case(
        "cursor_not_null",
        ([version(1, 1), version(2, None)],),
        "warn",
        ({"id": 2, "_cq_batch": 1},),
    ),
    "not_null_share_pass": Case(
        "cursor_not_null",
        ([version(1, 1), version(2, None)],),
        arguments={"max_share": 0.5},
    ),
    "matches_pass": Case(
        "latest_matches_raw", ([version(1, 1), version(2, 1), version(None, 1)], [version(1, 2)])
    ),
    "matches_missing": Case(
        "latest_matches_raw",
        ([version(1, 1), version(2, 1), version(None, 1)],),
        "fail",
        (
            {"id": 2, "problem": "missing from the table", "expected_batch": 1},
            {"id": None, "problem": "missing from the table", "expected_batch": 1},
        ),
    ),
    "matches_extra": Case(
        "latest_matches_raw",
        ([version(1, 1), version(2, 1)], [version(1, 2, _deleted=True), version(2, 2)]),
        "fail",
        ({"id": 1, "problem": "not, or deleted, in the raw table", "actual_batch": 1},),
    ),
    "matches_differs": Case(
        "latest_matches_raw",
        ([version(1, 1, tags={"a": 1}), version(2, 1, None)],),
        "fail",
        (
            {"id": 1, "differing_columns": ["tags"]},
            {
                "id": 2,
                "differing_columns": ["amount"],
                "problem": "differs from what the raw table says",
            },
        ),
    ),
}

# stands in for the snapshot of a latest_matches_raw case
SNAPSHOTS = {
    "matches_pass": "where id = 1 and _cq_batch = 2 or id <=> 2 or id is null",
    "matches_missing": "where id = 1",
    "matches_extra": "where id = 1 and _cq_batch = 1 or id = 2 and _cq_batch = 2",
    "matches_differs": "",
}

STATES = {
    "versions_pass": ([("a", None), ("a", 1), ("a", 2), ("b", 7), ("b", 8)], "pass", ()),
    "versions_twice": (
        [("a", 1), ("a", 2), ("a", 2), ("b", 1)],
        "fail",
        ({"key": "a", "version": 2, "problem": "several rows of one version"},),
    ),
    "versions_gap": (
        [("a", 1), ("a", 3), ("b", 1)],
        "fail",
        ({"key": "a", "version": 3, "previous_version": 1},),
    ),
}


# missing columns: arguments, and what is not found
TYPOS: dict[str, tuple[Mapping[str, Any], str]] = {
    "unique_key": ({"primary_key": ["id", "teil"]}, "primary_key 'teil'"),
    "cursor_conflict": ({}, "cursor_field 'updated'"),
    "exact_redelivery": (
        {"primary_key": "idd", "cursor_field": "updated_at"},
        "primary_key 'idd'",
    ),
    "no_future_cursor": ({"cursor_field": "updatet_at"}, "cursor_field 'updatet_at'"),
}
