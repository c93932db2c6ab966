"""`reconciled_recently` names tables and buckets that were not verified or not repaired in time."""

from __future__ import annotations

import pytest

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema
from tests.dbt.reconciled_cases import CASES, plant


@pytest.fixture(scope="module")
def results(project: DbtProject, raw: RawSchema) -> dict[str, Result]:
    """Runs all cases in one dbt invocation; each test has the name of its case."""
    tests = []
    for name, case in CASES.items():
        plant(raw, name, case)
        arguments = {"tables": name, **case.arguments}
        tests.append({"strandline.reconciled_recently": {"name": name, "arguments": arguments}})
    tests.append("strandline.reconciled_recently")
    table = {"name": "_cq_reconciled", "data_tests": tests}
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [table]}]},
    )
    return project.run("test", "--select", "source:shop")


@pytest.mark.parametrize("name", CASES)
def test_returns_the_failing_rows(
    name: str, results: dict[str, Result], project: DbtProject
) -> None:
    """The failing rows of the case's table are exactly those of the case."""
    case = CASES[name]
    found = [row for row in project.failing_rows(results[name]) if row["table_name"] == name]
    assert results[name].status == "warn"  # because of the rows of other tables
    assert len(found) == len(case.rows), found
    assert bool(case.rows) == (case.status == "warn")
    for wanted in case.rows:
        assert any(all(row[k] == v for k, v in wanted.items()) for row in found), found


def test_all_tables_at_once(results: dict[str, Result], project: DbtProject) -> None:
    """Without arguments, each table ever compared must have been verified in the last day."""
    [result] = [one for name, one in results.items() if name not in CASES]
    found = {(row["table_name"], row["bucket"]) for row in project.failing_rows(result)}
    assert found == {
        ("reconciled_late", None),
        ("reconciled_share_pass", None),
        ("reconciled_within_pass", None),
        ("reconciled_other_key", None),
        ("reconciled_reloaded", None),
        ("reconciled_not_repaired", 1),
    }


def test_a_schema_that_was_never_reconciled(project: DbtProject, raw: RawSchema) -> None:
    """Without the table `_cq_reconciled`, the test warns instead of ending with an error."""
    empty = RawSchema(raw.spark, f"{raw.schema}_never")
    test = {"name": "never_in_schema", "arguments": {"tables": ["orders", "items"]}}
    tests = [{"strandline.reconciled_recently": test}]
    table = {"name": "_cq_reconciled", "data_tests": tests}
    project.write(
        "models/never.yml",
        {"sources": [{"name": "never", "schema": empty.schema, "tables": [table]}]},
    )
    result = project.run("test", "--select", "source:never")["never_in_schema"]
    assert (result.status, result.failures) == ("warn", 2)
    rows = project.failing_rows(result)
    assert {row["table_name"] for row in rows} == {"orders", "items"}
    assert {row["problem"] for row in rows} == {"never reconciled: run `loader reconcile`"}
