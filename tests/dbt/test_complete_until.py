"""The test `complete_recently`, the macro `complete_until` and the model `cq_freshness`."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

NOW = dt.datetime.now(dt.timezone.utc)
CASES: dict[str, tuple[list[float | None], str | None]] = {
    "recent": ([30, 2, None], None),  # the last sync skipped a sweep
    "late": ([30, None], "raw may lack rows that were committed since complete_until"),
    "unknown": ([None, None], "unknown: no sync has recorded complete_until"),
    "never_synced": ([], "unknown: no sync has recorded complete_until"),
    "set_back": ([1, 40], "raw may lack rows that were committed since complete_until"),
    "unlisted": ([None], None),
}
"""Per table: the age in hours of `complete_until` in each sync, and the expected problem."""


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
    return raw


def test_names_the_tables(project: DbtProject, planted: RawSchema) -> None:
    listed = {"tables": [table for table in CASES if table != "unlisted"]}
    tests = [
        {"strandline.complete_recently": {"name": "fails", "arguments": listed}},
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
    assert results["passes"].status == "pass"
    assert results["fails"].status == "warn"
    found = {row["table_name"]: row["problem"] for row in project.failing_rows(results["fails"])}
    assert found == {table: problem for table, (_, problem) in CASES.items() if problem}


def test_a_model_reads_up_to_it(project: DbtProject, planted: RawSchema) -> None:
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
