"""The generic test `reconciled`, case by case."""

from __future__ import annotations

import pytest

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema
from tests.dbt.reconciled_cases import CASES, plant


@pytest.fixture(scope="module")
def results(project: DbtProject, raw: RawSchema) -> dict[str, Result]:
    """Runs all cases in one dbt invocation: a test has its case's name."""
    tables = []
    for name, case in CASES.items():
        raw.create(name, "id int")
        plant(raw, name, case)
        test = {"name": name, "arguments": {**case.arguments}}
        tables.append({"name": name, "data_tests": [{"strandline.reconciled": test}]})
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": tables}]},
    )
    return project.run("test", "--select", "source:shop")


@pytest.mark.parametrize("name", CASES)
def test_names_what_to_do(name: str, results: dict[str, Result], project: DbtProject) -> None:
    """Severity, count and rows are what the case says, and no more rows."""
    case = CASES[name]
    found = project.failing_rows(results[name])
    assert (results[name].status, results[name].failures) == (case.status, len(case.rows)), found
    for wanted in case.rows:
        assert any(all(row[k] == v for k, v in wanted.items()) for row in found), found


def test_a_schema_that_was_never_reconciled(project: DbtProject, raw: RawSchema) -> None:
    """Without the loader's table the test fails with an answer, not an error."""
    empty = RawSchema(raw.spark, f"{raw.schema}_never")
    empty.create("orders", "id int")
    test = {"name": "never_in_schema"}
    table = {"name": "orders", "data_tests": [{"strandline.reconciled": test}]}
    project.write(
        "models/never.yml",
        {"sources": [{"name": "never", "schema": empty.schema, "tables": [table]}]},
    )
    result = project.run("test", "--select", "source:never")["never_in_schema"]
    assert (result.status, result.failures) == ("warn", 1)
    [row] = project.failing_rows(result)
    assert row["problem"] == "never reconciled: `loader reconcile` does"
