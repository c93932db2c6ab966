"""`complete_recently`, `complete_until` and `cq_freshness` read `complete_until` of the ledger."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from loader.lake.lake import Lake
from loader.lake.ledger import Ledger
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

NOW = dt.datetime.now(dt.timezone.utc)
CASES: dict[str, tuple[list[float | None], str | None]] = {
    "recent": ([30, 2, None], None),  # the last sync ran no sweep, so it recorded no time
    "late": ([30, None], "the raw table may lack rows that were committed since complete_until"),
    "unknown": (
        [None, None],
        "unknown: no sync of a table with this name has recorded complete_until",
    ),
    "never_synced": ([], "unknown: no sync of a table with this name has recorded complete_until"),
    "set_back": ([1, 40], "the raw table may lack rows that were committed since complete_until"),
    "unlisted": ([None], None),
}
"""Per table: the age in hours of `complete_until` in each sync, and the expected problem."""

OVERLAPPING = {"locked": (5, 5, ("synced", 0)), "failed": (5, 15, ("failed", 1))}
"""By the status of an attempt that begins during a sync of ten minutes: the minutes in which the
attempt begins and ends, and the table's last status and failures since the last success."""


@pytest.fixture(scope="module")
def planted(raw: RawSchema) -> RawSchema:
    for table, (ages, _) in CASES.items():
        entries: list[dict[str, Any]] = [
            {
                "batch": number,
                "rows_below_cursor": 0 if number == 1 else 2,
                "rows_at_cursor": None if number == 1 else 3,
                "complete_until": NOW - dt.timedelta(hours=age) if age is not None else None,
            }
            for number, age in enumerate(ages, start=1)
        ]
        raw.syncs(table, entries)
        if ages:
            raw.create(table, "id int")
    for status, (began, ended, _) in OVERLAPPING.items():
        entries: list[dict[str, Any]] = [{"batch": 1}, {"status": status}]
        for entry, (first, last) in zip(entries, [(0, 10), (began, ended)], strict=True):
            entry["started_at"] = NOW + dt.timedelta(minutes=first)
            entry["finished_at"] = NOW + dt.timedelta(minutes=last)
        raw.syncs(status, entries)
    return raw


def test_names_the_tables(project: DbtProject, planted: RawSchema) -> None:
    listed = {"tables": [table for table in CASES if table != "unlisted"]}
    tests = [
        {"strandline.complete_recently": {"name": "fails", "arguments": listed}},
        {
            "strandline.complete_recently": {
                "name": "excluded",
                "arguments": {"tables": "never_synced", "exclude_tables": [*CASES]},
            }
        },
        {
            "strandline.complete_recently": {
                "name": "passes",
                "arguments": {"within": 48, "tables": "recent"},
            }
        },
    ]
    table = {"name": "_cq_syncs", "data_tests": tests}
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": planted.schema, "tables": [table]}]},
    )
    results = project.run("test", "--select", "source:shop")
    assert results["passes"].status == results["excluded"].status == "pass"
    assert results["fails"].status == "warn"
    found = {row["table_name"]: row["problem"] for row in project.failing_rows(results["fails"])}
    assert found == {table: problem for table, (_, problem) in CASES.items() if problem}


def test_hours_that_are_no_number_are_refused(project: DbtProject, planted: RawSchema) -> None:
    test = {"strandline.complete_recently": {"arguments": {"within": "1 hour"}}}
    table = {"name": "_cq_syncs", "data_tests": [test]}
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": planted.schema, "tables": [table]}]},
    )
    [result] = project.run("test", "--select", "source:shop").values()
    assert result.status == "error"
    expected = 'within is "1 hour". Set it to a number of hours, for example within: 1.5'
    assert expected in (result.message or "")


