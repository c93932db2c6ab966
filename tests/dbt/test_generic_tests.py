"""Each generic test passes on correct data and otherwise returns exactly the wrong rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dbt.batch_cases import BATCH_CASES
from tests.dbt.dbtproject import DbtProject, Result, as_json
from tests.dbt.generic_test_case import COLUMNS, KEY
from tests.dbt.rawtables import RawSchema
from tests.dbt.reconciled_cases import CASES as RECONCILED
from tests.dbt.row_cases import ROW_CASES, SNAPSHOTS, TYPOS

STORED = {"store_failures": True}
PROJECT_SETTINGS = {"data_tests": {"strandline": {"+store_failures": True}}}
"""Tests that cover all tables store their failing rows: their SQL is large and runs only once."""
CASES = {**ROW_CASES, **BATCH_CASES}
OF_ALL_TABLES = ("batches_complete", "inclusive_cursor", "state_consistent")
"""Tests of the ledger and of the state; each covers every raw table."""
DECLARED_TWICE = ("accounted_pass", "accounted_acknowledged", "ahead_pass")
AT_ONCE = "state_at_once"
"""The name of a test of the state without a grace period, for cases with `grace_minutes: 0`."""


@pytest.fixture(scope="module")
def results(project: DbtProject, raw: RawSchema) -> dict[str, Result]:
    """Runs all cases in one dbt invocation; each test has the name of its case.

    Tests that cover all tables read each declared table in the schema of the ledger, so the cases
    about rows have a schema of their own.
    """
    schemas = {"shop": raw, "rows": RawSchema(raw.spark, f"{raw.schema}_of_rows")}
    tables: dict[str, list[dict[str, Any]]] = {"shop": [], "rows": []}
    states: list[tuple[Any, ...]] = []
    syncs: dict[str, list[tuple[Any, ...]]] = {"shop": [], "rows": []}
    for name, case in CASES.items():
        source = "shop" if name in BATCH_CASES else "rows"
        own = schemas[source]
        own.create(name, COLUMNS)
        for batch, rows in enumerate(case.batches, start=1):
            if rows is not None:
                own.append(name, batch, rows, state=case.commits.get(batch))
        for statement in case.planted:
            raw.spark.sql(statement.format(table=f"{own.schema}.{name}"))
        states += raw.state_rows(name, case.states, case.source)
        syncs[source] += own.sync_rows(name, case.syncs)
        meta = {"meta": {"strandline": {**KEY, **case.meta}}}
        test: dict[str, Any] = {"name": name, "arguments": {**case.arguments}}
        test["config"] = {**case.config}
        tests = [{f"strandline.{case.test}": test}]
        if case.test == "matches_raw":
            create_tested_table(own, name, f"{name}_snapshot")
            test["arguments"] |= {"raw": f"source('rows', '{name}')", **KEY}
            tables[source].append({"name": f"{name}_snapshot", "data_tests": tests})
        row_tests = tests if case.test not in (*OF_ALL_TABLES, "matches_raw") else []
        tables[source].append({"name": name, "config": meta, "data_tests": row_tests})
    raw.insert(raw.state_table, states)
    for source, own in schemas.items():
        own.insert(own.syncs_table, syncs[source])
    schemas["rows"].create("typos", COLUMNS)
    typos = [
        {f"strandline.{test}": {"name": f"typo_{test}", "arguments": dict(arguments)}}
        for test, (arguments, _) in TYPOS.items()
    ]
    misspelt = {"unique_key": ["id"], "cursor_field": "updated"}
    tables["rows"].append(
        {"name": "typos", "config": {"meta": {"strandline": misspelt}}, "data_tests": typos}
    )
    at_once = {"name": AT_ONCE, "arguments": {"grace_minutes": 0}, "config": STORED}
    state = {"name": raw.state_table, "data_tests": [{"strandline.state_consistent": at_once}]}
    # a raw table may be declared twice, each time with incidents of its own
    twice = [
        {**table, "data_tests": []} for table in tables["shop"] if table["name"] in DECLARED_TWICE
    ]
    sources = [
        {"name": name, "schema": own.schema, "tables": of_it}
        for name, own, of_it in (
            ("shop", raw, tables["shop"]),
            ("rows", schemas["rows"], tables["rows"]),
            ("again", raw, twice),
            ("lake", raw, [state]),
        )
    ]
    project.write("models/sources.yml", {"sources": sources})
    nodes = ("source:shop", "source:rows", "source:lake", "cq_sync_log", "cq_state_current")
    found = project.run("build", "--select", *nodes)
    return {of_all_tables(name): one for name, one in found.items()}


def of_all_tables(name: str) -> str:
    """Returns the generic test's name for a test of ledger or state, and other names unchanged."""
    return next((test for test in OF_ALL_TABLES if f"strandline_{test}_cq_" in name), name)


