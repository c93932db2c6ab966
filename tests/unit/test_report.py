"""The report's verdict, problems and numbers, computed from plain data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loader.errors import SpecError
from loader.lake.ledger import FAILED, LOCKED, SYNCED
from loader.report.contents import Report, build_report, choose_periods
from loader.report.history import DAY, HOUR, SourceHistory, SyncSum
from loader.report.problems import format_age
from loader.report.proofs import DbtResults, Proof, choose_columns, find_unexplained, read_results
from loader.sync.table_comparisons import TableComparison
from tests.report.simulation import NOW, good_report, report_of_a_year, report_with_incidents

SINCE, LENGTH = choose_periods(NOW, 30)
HOLDS = Proof("test.p.m", "matches_raw", "orders", "pass", failures=0)


def _newest(table: str, age: int | None, status: str = SYNCED, **other: Any) -> dict[str, Any]:
    synced = NOW - age if age is not None else None
    return {
        "source_name": "shop",
        "table_name": table,
        "batch": 1,
        "cursor": "9",
        "complete_micros": None,
        "synced_micros": synced,
        "status": status,
        "log_bytes": None,
        "error": None,
        **other,
    }


def _sync(table: str, age: int, status: str = SYNCED, **other: Any) -> SyncSum:
    at = NOW - age
    known: dict[str, Any] = {"error": None, "schema_changes": None, "syncs": 1, **other}
    return SyncSum("shop", table, at // LENGTH, status, first=at, last=at, **known)


def _report(
    newest: list[dict[str, Any]],
    syncs: list[SyncSum] | None = None,
    proofs: tuple[Proof, ...] = (HOLDS,),
    compared: dict[tuple[str, str], TableComparison] | None = None,
    stale_after: float | None = None,
) -> Report:
    history = SourceHistory("shop", ("shop", "old_shop"), newest, compared or {}, syncs or [])
    results = DbtResults("build", "2026-11-30T07:21:09Z", proofs, {}) if proofs else None
    return build_report([history], results, NOW, SINCE, LENGTH, stale_after)


def _lines(report: Report) -> list[str]:
    return [
        f"{', '.join(name for name, _ in each.subjects)} {each.text}" for each in report.problems
    ]


def test_the_summary_says_what_is_wrong() -> None:
    assert good_report().sentence == (
        "All is well: all 12 tables are up to date, and all 27 proofs hold."
    )
    wrong = report_with_incidents()
    assert (wrong.level, wrong.sentence) == (
        "bad",
        "Something is wrong: 1 table fails, 1 table is stale and 1 proof does not hold.",
    )
    assert _lines(wrong) == [
        "shop.payments fails: it was last synced 32 hours ago, 31 attempts failed since",
        "crm.contacts is stale: it was last synced 7 days ago, but usually every 60 minutes",
        "matches_raw on billing_invoices_latest does not hold for 6 rows",
    ]
    assert wrong.problems[2].detail.startswith("invoice_id: INV-2026-11800, INV-2026-11807, ")
    assert [table.name for table in wrong.tables][:2] == ["shop.payments", "crm.contacts"]


def test_an_empty_lake_is_neither_right_nor_wrong() -> None:
    report = _report([], proofs=())
    assert (report.level, report.problems) == ("none", [])
    assert report.sentence == "Nothing has been synced yet: run `loader run`."


def test_past_failures_are_listed_once_for_all_their_tables() -> None:
    report = report_of_a_year()
    assert report.level == "good"
    assert [len(each.tables) for each in report.past] == [1, 6]
    orders = next(table for table in report.tables if table.name == "shop.orders")
    assert [(result, periods) for result, _, periods in orders.strip if result == "failed"] == [
        ("failed", 3)
    ]


def test_a_table_is_stale_by_its_usual_interval() -> None:
    def level(age: int, distance: int, stale_after: float | None = None) -> str:
        syncs = [_sync("t", age + distance * i) for i in range(5)]
        return _report([_newest("t", age)], syncs, stale_after=stale_after).level

    assert level(2 * HOUR, HOUR) == "good"  # syncs of less than a day do not show a rhythm
    assert level(2 * DAY + HOUR, HOUR) == "bad"
    assert level(50 * HOUR, 24 * HOUR) == "good"
    assert level(80 * HOUR, 24 * HOUR) == "bad"
    assert level(50 * HOUR, 24 * HOUR, stale_after=26 * 3600) == "bad"
    assert _report([_newest("t", 200 * DAY)]).level == "bad"  # before the report's period


def test_tables_with_one_cause_share_a_line() -> None:
    down = "source shop: no connection"
    failing = [_newest(f"t{i}", i * HOUR, FAILED, error=down) for i in range(1, 4)]
    report = _report([*failing, _newest("other", None, FAILED, error="no rights")])
    assert _lines(report) == [
        "shop.t1, shop.t2, shop.t3 fail: the oldest sync was 3 hours ago",
        "shop.other has never been synced successfully",
    ]
    assert report.sentence == "Something is wrong: 4 tables fail."


def test_each_kind_of_problem() -> None:
    def only(report: Report) -> tuple[str, str]:
        [line] = _lines(report)
        return report.level, line.partition(" ")[2]

    fresh = _newest("t", HOUR)
    assert only(_report([_newest("t", None, LOCKED)])) == (
        "warn",
        "has never been synced successfully",
    )
    differs = {("shop", "t"): TableComparison(None, 3)}
    assert only(_report([fresh], compared=differs)) == (
        "bad",
        "is not equal to its source: 3 rows differ, and this is not repaired",
    )
    behind = _report([{**fresh, "complete_micros": NOW - 3 * DAY}])
    assert only(behind) == ("warn", "is complete only up to 3 days before its last sync")
    failover = _report([{**fresh, "complete_micros": DAY}])
    assert only(failover)[0] == "warn"
    assert failover.tables[0].complete is None
    broken = replace(HOLDS, status="error", message="no such column")
    assert only(_report([fresh], proofs=(broken,))) == ("bad", "on orders could not run")
    model = replace(HOLDS, name="orders", status="error", is_test=False)
    assert only(_report([fresh], proofs=(HOLDS, model))) == ("bad", "was not built")
    warns = replace(HOLDS, status="warn", failures=1)
    assert only(_report([fresh], proofs=(warns,))) == ("warn", "on orders warns for 1 row")
    assert only(_report([fresh], proofs=()))[1].startswith("proofs have not run")
    later = replace(_sync("t", HOUR), rows_appended=1)
    history = SourceHistory("shop", ("shop",), [fresh], {}, [later])
    results = DbtResults("build", "2026-11-27T07:00:00Z", (HOLDS,), {})
    old = build_report([history], results, NOW, SINCE, LENGTH)
    assert only(old)[1] == "proofs are 3 days older than the last loaded rows: run `dbt build`"


def test_rows_of_former_names_belong_to_the_source() -> None:
    newest = [_newest("t", DAY, source_name="old_shop"), _newest("t", HOUR)]
    report = _report(newest, [_sync("t", 2 * HOUR), _sync("t", HOUR)])
    assert [(table.name, table.synced) for table in report.tables] == [("shop.t", NOW - HOUR)]


def test_the_sums_of_a_table() -> None:
    counts = {"rows_appended": 10, "rows_redelivered": 30, "rows_below_cursor": 2}
    syncs = [
        _sync("t", 2 * HOUR, micros=4_000_000, longest=3_000_000, **counts),
        _sync("t", HOUR, rows_at_cursor=1, schema_changes="added x int"),
        _sync("t", 3 * HOUR, FAILED, error="full", syncs=2),
        _sync("t", 3 * DAY, FAILED, error="full"),
    ]
    [table] = _report([_newest("t", HOUR)], syncs).tables
    assert (table.rows, table.share, table.late) == (10, 0.75, 3)
    assert (table.syncs, table.failures, table.seconds, table.longest) == (2, 3, 2.0, 3.0)
    assert [(error.count, error.is_current) for error in table.errors] == [(3, False)]
    assert [text for _, text in table.changes] == ["added x int"]
    assert table.strip[-4:] == [
        ("none", 0, 26),
        ("failed", 26, 1),
        ("none", 27, 2),
        ("mixed", 29, 1),
    ]
    assert table.series["failed"] == [1, 2]


def test_ages() -> None:
    ages = [format_age(seconds) for seconds in (0, 1, 119, 120, 7200, 172_799, 172_800)]
    assert ages == [
        *("0 seconds", "1 second", "119 seconds", "2 minutes", "2 hours", "48 hours", "2 days")
    ]


def _write(folder: Path, results: list[dict[str, Any]], nodes: dict[str, Any]) -> None:
    metadata = {"generated_at": "2026-11-30T07:00:00Z"}
    found = {"metadata": metadata, "args": {"which": "build"}, "results": results}
    (folder / "run_results.json").write_text(json.dumps(found))
    (folder / "manifest.json").write_text(json.dumps({"nodes": nodes}))


def test_dbt_results_name_the_test_its_table_and_its_key(tmp_path: Path) -> None:
    test = {
        "name": "strandline_matches_raw_orders_",
        "test_metadata": {"name": "matches_raw", "kwargs": {}},
        "attached_node": "model.p.orders",
    }
    nodes = {
        "test.p.m.1": test,
        "model.p.orders": {"name": "orders", "config": {"unique_key": "order_id"}},
    }
    failed = {"unique_id": "test.p.m.1", "status": "fail", "failures": 2, "compiled_code": "select"}
    built = {"unique_id": "model.p.orders", "status": "success", "execution_time": 3.5}
    _write(tmp_path, [failed, built], nodes)
    results = read_results(tmp_path)
    assert results is not None
    [proof] = results.proofs
    assert (proof.name, proof.subject, list(proof.key)) == ("matches_raw", "orders", ["order_id"])
    assert find_unexplained(results) == [proof]
    assert results.node_seconds["orders"] == 3.5


def test_values_other_than_keys_are_not_shown() -> None:
    proof = replace(HOLDS, key=("Order_ID",))
    columns = ["problem", "order_id", "expected", "actual", "email", "_cq_batch"]
    assert choose_columns(proof, columns) == ["order_id", "problem", "_cq_batch"]
    assert choose_columns(HOLDS, ["email", "expected"]) == []
    ledger = replace(HOLDS, shows_all=True)
    assert choose_columns(ledger, ["cursor_low", "expected"]) == ["cursor_low", "expected"]


def test_results_that_are_missing_or_broken(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none") is None
    for text in ("{", "[]", '{"results": [{}], "metadata": {}}', '{"results": 3}'):
        (tmp_path / "run_results.json").write_text(text)
        with pytest.raises(SpecError, match="Run `dbt build` again"):
            read_results(tmp_path)


def test_a_day_or_two_are_shown_by_the_hour() -> None:
    since, length = choose_periods(NOW, 1)
    assert (length, (NOW - since) // HOUR) == (HOUR, 23)
    since, length = choose_periods(NOW, 365)
    assert (length, (NOW - since) // DAY) == (DAY, 364)
