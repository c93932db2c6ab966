"""Each generic test, with cases that pass and cases that fail and name the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dbt.batch_cases import BATCH_CASES
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.proof_case import COLUMNS, KEY
from tests.dbt.rawtables import STATE_COLUMNS, RawSchema, sync_time
from tests.dbt.reconciled_cases import CASES as RECONCILED
from tests.dbt.row_cases import ROW_CASES, SNAPSHOTS, STATES, TYPOS

CASES = {**ROW_CASES, **BATCH_CASES}


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
