"""One project over several raw schemas, with variables of the package and with another package.

Tests find state and ledger through dbt's graph: `var()` in a test of the root project does not see
variables that are set for this package alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import STATE_COLUMNS, RawSchema, sync_time

ON_LEDGER, ON_STATE = ("batches_complete", "inclusive_cursor"), "state_consistent"
OF_PACKAGE = {
    "batches_complete": "strandline_batches_complete_cq_sync_log_",
    "inclusive_cursor": "strandline_inclusive_cursor_cq_sync_log_",
    "state_consistent": "strandline_state_consistent_cq_state_current_",
}
KEY = {"unique_key": "id", "cursor_field": "at"}
AHEAD = {"batch": 9, "cursor": None, "cursor_field": "at", "generation": 1}
# another package, whose macros and tests have the names of ours; it must not be called
UTILS = """
{% macro not_ours() %}{{ exceptions.raise_compiler_error("dbt_utils was asked") }}{% endmacro %}
{% macro _quote(name) %}{{ dbt_utils.not_ours() }}{% endmacro %}
{% macro duplicates(relation) %}{{ dbt_utils.not_ours() }}{% endmacro %}
{% macro _subject(relation, test) %}{{ dbt_utils.not_ours() }}{% endmacro %}
{% macro deduplicate(relation, partition_by, order_by) %}select 1{% endmacro %}
{% macro spark__deduplicate(relation, partition_by, order_by) %}select 1{% endmacro %}
"""
UTILS_TEST = "{% test unique_key(model) %}select 1 as id where false{% endtest %}"


class Lake(RawSchema):
    """A raw schema with a table of one batch, whose state is ahead and whose ledger is wrong."""

    def fill(self, *, state: bool = True) -> None:
        self.create("orders", "id int, at timestamp")
        self.append("orders", 1, [{"id": 1, "at": sync_time(1)}])
        if state:
            self.states("orders", [(1, AHEAD)])
        self.syncs("orders", [{"batch": 1, "rows_appended": 7}])


def _project(
    spark: SparkSession, folder: Path, schema: str, variables: Mapping[str, Any]
) -> DbtProject:
    project = DbtProject(
        spark,
        folder / schema,
        name=schema,
        schema=f"mart_{schema}",
        raw_schema="not_this_one",
        settings={
            "vars": {"strandline": dict(variables)},
            "models": {
                "strandline": {
                    name: {"+enabled": True} for name in ("cq_duplicates", "cq_acknowledged")
                }
            },
        },
    )
    utils = folder / schema / "dbt_utils"
    project.write("dbt_utils/dbt_project.yml", {"name": "dbt_utils", "version": "1.0.0"})
    project.write("dbt_utils/macros/utils.sql", UTILS)
    project.write("dbt_utils/tests/generic/unique_key.sql", UTILS_TEST)
    packages = (project.folder / "packages.yml").read_text()
    (project.folder / "packages.yml").write_text(f"{packages}- local: {utils}\n")
    return project


def _source(
    schema: str, *, syncs: str = "_cq_syncs", state: str | None = None, **settings: Any
) -> dict[str, Any]:
    """Returns a raw schema as a source, with tests on its ledger and on its state table."""
    meta = {"meta": {"strandline": {**KEY, **settings}}}
    tests = ["dbt_utils.unique_key", {"strandline.unique_key": {"name": f"unique_key_{schema}"}}]
    tables: list[dict[str, Any]] = [{"name": "orders", "config": meta, "data_tests": tests}]
    on_ledger = [{f"strandline.{test}": {"name": f"{test}_{schema}"}} for test in ON_LEDGER]
    tables.append({"name": syncs, "data_tests": on_ledger})
    if state:
        tables.append({"name": state, "data_tests": [_of_state(schema)]})
    return {"name": schema, "schema": schema, "tables": tables}


def _of_state(schema: str, **arguments: Any) -> dict[str, Any]:
    return {f"strandline.{ON_STATE}": {"name": f"{ON_STATE}_{schema}", "arguments": arguments}}


def _problems(project: DbtProject, results: Mapping[str, Result]) -> dict[str, str]:
    """Returns, by failing test, the problem of its first failing row."""
    found = {}
    for name, one in results.items():
        if one.status == "skipped":  # a model that reads the ledger
            continue
        assert one.status != "error", (name, one.message)
        if one.status != "pass":
            found[name] = str(project.failing_rows(one)[0]["problem"]).split(":")[0]
    return found


@pytest.fixture(scope="module")
def lakes(spark: SparkSession) -> dict[str, Lake]:
    """Three raw schemas with their own table names; the third one's state is in a fourth schema."""
    names = {"state_table": "cursors", "syncs_table": "Attempts"}
    lakes = {schema: Lake(spark, schema, **names) for schema in ("lake_eu", "lake_us", "lake_by")}
    for schema, lake in lakes.items():
        lake.fill(state=schema != "lake_by")
    spark.sql("create schema kept_cursors")
    spark.sql(f"create table kept_cursors.cq_state_by ({STATE_COLUMNS}) using iceberg")
    spark.sql("insert into kept_cursors.cq_state_by values ('shop.orders', 'x', 1, now())")
    return lakes


