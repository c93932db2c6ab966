"""Each generic test, with cases that pass and cases that fail and name the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import STATE_COLUMNS, RawSchema, Row, sync_time
from tests.dbt.reconciled_cases import CASES as RECONCILED

COLUMNS = "id int, part string, updated_at timestamp, amount decimal(10,2), tags map<string,int>"
KEY = {"primary_key": ["id"], "cursor_field": "updated_at"}


def version(key: int | None, day: int | None, amount: str | None = "1.00", **more: Any) -> Row:
    """Returns a row whose cursor is midnight of a day in January 2025."""
    cursor = None if day is None else sync_time(day)
    return {"id": key, "updated_at": cursor, "amount": amount, "tags": {"a": 1}, **more}


def cursor_text(day: int) -> str:
    return f"2025-01-{day + 1:02d} 00:00:00"


def state(batch: int, day: int | None) -> dict[str, Any]:
    return {
        "batch": batch,
        "cursor": None if day is None else cursor_text(day),
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "generation": 1,
    }


@dataclass(frozen=True)
class Case:
    """One table, one test on it.

    Args:
        test: the generic test's name.
        batches: rows per batch, from batch 1; None leaves a gap.
        status: dbt's status.
            rows: the expected failing rows, column by column; all of them.
        states: state rows (version, value).
        syncs: ledger rows as keyword arguments.
        arguments: the test's arguments.
        config: the test's config.
        planted: SQL that is run on the table afterwards; `{table}` is its name.
        meta: more of the table's config.meta.strandline.
        commits: by batch, the state that its commit carries.
        source: the source whose states they are; the rows are of `shop`.
    """

    test: str
    batches: tuple[list[Row] | None, ...]
    status: str = "pass"
    rows: tuple[Mapping[str, Any], ...] = ()
    states: tuple[tuple[int | None, Any], ...] = ()
    syncs: tuple[Mapping[str, Any], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    planted: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    commits: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    source: str = "shop"


def window(batch: int | None, low: int | None, high: int | None, **more: Any) -> dict[str, Any]:
    """Returns a ledger row of a sync from one day's cursor to another's."""
    return {
        "batch": batch,
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "cursor_low": None if low is None else cursor_text(low),
        "cursor_high": None if high is None else cursor_text(high),
        **more,
    }


def whole(mode: str, low: int | None, high: int | None, **more: Any) -> dict[str, Any]:
    """Returns a ledger row of a sync that read a range of days completely and appended nothing."""
    more = {"read_from": None if low is None else cursor_text(low), **more}
    more = {"read_to": None if high is None else cursor_text(high), **more}
    return window(None, low, 9, mode=mode, **more)


def copied(batch: str, generation: str = "1") -> str:
    """Returns SQL that appends a copy of a row, in another batch."""
    return (
        "insert into {table} select id, part, updated_at, amount, tags, _cq_source_name, "
        f"_cq_sync_time, {batch}, 99, _cq_row_hash, _cq_deleted, {generation} "
        "from {table} where id = 1 and _cq_batch = 1"
    )


def later_life(batch: int) -> str:
    """Returns SQL that records the batch that the table began with."""
    return f"alter table {{table}} set tblproperties ('strandline.first-batch' = '{batch}')"


def shared_by(*sources: str) -> str:
    """Returns SQL that records whose rows the table has."""
    told = json.dumps({source: {} for source in sources}).replace("{", "{{").replace("}", "}}")
    return f"alter table {{table}} set tblproperties ('strandline.sources' = '{told}')"


ONE = [version(1, 1)]
TWO = [version(1, 1), version(2, 1)]
OTHERS = "a commit of others ({})"
INCIDENT = {"who": "ada", "when": "2025-03-01", "why": "erased by request"}

CASES = {
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
    "inclusive_pass": Case(
        "inclusive_cursor",
        (ONE, [version(1, 3)]),
        syncs=(
            window(1, None, 1),
            window(None, 1, 1),
            window(None, 9, None, status="failed"),
            window(2, 1, 10),
            # as text the 2nd sorts after the 10th; as a timestamp it comes before
            window(3, 2, 10, status="recovered"),
            window(4, None, 10, mode="full_refresh"),
        ),
    ),
    "inclusive_numbers_pass": Case(
        "inclusive_cursor",
        (ONE,),
        syncs=(
            window(1, None, None, cursor_field="id", cursor_high="100"),
            window(2, None, None, cursor_field="id", cursor_low="99", cursor_high="101"),
        ),
        arguments={"cursor_field": "id"},
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
        "state_not_ahead", (ONE, [version(1, 2)]), states=((1, state(1, 1)), (2, state(2, 2)))
    ),
    "ahead_behind_pass": Case(
        "state_not_ahead", (ONE, [version(1, 5)]), states=((1, state(1, 1)),)
    ),
    "ahead_batch": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        (
            {
                "table_name": "ahead_batch",
                "version": 7,
                "state_batch": 2,
                "raw_batch": 1,
                "problem": "batch is ahead of the raw data",
            },
        ),
        states=((1, state(1, 1)), (7, state(2, 1))),
    ),
    "ahead_cursor": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 2, "problem": "cursor is ahead of the raw data"},),
        states=((1, state(1, 1)), (2, state(1, 2))),
    ),
    "ahead_behind_a_future_row": Case(
        "state_not_ahead",
        ([version(1, 1), version(2, 20)],),
        "fail",
        ({"raw_cursor": cursor_text(1), "problem": "cursor is ahead of the raw data"},),
        states=((1, state(1, 5)),),
    ),
    # the source's clock, at which the cursor then stays
    "ahead_at_the_clock_pass": Case(
        "state_not_ahead",
        ([version(1, 1), version(2, 20)],),
        states=((1, state(1, 2)),),
        commits={1: state(1, 2)},
    ),
    "ahead_no_data": Case(
        "state_not_ahead",
        (),
        "fail",
        ({"version": 1, "raw_batch": None, "problem": "state without any raw data"},),
        states=((1, state(1, 1)),),
    ),
    "ahead_not_json": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 1, "value": "2025-01-01", "problem": "state is not a JSON object"},),
        states=((1, "2025-01-01"),),
    ),
    # a reader may trust either
    "ahead_one_of_two": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 2, "state_batch": 9, "problem": "batch is ahead of the raw data"},),
        states=((2, state(9, 1)), (2, state(1, 1))),
    ),
    "ahead_other_of_two": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 2, "state_batch": 9, "problem": "batch is ahead of the raw data"},),
        states=((2, state(1, 1)), (2, state(9, 1))),
    ),
    # Spark's JSON and Python's differ in these
    "ahead_after_a_line": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 1, "problem": "state is not a JSON object"},),
        states=((1, f"\n{json.dumps(state(1, 1))}"),),
    ),
    "ahead_by_the_first_of_two": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 1, "state_batch": 9, "problem": "batch is ahead of the raw data"},),
        states=((1, json.dumps(state(9, 1))[:-1] + ', "batch": 1}'),),
    ),
    # no other table's tests break off on it
    "ahead_far_down": Case(
        "state_not_ahead",
        (ONE,),
        "fail",
        ({"version": 1, "problem": "state is not a JSON object"},),
        states=((1, f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'),),
    ),
    "accounted_pass": Case(
        "batches_accounted",
        (TWO, ONE, TWO),
        # the newest batch is published, but its ledger row is not written yet
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 2, "rows_appended": 1}, {"batch": None}),
    ),
    "accounted_not_in_ledger": Case(
        "batches_accounted",
        (TWO, ONE, TWO),
        "fail",
        ({"batch": 2, "problem": "not in the ledger"},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 3, "rows_appended": 2}),
    ),
    "accounted_lost": Case(
        "batches_accounted",
        (TWO,),
        "fail",
        ({"batch": 2, "problem": "in the ledger, not in the raw table", "rows_in_ledger": 9},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 2, "rows_appended": 9}),
    ),
    "accounted_gap": Case(
        "batches_accounted",
        (TWO, None, TWO),
        "fail",
        ({"batch": 2, "problem": "missing everywhere"},),
        syncs=({"batch": 1, "rows_appended": 2}, {"batch": 3, "rows_appended": 2}),
    ),
    "accounted_rows": Case(
        "batches_accounted",
        (TWO, ONE),
        "fail",
        ({"batch": 1, "rows_in_raw": 2, "rows_in_ledger": 3, "rows_in_commits": 2},),
        syncs=({"batch": 1, "rows_appended": 3}, {"batch": 2, "rows_appended": 1}),
    ),
    "accounted_twice": Case(
        "batches_accounted",
        (ONE, ONE),
        "fail",
        ({"batch": 1, "ledger_entries": 2, "problem": "several times in the ledger"},),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 1, "rows_appended": 1}),
    ),
    "accounted_null_batch": Case(
        "batches_accounted",
        (TWO,),
        "fail",
        ({"batch": None, "problem": "rows without a batch"}, {"problem": OTHERS.format("append")}),
        planted=(copied("null"),),
    ),
    "accounted_batch_zero": Case(
        "batches_accounted",
        (TWO,),
        "fail",
        (
            {"batch": 0, "problem": "rows of a batch that no sync makes"},
            {"batch": None, "problem": OTHERS.format("append")},
        ),
        planted=(copied("0", "9"),),
    ),
    "accounted_beyond": Case(
        "batches_accounted",
        (TWO,),
        "fail",
        (
            {"batch": 2, "problem": "neither in the ledger nor committed"},
            {"batch": None, "problem": OTHERS.format("append")},
        ),
        syncs=({"batch": 1, "rows_appended": 2},),
        planted=(copied("2"),),
    ),
    "accounted_updated": Case(
        "batches_accounted",
        (TWO,),
        "fail",
        ({"batch": None, "problem": OTHERS.format("overwrite")},),
        planted=("update {table} set amount = 9 where id = 1",),
    ),
    "accounted_deleted": Case(
        "batches_accounted",
        (ONE, ONE),
        "fail",
        (
            {"batch": 1, "problem": "in the ledger, not in the raw table"},
            {"batch": None, "problem": OTHERS.format("delete")},
        ),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 2, "rows_appended": 1}),
        planted=("delete from {table} where _cq_batch = 1",),
    ),
    "accounted_nothing_done_pass": Case(
        "batches_accounted",
        (ONE,),
        planted=("insert into {table} select * from {table} where false",),
    ),
    "accounted_generation": Case(
        "batches_accounted",
        ([version(1, 1, _generation=9)],),
        "fail",
        ({"batch": 1, "problem": "rows of a generation that their sync did not have"},),
        syncs=({"batch": 1, "rows_appended": 1},),
    ),
    "accounted_later_life_pass": Case(
        "batches_accounted",
        (None, None, TWO, ONE),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((7, 1, 2, 1), 1)),
        planted=(later_life(3),),
    ),
    "accounted_later_life_lost": Case(
        "batches_accounted",
        (None, None, None, ONE),
        "fail",
        ({"batch": 3, "problem": "in the ledger, not in the raw table"},),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((7, 1, 2, 1), 1)),
        planted=(later_life(3),),
    ),
    "accounted_later_life_forgotten": Case(
        "batches_accounted",
        (None, None, None, ONE),
        "fail",
        ({"batch": 3, "problem": "missing everywhere"},),
        syncs=({"batch": 1, "rows_appended": 7}, {"batch": 4, "rows_appended": 1}),
        planted=(later_life(3),),
    ),
    "accounted_earlier_life": Case(
        "batches_accounted",
        (ONE, TWO),
        "fail",
        ({"batch": 1, "problem": "rows of a batch from before the table was made"},),
        syncs=({"batch": 1, "rows_appended": 1}, {"batch": 2, "rows_appended": 2}),
        planted=(later_life(2),),
    ),
    "accounted_read_again_pass": Case(
        "batches_accounted",
        (ONE, None, TWO),
        syncs=(
            {"batch": 1, "rows_appended": 5},
            {"batch": 2, "rows_appended": 1},
            {"batch": 3, "rows_appended": 2, "mode": "full_refresh"},
        ),
    ),
    "accounted_too_many_are_not_read_again": Case(
        "batches_accounted",
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
        "batches_accounted",
        (ONE, ONE, TWO),
        "fail",
        ({"batch": 3, "rows_in_ledger": 9},),
        syncs=tuple({"batch": n, "rows_appended": rows} for n, rows in enumerate((5, 6, 9), 1)),
        meta={"acknowledged": [{"test": "batches_accounted", "batches": [1, 2], **INCIDENT}]},
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
    "behind_pass": Case(
        "state_not_behind", (ONE, [version(1, 5)]), states=((1, state(1, 1)), (2, state(2, 5)))
    ),
    "behind_in_flight_pass": Case(
        "state_not_behind", (ONE, [version(1, 5)]), states=((1, state(1, 1)),)
    ),
    "behind_head": Case(
        "state_not_behind",
        (ONE, [version(1, 5)]),
        "warn",
        (
            {
                "table_name": "behind_head",
                "raw_batch": 2,
                "state_batch": 1,
                "problem": "the newest batch without state: the next run recovers it",
            },
        ),
        states=((1, state(1, 1)),),
        arguments={"grace_minutes": 0},
    ),
    "behind_several": Case(
        "state_not_behind",
        (ONE, [version(1, 2)], [version(1, 3)]),
        "warn",
        ({"raw_batch": 3, "state_batch": 1, "problem": "several batches without state"},),
        states=((1, state(1, 1)),),
    ),
    "behind_none": Case(
        "state_not_behind",
        (ONE, [version(1, 2)]),
        "warn",
        ({"raw_batch": 2, "state_batch": None, "problem": "data without any state"},),
    ),
    "behind_another_source": Case(
        "state_not_behind",
        (ONE, [version(1, 2)]),
        "warn",
        ({"raw_batch": 2, "state_batch": None, "problem": "data without any state"},),
        states=((1, state(2, 2)),),
        source="sold",
    ),
    "behind_one_of_two_sources": Case(
        "state_not_behind",
        ([version(1, 1, _source="sold")], [version(1, 2)]),
        "warn",
        ({"source_name": "sold", "raw_batch": 1, "state_batch": None},),
        states=((1, state(2, 2)),),
        arguments={"grace_minutes": 0},
        planted=(shared_by("shop", "sold"),),
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


@pytest.fixture(scope="module")
def results(project: DbtProject, raw: RawSchema) -> dict[str, Result]:
    """Runs all cases in one dbt invocation: a test has its case's name."""
    tables = []
    states: list[tuple[Any, ...]] = []
    syncs: list[tuple[Any, ...]] = []
    for name, case in CASES.items():
        raw.create(name, COLUMNS)
        for batch, rows in enumerate(case.batches, start=1):
            if rows is not None:
                raw.append(name, batch, rows, state=case.commits.get(batch))
        for statement in case.planted:
            raw.spark.sql(statement.format(table=f"{raw.schema}.{name}"))
        states += raw.state_rows(name, case.states, case.source)
        syncs += raw.sync_rows(name, case.syncs)
        test: dict[str, Any] = {"name": name, "arguments": {**case.arguments}}
        tested = name
        if case.test == "latest_matches_raw":
            tested = f"{name}_snapshot"
            stand_in(raw, name, tested)
            test["arguments"] |= {"raw": f"source('shop', '{name}')", **KEY}
            tables.append({"name": name})
        test["config"] = {**case.config}
        tables.append(
            {
                "name": tested,
                "config": {"meta": {"strandline": {**KEY, **case.meta}}},
                "data_tests": [{f"strandline.{case.test}": test}],
            }
        )
    raw.insert(raw.state_table, states)
    raw.insert(raw.syncs_table, syncs)
    for name, (versions, _, _) in STATES.items():
        raw.spark.sql(f"create table {raw.schema}.{name} ({STATE_COLUMNS}) using iceberg")
        raw.insert(name, [(key, "{}", number, sync_time(1)) for key, number in versions])
        tables.append(
            {"name": name, "data_tests": [{"strandline.state_monotonic": {"name": name}}]}
        )
    raw.create("typos", COLUMNS)
    tests = [
        {f"strandline.{test}": {"name": f"typo_{test}", "arguments": dict(arguments)}}
        for test, (arguments, _) in TYPOS.items()
    ]
    misspelt = {"primary_key": ["id"], "cursor_field": "updated"}
    meta = {"meta": {"strandline": misspelt}}
    tables.append({"name": "typos", "config": meta, "data_tests": tests})
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": tables}]},
    )
    return project.run("test", "--select", "source:shop")