@pytest.fixture(scope="module")
def failing(results: dict[str, Result], project: DbtProject) -> dict[str, list[dict[str, Any]]]:
    """Returns the failing rows of the tests that cover all tables."""
    return {test: project.failing_rows(results[test]) for test in (*OF_ALL_TABLES, AT_ONCE)}


def create_tested_table(raw: RawSchema, name: str, snapshot: str) -> None:
    """Creates the table that a matches_raw case tests, with right or wrong rows."""
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


def matched(found: Any, wanted: Any) -> bool:
    """Returns whether a row has the wanted values, also in the rows nested in it."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            matched(found[name], value) for name, value in wanted.items()
        )
    return bool(found == wanted)


@pytest.mark.parametrize("name", CASES)
def test_returns_the_failing_rows(
    name: str,
    results: dict[str, Result],
    failing: dict[str, list[dict[str, Any]]],
    project: DbtProject,
) -> None:
    """Status, number of failures and failing rows are exactly those of the case."""
    case = CASES[name]
    if case.test in OF_ALL_TABLES:
        test = AT_ONCE if case.arguments == {"grace_minutes": 0} else case.test
        assert results[test].status == "fail"
        found = [row for row in failing[test] if row["table_name"] == name]
    else:
        found = project.failing_rows(results[name]) if results[name].failures else []
        assert (results[name].status, results[name].failures) == (case.status, len(case.rows)), (
            found
        )
    assert all(any(matched(row, one) for row in found) for one in case.rows), found
    assert len(found) == len(case.rows), found
    assert bool(case.rows) == (case.status != "pass")


def test_stored_verdicts_keep_the_results(
    results: dict[str, Result], failing: dict[str, list[dict[str, Any]]], project: DbtProject
) -> None:
    """With the verdicts that the build stored, tests that cover all tables return the same rows."""
    again = project.run("test", "--select", "cq_sync_log", "cq_state_current")
    for name, one in again.items():
        test = of_all_tables(name)
        assert one.failures == results[test].failures
        assert sorted(map(as_json, project.failing_rows(one))) == sorted(
            map(as_json, failing[test])
        )


@pytest.mark.parametrize("test", TYPOS)
def test_a_column_that_does_not_exist(test: str, results: dict[str, Result]) -> None:
    """Instead of Spark's plan, the error names test, table, argument and the existing columns."""
    told = results[f"typo_{test}"]
    assert told.status == "error"
    assert (
        f"Test {test} on typos: the {TYPOS[test][1]} is not one of its columns "
        "(id, part, updated_at, amount, tags, _cq_source_name, "
    ) in " ".join(told.message.split())
    assert f"Correct {TYPOS[test][1].split()[0]}" in " ".join(told.message.split())
    assert len(told.message.splitlines()) < 20


def test_every_test_is_covered() -> None:
    """No generic test lacks a passing or a failing case."""
    from tests.dbt.dbtproject import PACKAGE

    tests = {file.stem for file in (PACKAGE / "macros" / "generic_tests").glob("*.sql")}
    outcomes = {(case.test, case.status == "pass") for case in CASES.values()}
    # tests/dbt/test_row_hash.py
    outcomes |= {("row_hash_valid", True), ("row_hash_valid", False)}
    # tests/dbt/test_complete_until.py
    outcomes |= {("complete_recently", True), ("complete_recently", False)}
    # tests/dbt/test_volume_plausible.py
    outcomes |= {("volume_plausible", True), ("volume_plausible", False)}
    outcomes |= {("reconciled_recently", case.status == "pass") for case in RECONCILED.values()}
    assert outcomes >= {(test, passed) for test in tests for passed in (True, False)}