def test_names_that_are_set_for_the_package(
    lakes: dict[str, Lake], spark: SparkSession, tmp_path: Path
) -> None:
    """State and ledger are found in each raw schema, or in the schema that a source declares."""
    variables = {
        "strandline__raw_schema": "lake_eu",
        "strandline__state_table": "cursors",
        "strandline__syncs_table": "Attempts",
    }
    project = _project(spark, tmp_path, "several", variables)
    sources = [
        _source("lake_eu", syncs="Attempts"),
        _source("lake_us", syncs="Attempts", state="cursors"),
        _source("lake_by", syncs="Attempts"),
    ]
    kept = {"name": "cq_state_by", "data_tests": [_of_state("lake_by", raw_schema="lake_by")]}
    sources.append({"name": "kept", "schema": "kept_cursors", "tables": [kept]})
    project.write("models/sources.yml", {"sources": sources})
    results = {n: r for n, r in project.run("build").items() if r.status != "success"}
    ahead, differ = (
        "the batch is ahead of the raw table",
        "row counts of ledger and raw table differ",
    )
    assert _problems(project, results) == {
        OF_PACKAGE[ON_STATE]: ahead,
        f"{ON_STATE}_lake_us": ahead,
        f"{ON_STATE}_lake_by": "the state is not a JSON object",
        OF_PACKAGE["batches_complete"]: differ,
        **{f"batches_complete_{name}": differ for name in lakes},
    }
    [log] = project.rows("cq_sync_log")
    assert log["rows_appended"] == 7
    assert len(project.rows("cq_duplicates")) == 3


def test_a_missing_table_fails_unless_it_is_declared(
    lakes: dict[str, Lake], spark: SparkSession, tmp_path: Path
) -> None:
    """With the default names instead of the real ones, no test passes for lack of rows."""
    project = _project(spark, tmp_path, "missing", {"strandline__raw_schema": "lake_eu"})
    us = _source("lake_us", state="_cq_state", state_in_lake=False)
    sources = [_source("lake_eu"), us]
    project.write("models/sources.yml", {"sources": sources})
    tests = [f"test_name:{test}" for test in (*ON_LEDGER, ON_STATE)]
    results = project.run("test", "--select", *tests)
    missing = "there is no such table"
    on_ledger = {
        *(f"{test}_{name}" for test in ON_LEDGER for name in ("lake_eu", "lake_us")),
        *(OF_PACKAGE[test] for test in ON_LEDGER),
    }
    assert _problems(project, results) == dict.fromkeys({*on_ledger, OF_PACKAGE[ON_STATE]}, missing)
    said = {"strandline__raw_schema": "lake_eu", "strandline__state_in_lake": False}
    declared = _project(spark, tmp_path, "declared", said)
    declared.write("models/sources.yml", {"sources": sources})
    results = declared.run("test", "--select", *tests)
    assert _problems(declared, results) == dict.fromkeys(on_ledger, missing)