def test_the_macro_and_the_freshness_model(project: DbtProject, planted: RawSchema) -> None:
    tables = [{"name": table} for table in CASES]
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": planted.schema, "tables": tables}]},
    )
    for table in CASES:
        macro = f"{{{{ strandline.complete_until(source('shop', '{table}')) }}}}"
        config = "{{ config(materialized='table') }}"
        project.write(f"models/until_{table}.sql", f"{config} select {macro} as until")
    results = project.run("run", "--select", "until_*", "cq_sync_log", "cq_freshness")
    assert {one.message for one in results.values() if one.status != "success"} == set()
    for table, (ages, _) in CASES.items():
        newest = next((age for age in reversed(ages) if age is not None), None)
        expected = NOW - dt.timedelta(hours=newest) if newest is not None else None
        literal = f"timestamp '{expected:%Y-%m-%d %H:%M:%S.%f}+00:00'" if expected else "null"
        select, schema = planted.spark.sql, project.schema
        [row] = select(f"select until <=> {literal} from {schema}.until_{table}").collect()
        assert row[0], table
        fresh = select(
            f"select complete_until <=> {literal}, rows_below_cursor, rows_at_cursor "
            f"from {schema}.cq_freshness where table_name = '{table}'"
        ).collect()
        later = len(ages) - 1
        if ages:
            assert [tuple(row) for row in fresh] == [(True, 2 * later, 3 * later or None)], table
    newest = Ledger(Lake(planted.spark, planted.schema)).newest()
    statuses = {row["table_name"]: row["status"] for row in newest}
    freshness = {row["table_name"]: row for row in project.rows("cq_freshness")}
    log = {row["table_name"]: row for row in project.rows("cq_sync_log") if row["is_last_attempt"]}
    for table, (_, _, expected) in OVERLAPPING.items():
        row = freshness[table]
        assert (row["last_status"], row["failures_since"]) == expected
        assert statuses[table] == log[table]["status"] == expected[0]


def test_a_latest_table_is_complete_as_far_as_its_batches(
    project: DbtProject, raw: RawSchema
) -> None:
    """Syncs after the model's build do not count, because the model lacks their rows."""
    raw.create("orders", "id int, at timestamp")
    row = {"id": 1, "at": NOW}
    config = "{{ config(materialized='deduped_latest', unique_key='id') }} "
    project.write(
        "models/lake.yml",
        {"sources": [{"name": "lake", "schema": raw.schema, "tables": [{"name": "orders"}]}]},
    )
    project.write("models/latest.sql", config + "select * from {{ source('lake', 'orders') }}")
    project.write(
        "models/until.sql",
        "{{ config(materialized='table') }} "
        "select {{ strandline.complete_until(ref('latest')) }} as until",
    )
    entries: list[dict[str, Any]] = [{"batch": 1}, {"batch": None}, {"batch": 2}, {"batch": None}]
    for number, entry in enumerate(entries):
        entry["complete_until"] = NOW - dt.timedelta(hours=10 - number)

    def hours_ago(*selected: str) -> float | None:
        results = project.run("run", "--select", *selected)
        assert {one.message for one in results.values() if one.status != "success"} == set()
        [[until]] = raw.spark.sql(
            f"select unix_micros(until) from {project.schema}.until"
        ).collect()
        return until and round(NOW.timestamp() - until / 1e6) / 3600

    raw.append("orders", 1, [row])
    assert hours_ago("latest", "until") is None
    raw.syncs("orders", entries)
    raw.append("orders", 2, [{**row, "id": 2}])
    assert hours_ago("until") == 9
    assert hours_ago("latest", "until") == 7


def test_other_models_are_refused(project: DbtProject, raw: RawSchema) -> None:
    """It is unknown which syncs the models of other materializations contain."""
    config = "{{ config(materialized='table') }} "
    project.write("models/mart.sql", config + "select 1 as id")
    macro = "{{ strandline.complete_until(ref('mart')) }}"
    project.write("models/until.sql", config + f"select {macro} as until")
    until = project.run("run", "--select", "mart", "until")["until"]
    assert until.status == "error"
    assert "source('shop', 'orders'), or its latest table" in (until.message or "")
