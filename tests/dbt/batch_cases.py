"""Cases of the generic tests about batches: cursor windows, state, ledger and batch numbers."""

from __future__ import annotations

import json

from tests.dbt.generic_test_case import (
    INCIDENT,
    ONE,
    OTHERS,
    TWO,
    Case,
    copied,
    cursor_text,
    later_life,
    shared_by,
    state,
    version,
    whole,
    window,
)

GAP = "the batches from this one to the next one are missing everywhere"
BY_NUMBER = {"cursor_field": "id", "cursor_type": "integer"}
BEHIND = "the newest batch is not in the state: the next run recovers it"
TWICE = "several rows of one version"

BATCH_CASES = {
    "inclusive_pass": Case(
        "inclusive_cursor",
        (ONE, [version(1, 3)]),
        syncs=(
            window(1, None, 1),
            window(None, 1, 1),
            window(None, 9, None, status="failed"),
            window(2, 1, 10),
            window(3, 2, 10, status="recovered"),
            window(4, None, 10, mode="full_refresh"),
        ),
    ),
    # as text, 99 sorts after 100
    "inclusive_numbers_pass": Case(
        "inclusive_cursor",
        (ONE,),
        syncs=(
            window(1, None, None, cursor_high="100", **BY_NUMBER),
            window(2, None, None, cursor_low="99", cursor_high="101", **BY_NUMBER),
        ),
    ),
    "inclusive_exclusive_window": Case(
        "inclusive_cursor",
        (ONE,),
        "fail",
        ({"batch": 2, "cursor_low": cursor_text(3), "stored_cursor": cursor_text(2)},),
        syncs=(window(1, None, 2), window(2, 3, 4), window(3, 4, 4)),
    ),
    "inclusive_refreshed_pass": Case(
        "inclusive_cursor",
        (ONE,),
        syncs=(window(1, None, 2), window(2, 4, 5), window(3, None, 5, mode="full_refresh")),
    ),
    "inclusive_read_again_pass": Case(
        "inclusive_cursor",
        (ONE,),
        syncs=(
            window(1, None, 2),
            window(2, 4, 5),
            whole("backfill", 2, 3, run_id="again"),
            whole("backfill", 3, 5, run_id="again"),
        ),
    ),
    "inclusive_read_again_in_part": Case(
        "inclusive_cursor",
        (ONE,),
        "fail",
        ({"batch": 2},),
        syncs=(window(1, None, 2), window(2, 4, 5), whole("backfill", 2, 3)),
    ),
    "inclusive_set_back_pass": Case(
        "inclusive_cursor",
        (ONE,),
        syncs=(window(1, None, 2), window(2, 4, 5), whole("incremental", 1, 9)),
    ),
    "inclusive_late_rows_only": Case(
        "inclusive_cursor",
        (ONE,),
        "fail",
        ({"batch": 2},),
        syncs=(
            window(1, None, 2),
            window(2, 4, 5),
            whole("incremental", 1, 9, read_from=cursor_text(5)),
            window(None, None, 9, mode="reconcile"),
        ),
    ),
    "inclusive_acknowledged_pass": Case(
        "inclusive_cursor",
        (ONE,) * 2,
        syncs=(window(1, None, 2), window(None, 4, 5)),
        meta={"acknowledged": [{"test": ["inclusive_cursor"], "batches": 1, **INCIDENT}]},
    ),
    "ahead_pass": Case(
        "state_consistent", (ONE, [version(1, 2)]), states=((1, state(1, 1)), (2, state(2, 2)))
    ),
    "ahead_batch": Case(
        "state_consistent",
        (ONE,),
        "fail",
        (
            {
                "table_name": "ahead_batch",
                "version": 2,
                "batch": 2,
                "raw_batch": 1,
                "problem": "the batch is ahead of the raw table",
            },
        ),
        states=((1, state(1, 1)), (2, state(2, 1))),
    ),
    "ahead_cursor": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 2, "problem": "the cursor is ahead of the raw table"},),
        states=((1, state(1, 1)), (2, state(1, 2))),
    ),
    "ahead_behind_a_future_row": Case(
        "state_consistent",
        ([version(1, 1), version(2, 20)],),
        "fail",
        ({"version": 1, "problem": "the cursor is ahead of the raw table"},),
        states=((1, state(1, 5)),),
    ),
    # the newest row is dated in the future, so the sync stored the source's clock as the cursor
    "ahead_at_the_clock_pass": Case(
        "state_consistent",
        ([version(1, 1), version(2, 20)],),
        states=((1, state(1, 2)),),
        commits={1: state(1, 2)},
    ),
    "ahead_no_data": Case(
        "state_consistent",
        (),
        "fail",
        ({"version": 1, "raw_batch": None, "problem": "there is a state, but no raw data"},),
        states=((1, state(1, 1)),),
    ),
    "ahead_dropped": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 1, "raw_batch": None, "problem": "there is a state, but no raw data"},),
        states=((1, state(1, 1)),),
        planted=("drop table {table}",),
    ),
    "ahead_never_synced_pass": Case(
        "state_consistent", (), states=((1, state(0, None)),), planted=("drop table {table}",)
    ),
    "ahead_not_json": Case(
        "state_consistent",
        (ONE,),
        "fail",
        (
            {"version": 1, "value": "2025-01-01", "problem": "the state is not a JSON object"},
            {"version": 1, "problem": BEHIND},
        ),
        states=((1, "2025-01-01"),),
        arguments={"grace_minutes": 0},
    ),
    # a reader may use either of the two rows, so the test returns both
    "ahead_one_of_two": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"batch": 9, "problem": TWICE}, {"batch": 1, "problem": TWICE}),
        states=((2, state(9, 1)), (2, state(1, 1))),
    ),
    "ahead_other_of_two": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"batch": 9, "problem": TWICE}, {"batch": 1, "problem": TWICE}),
        states=((2, state(1, 1)), (2, state(9, 1))),
    ),
    # Spark's and Python's JSON parsers treat the next two cases differently
    "ahead_after_a_line": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 1, "problem": "the state is not a JSON object"},),
        states=((1, f"\n{json.dumps(state(1, 1))}"),),
    ),
    "ahead_by_the_first_of_two": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 1, "batch": 9, "problem": "the batch is ahead of the raw table"},),
        states=((1, json.dumps(state(9, 1))[:-1] + ', "batch": 1}'),),
    ),
    # deeply nested JSON must not make the tests of other tables end with an error
    "ahead_far_down": Case(
        "state_consistent",
        (ONE,),
        "fail",
        (
            {"version": 1, "problem": "the state is not a JSON object"},
            {"version": 1, "problem": BEHIND},
        ),
        states=((1, f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'),),
        arguments={"grace_minutes": 0},
    ),
    "accounted_pass": Case(
        "batches_complete",
        (TWO, ONE, TWO),
        # the newest batch is published, but its ledger row is not written yet
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 2, "rows_appended": 1}, {"batch": None}),
    ),
    "accounted_dropped": Case(
        "batches_complete",
        (ONE,),
        "fail",
        ({"batch": 1, "rows_in_ledger": 1, "problem": "in the ledger, not in the raw table"},),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": None, "status": "failed"}),
        planted=("drop table {table}",),
    ),
    "accounted_never_synced_pass": Case(
        "batches_complete",
        (),
        syncs=({"batch": None, "status": "failed"},),
        planted=("drop table {table}",),
    ),
    "accounted_not_in_ledger": Case(
        "batches_complete",
        (TWO, ONE, TWO),
        "fail",
        ({"batch": 2, "problem": "not in the ledger"},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 3, "rows_appended": 2}),
    ),
    "accounted_lost": Case(
        "batches_complete",
        (TWO,),
        "fail",
        ({"batch": 2, "problem": "in the ledger, not in the raw table", "rows_in_ledger": 9},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 2, "rows_appended": 9}),
    ),
    "accounted_gap": Case(
        "batches_complete",
        (TWO, None, TWO),
        "fail",
        ({"batch": 2, "problem": GAP},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 3, "rows_appended": 2}),
    ),
    "accounted_rows": Case(
        "batches_complete",
        (TWO, ONE),
        "fail",
        ({"batch": 1, "rows_in_raw": 2, "rows_in_ledger": 3, "rows_in_commits": 2},),
        syncs=({"batch": 1, "rows_appended": 3}, {"batch": 2, "rows_appended": 1}),
    ),
    "accounted_twice": Case(
        "batches_complete",
        (ONE, ONE),
        "fail",
        ({"batch": 1, "problem": "several times in the ledger"},),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 1, "rows_appended": 1}),
    ),
    "accounted_null_batch": Case(
        "batches_complete",
        (TWO,),
        "fail",
        ({"batch": None, "problem": "rows without a batch"}, {"problem": OTHERS}),
        planted=(copied("null"),),
    ),
    "accounted_batch_zero": Case(
        "batches_complete",
        (TWO,),
        "fail",
        (
            {"batch": 0, "problem": "rows of a batch that no sync makes"},
            {"batch": None, "problem": OTHERS},
        ),
        planted=(copied("0", "9"),),
    ),
    "accounted_beyond": Case(
        "batches_complete",
        (TWO,),
        "fail",
        (
            {"batch": 2, "problem": "neither in the ledger nor committed"},
            {"batch": None, "problem": OTHERS},
        ),
        syncs=({"batch": 1, "rows_appended": 2},),
        planted=(copied("2"),),
    ),
    "accounted_updated": Case(
        "batches_complete",
        (TWO,),
        "fail",
        ({"batch": None, "problem": OTHERS},),
        planted=("update {table} set amount = 9 where id = 1",),
    ),
    "accounted_deleted": Case(
        "batches_complete",
        (ONE, ONE),
        "fail",
        (
            {"batch": 1, "problem": "in the ledger, not in the raw table"},
            {"batch": None, "problem": OTHERS},
        ),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 2, "rows_appended": 1}),
        planted=("delete from {table} where _cq_batch = 1",),
    ),
    "accounted_nothing_done_pass": Case(
        "batches_complete",
        (ONE,),
        planted=("insert into {table} select * from {table} where false",),
    ),
    "accounted_generation": Case(
        "batches_complete",
        ([version(1, 1, _generation=9)],),
        "fail",
        ({"batch": 1, "problem": "rows of a generation that their sync did not have"},),
        syncs=({"batch": 1, "rows_appended": 1},),
    ),
    "accounted_later_life_pass": Case(
        "batches_complete",
        (None, None, TWO, ONE),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((7, 1, 2, 1), 1)),
        planted=(later_life(3),),
    ),
    "accounted_later_life_lost": Case(
        "batches_complete",
        (None, None, None, ONE),
        "fail",
        ({"batch": 3, "problem": "in the ledger, not in the raw table"},),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((7, 1, 2, 1), 1)),
        planted=(later_life(3),),
    ),
    "accounted_later_life_forgotten": Case(
        "batches_complete",
        (None, None, None, ONE),
        "fail",
        ({"batch": 3, "problem": GAP},),
        syncs=({"batch": 1, "rows_appended": 7}, {"batch": 4, "rows_appended": 1}),
        planted=(later_life(3),),
    ),
    "accounted_earlier_life": Case(
        "batches_complete",
        (ONE, TWO),
        "fail",
        ({"batch": 1, "problem": "rows of a batch from before the table was created"},),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 2, "rows_appended": 2}),
        planted=(later_life(2),),
    ),
    "accounted_read_again_pass": Case(
        "batches_complete",
        (ONE, None, TWO),
        syncs=(
            {"batch": 1, "rows_appended": 5},
            {"batch": 2, "rows_appended": 1},
            {"batch": 3, "rows_appended": 2, "mode": "full_refresh"},
        ),
    ),
    "accounted_too_many_are_not_read_again": Case(
        "batches_complete",
        (TWO, TWO, ONE),
        "fail",
        ({"batch": 1, "rows_in_ledger": 1}, {"batch": 3, "rows_in_ledger": 2}),
        syncs=(
            {"batch": 1, "rows_appended": 1},
            {"batch": 2, "rows_appended": 2},
            {"batch": 3, "rows_appended": 2, "mode": "full_refresh"},
        ),
    ),
    "accounted_acknowledged": Case(
        "batches_complete",
        (ONE, ONE, TWO),
        "fail",
        ({"batch": 3, "rows_in_ledger": 9},),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((5, 6, 9), 1)),
        meta={"acknowledged": [{"test": "batches_complete", "batches": [1, 2], **INCIDENT}]},
    ),
    "behind_pass": Case(
        "state_consistent", (ONE, [version(1, 2)]), states=((1, state(1, 1)), (2, state(2, 2)))
    ),
    "behind_in_flight_pass": Case(
        "state_consistent",
        (ONE, [version(1, 5)]),
        states=((1, state(1, 1)),),
        planted=("update {table} set _cq_sync_time = current_timestamp() where _cq_batch = 2",),
    ),
    # the batch's sync began hours ago, but it committed the batch only a moment before its state
    "behind_in_flight_for_long_pass": Case(
        "state_consistent", (ONE, [version(1, 5)]), states=((1, state(1, 1)),)
    ),
    "behind_head": Case(
        "state_consistent",
        (ONE, [version(1, 5)]),
        "fail",
        (
            {
                "table_name": "behind_head",
                "raw_batch": 2,
                "batch": 1,
                "problem": BEHIND,
            },
        ),
        states=((1, state(1, 1)),),
        arguments={"grace_minutes": 0},
    ),
    "behind_several": Case(
        "state_consistent",
        (ONE, [version(1, 2)], [version(1, 3)]),
        "fail",
        ({"raw_batch": 3, "batch": 1, "problem": "several batches are not in the state"},),
        states=((1, state(1, 1)),),
    ),
    "behind_none": Case(
        "state_consistent",
        (ONE, [version(1, 2)]),
        "fail",
        ({"raw_batch": 2, "batch": None, "problem": "raw data without a state"},),
    ),
    "behind_another_source": Case(
        "state_consistent",
        (ONE, [version(1, 2)]),
        "fail",
        ({"raw_batch": 2, "batch": None, "problem": "raw data without a state"},),
        states=((1, state(2, 2)),),
        source="sold",
    ),
    "behind_one_of_two_sources": Case(
        "state_consistent",
        ([version(1, 1, _source="sold")], [version(1, 2)]),
        "fail",
        (
            {
                "raw_batch": 1,
                "batch": None,
                "problem": BEHIND,
            },
        ),
        states=((1, state(2, 2)),),
        planted=(shared_by("shop", "sold"),),
        arguments={"grace_minutes": 0},
    ),
    "versions_pass": Case(
        "state_consistent",
        (ONE,),
        states=((None, state(0, None)), (1, state(1, 1)), (2, state(1, 1))),
    ),
    "versions_pruned_pass": Case(
        "state_consistent", (ONE,), states=((7, state(1, 1)), (8, state(1, 1)))
    ),
    "versions_twice": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 2, "problem": TWICE},) * 2,
        states=((1, state(1, 1)), (2, state(1, 1)), (2, state(1, 1)), (3, state(1, 1))),
    ),
    "versions_gap": Case(
        "state_consistent",
        (ONE,),
        "fail",
        ({"version": 3, "problem": "versions before this one are missing"},),
        states=((1, state(1, 1)), (3, state(1, 1))),
    ),
}