def test_a_project_before_its_first_sync(spark: SparkSession, tmp_path: Path) -> None:
    """The package builds, and a test of a missing table says how to create it."""
    project = _project(spark, tmp_path, "fresh", {"strandline__raw_schema": "lake_to_come"})
    sources = [_source("lake_to_come", state="_cq_state")]
    project.write("models/sources.yml", {"sources": sources})
    results = project.run("build")
    one = results["unique_key_lake_to_come"]
    assert one.status == "error"
    told = " ".join(one.message.split())
    assert "`loader run` creates a raw table" in told
    assert "models/sources.yml" in told
    theirs = {"unique_key_lake_to_come", "dbt_utils_source_unique_key_lake_to_come_orders"}
    rest = {name: r.status for name, r in results.items() if name not in theirs}
    assert set(rest.values()) == {"success", "pass"}, rest
    assert len(rest) >= len({*OF_PACKAGE, *ON_LEDGER, ON_STATE})


def test_an_acknowledged_incident(
    lakes: dict[str, Lake], spark: SparkSession, tmp_path: Path
) -> None:
    """Acknowledged with who, when and why, it no longer fails a test, and a model lists it."""
    lake = Lake(spark, "lake_ack")
    lake.create("orders", "id int, at timestamp")
    lake.append("orders", 1, [{"id": 1, "at": sync_time(1)}, {"id": 2, "at": sync_time(1)}])
    lake.syncs("orders", [{"batch": 1, "rows_appended": 2}])
    spark.sql("delete from lake_ack.orders where id = 2")
    [erased] = spark.sql("select snapshot_id from lake_ack.orders.refs").collect()
    incident = {
        "test": ["batches_complete", "no_cursor_ties"],
        "who": "ada",
        "when": "2025-03-01",
        "why": "it's a customer's right",
    }
    project = _project(spark, tmp_path, "known", {"strandline__raw_schema": "lake_ack"})

    def accounted(*acknowledged: Mapping[str, Any]) -> tuple[str, str]:
        source = _source("lake_ack", acknowledged=list(acknowledged))
        project.write("models/sources.yml", {"sources": [source]})
        results = project.run("build", "--select", "batches_complete_lake_ack", "cq_acknowledged")
        one = results["batches_complete_lake_ack"]
        return one.status, " ".join(one.message.split())

    assert accounted()[0] == "fail"
    assert project.rows("cq_acknowledged") == []
    batch, commit = {"batches": 1, **incident}, {"snapshot": erased[0], **incident}
    assert accounted(batch)[0] == accounted(commit)[0] == "fail"
    assert accounted(batch, commit)[0] == "pass"
    listed = project.rows("cq_acknowledged")
    assert [(row["test"], row["first_batch"], row["snapshot_id"]) for row in listed] == [
        ("batches_complete", 1, None),
        ("no_cursor_ties", 1, None),
        ("batches_complete", None, erased[0]),
        ("no_cursor_ties", None, erased[0]),
    ]
    assert {(row["acknowledged_by"], row["acknowledged_on"], row["reason"]) for row in listed} == {
        ("ada", "2025-03-01", "it's a customer's right")
    }
    nobody = {name: value for name, value in batch.items() if name != "who"}
    for wrong, said in (
        (nobody, "lacks `who`"),
        ({**batch, "batches": [1, 7]}, "is about batch 7, which does not exist yet"),
        (incident, "needs either `batches`, as a number or [first, last], or a `snapshot`"),
    ):
        status, message = accounted(wrong)
        assert (status, said in message) == ("error", True), message