def stand_in(raw: RawSchema, name: str, snapshot: str) -> None:
    """Writes a snapshot table, right or wrong."""
    table = f"{raw.schema}.{name}"
    raw.spark.sql(
        f"create table {raw.schema}.{snapshot} using iceberg as "
        f"select * from {table} {SNAPSHOTS[name]}"
    )
    if name == "matches_differs":
        raw.spark.sql(
            f"create or replace table {raw.schema}.{snapshot} using iceberg as "
            "select id, part, updated_at, "
            "if(id = 2, cast(5 as decimal(10,2)), amount) as amount, "
            "if(id = 1, map('a', 2), tags) as tags, _cq_source_name, _cq_sync_time, _cq_batch, "
            f"_cq_seq, _cq_row_hash, _cq_deleted, _cq_generation from {table}"
        )


def matched(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(found[name] == value for name, value in wanted.items())


@pytest.mark.parametrize("name", [*CASES, *STATES])
def test_names_the_rows(name: str, results: dict[str, Result], project: DbtProject) -> None:
    """Severity, count and rows are what the case says, and no more rows."""
    if name in CASES:
        status, wanted = CASES[name].status, CASES[name].rows
    else:
        _, status, wanted = STATES[name]
    found = project.failing_rows(results[name]) if results[name].failures else []
    assert (results[name].status, results[name].failures) == (status, len(wanted)), found
    assert all(any(matched(row, one) for row in found) for one in wanted), found
    assert len(found) == len(wanted)


@pytest.mark.parametrize("test", TYPOS)
def test_a_column_that_is_not_there(test: str, results: dict[str, Result], raw: RawSchema) -> None:
    """The error is not Spark's plan: it says what is wrong, where, and what exists instead."""
    told = results[f"typo_{test}"]
    assert told.status == "error"
    assert (
        f"Test {test} on source shop.typos: its {TYPOS[test][1]} is not a column of "
        f"{raw.schema}.typos, which has id, part, updated_at, amount, tags. Correct "
        f"{TYPOS[test][1].split()[0]} in models/sources.yml."
    ) in " ".join(told.message.split())
    assert len(told.message.splitlines()) < 20


def test_every_test_is_covered() -> None:
    """No generic test lacks a passing or a failing case."""
    from tests.dbt.dbtproject import PACKAGE

    tests = {file.stem for file in (PACKAGE / "macros" / "generic_tests").glob("*.sql")}
    outcomes = {(case.test, case.status == "pass") for case in CASES.values()}
    outcomes |= {("state_monotonic", status == "pass") for _, status, _ in STATES.values()}
    # tests/dbt/test_models_as_written.py
    outcomes |= {("history_matches_raw", True), ("history_matches_raw", False)}
    # tests/dbt/test_row_hash.py
    outcomes |= {("row_hash_matches", True), ("row_hash_matches", False)}
    outcomes |= {("reconciled", case.status == "pass") for case in RECONCILED.values()}
    assert outcomes >= {(test, passed) for test in tests for passed in (True, False)}
