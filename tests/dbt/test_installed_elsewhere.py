"""The package in a project with its own names, starting from a fresh catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from dbt_common.exceptions import DbtBaseException
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import SESSION, DbtProject
from tests.dbt.rawtables import RawSchema

GENERATE_SCHEMA_NAME = """
{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ "mart_" ~ (custom_schema_name or target.schema) }}
{%- endmacro %}
"""
# the demo's own names, to see that none of them collides with a user's
MODEL = """
{{ config(materialized='deduped_latest', primary_key='id', cursor_field='updated_at') }}
select * from {{ source('shop', 'orders') }}
"""


@pytest.fixture(scope="module")
def foreign(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DbtProject:
    """Another project, profile, schema, variables and naming; its namespaces do not exist yet."""
    folder = tmp_path_factory.mktemp("foreign")
    project = DbtProject(
        spark,
        folder,
        name="acme",
        schema="acme",
        raw_schema="landing",
        settings={
            "vars": {
                "strandline__raw_schema": "landing",
                "strandline__state_table": "cursors",
                "strandline__syncs_table": "ledger",
            },
            "data_tests": {"+store_failures": True},
        },
    )
    project.write("macros/generate_schema_name.sql", GENERATE_SCHEMA_NAME)
    return project


def test_says_what_the_project_lacks(spark: SparkSession, tmp_path: Path) -> None:
    """Without the dispatch entry a fresh catalog would fail somewhere in dbt-spark."""
    bare = DbtProject(
        spark, tmp_path, name="bare", schema="bare", raw_schema="raw", settings={"dispatch": []}
    )
    with pytest.raises(DbtBaseException, match=r"search_order: \[bare, strandline, dbt\]"):
        bare.parse()


def test_refuses_a_relative_warehouse(spark: SparkSession, tmp_path: Path) -> None:
    """Tables would store it: a process started in another folder would look for them there."""
    spark.sql("show schemas")  # the session's catalog keeps the warehouse that it started with
    setting = "spark.sql.catalog.lake.warehouse"
    before = spark.conf.get(setting)
    output = {**SESSION, "server_side_parameters": {setting: "./warehouse"}}
    project = DbtProject(spark, tmp_path, schema="nowhere", raw_schema="raw", output=output)
    try:
        with pytest.raises(DbtBaseException, match=r"the warehouse \./warehouse \(spark\.sql\."):
            project.run("run", "--select", "cq_sync_log")
    finally:
        spark.conf.set(setting, before)


def test_takes_a_warehouse_whose_path_looks_like_a_secret(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark shows stars in its place, which are no relative path."""
    spark.sql("show schemas")  # the session's catalog keeps the warehouse that it started with
    setting = "spark.sql.catalog.lake.warehouse"
    before = spark.conf.get(setting)
    output = {**SESSION, "server_side_parameters": {setting: str(tmp_path / "token-service")}}
    project = DbtProject(spark, tmp_path, schema="analytics", raw_schema="raw", output=output)
    try:
        project.run("run", "--select", "cq_sync_log")
        assert "redacted" in spark.sql(f"set {setting}").collect()[0][1]
    finally:
        spark.conf.set(setting, before)


@pytest.mark.parametrize("command", ["build", "compile", "test"])
def test_a_warehouse_that_is_not_there_yet_is_made(
    spark: SparkSession, tmp_path: Path, command: str
) -> None:
    """As after `loader init`, before the first `loader run`."""
    catalog = f"not_yet_{command}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path / "warehouse"),
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    before = spark.catalog.currentCatalog()
    spark.catalog.setCurrentCatalog(catalog)
    try:
        project = DbtProject(spark, tmp_path / "dbt", schema="analytics", raw_schema="raw")
        done = project.run(command, "--select", "package:strandline")
    finally:
        spark.catalog.setCurrentCatalog(before)
    if command != "test":  # of models that are not there
        assert {one.status for one in done.values()} <= {"success", "pass"}, done
    assert "NoSuchNamespace" not in str({name: one.message for name, one in done.items()})
    built = tmp_path / "warehouse" / "analytics" / "cq_sync_log"
    assert built.is_dir() == (command == "build")


def test_a_project_has_its_own_way_of_a_test(spark: SparkSession, tmp_path: Path) -> None:
    """The root project's macro comes before the package's, as in dbt-utils."""
    project = DbtProject(spark, tmp_path, name="own", schema="own", raw_schema="raw")
    project.write("models/one.sql", "select 1 as id")
    test = {"strandline.unique_key": {"name": "one_key", "arguments": {"primary_key": "id"}}}
    project.write("models/one.yml", {"models": [{"name": "one", "data_tests": [test]}]})
    project.write(
        "macros/unique_key.sql",
        "{% macro spark__test_unique_key(model, primary_key, row_condition) %}"
        "select '{{ primary_key }}' as judged_by_us"
        "{% endmacro %}",
    )
    judged = project.run("test", "--select", "one_key")["one_key"]
    assert project.failing_rows(judged) == [{"judged_by_us": "id"}]


def test_builds_on_a_fresh_catalog(foreign: DbtProject) -> None:
    """Nothing was synced yet: empty tables, passing tests, nothing of the demo."""
    results = foreign.run("build", "--select", "package:strandline")
    assert {one.status for one in results.values()} == {"success", "pass"}, results
    models = {name for name, one in results.items() if one.status == "success"}
    assert models == {
        *("cq_state_current", "cq_sync_log", "cq_duplicates", "cq_freshness", "cq_acknowledged"),
    }
    assert foreign.rows("mart_acme.cq_state_current") == []
    assert foreign.rows("mart_acme.cq_sync_log") == []
    assert foreign.rows("mart_acme.cq_duplicates") == []


def test_builds_with_data(foreign: DbtProject, spark: SparkSession) -> None:
    """Snapshot, models and all tests under the project's own names, failures stored."""
    raw = RawSchema(spark, "landing", state_table="cursors", syncs_table="ledger")
    raw.create("orders", "id int, updated_at int, payload string")
    rows = [{"id": key, "updated_at": 1, "payload": "x"} for key in (1, 2, 3)]
    raw.append("orders", 1, rows)
    raw.append("orders", 2, rows[:1])
    value = {"cursor": "1", "cursor_field": "updated_at", "cursor_type": "integer", "generation": 1}
    raw.states("orders", [(1, {"batch": 1, **value}), (2, {"batch": 2, **value})])
    window = {"cursor_field": "updated_at", "cursor_high": "1"}
    raw.syncs(
        "orders",
        [
            {"batch": 1, "rows_appended": 3, **window},
            {"batch": 2, "rows_appended": 1, "cursor_low": "1", **window},
        ],
    )
    foreign.write("models/orders.sql", MODEL)
    foreign.write("models/orders_history.sql", MODEL.replace("deduped_latest", "deduped_history"))
    tests = ["cursor_conflict", "exact_redelivery", "inclusive_cursor"]
    tests += ["state_not_ahead", "state_not_behind", "batches_accounted", "duplicate_in_batch"]
    tests += ["redelivered_at_boundary", "no_cursor_regression", "cursor_not_null"]
    key = {"primary_key": "id", "cursor_field": "updated_at"}
    foreign.write(
        "models/shop.yml",
        {
            "sources": [
                {
                    "name": "shop",
                    "schema": "landing",
                    "tables": [
                        {
                            "name": "orders",
                            "config": {"meta": {"strandline": key}},
                            "data_tests": [f"strandline.{test}" for test in tests],
                        }
                    ],
                }
            ],
            "models": [
                {
                    "name": "orders",
                    "config": {"schema": "sales"},
                    "data_tests": [
                        "strandline.unique_key",
                        {
                            "strandline.latest_matches_raw": {
                                "arguments": {"raw": "source('shop', 'orders')"}
                            }
                        },
                    ],
                }
            ],
        },
    )
    chosen = ["orders", "orders_history", "source:*", "package:strandline"]
    results = foreign.run("build", "--select", *chosen)
    statuses = {name: one.status for name, one in results.items()}
    warned = {name for name, status in statuses.items() if status == "warn"}
    assert warned == {"strandline_source_exact_redelivery_shop_orders_"}, statuses
    assert set(statuses.values()) == {"success", "pass", "warn"}, statuses
    assert len(foreign.rows("mart_sales.orders")) == 3
    (duplicates,) = foreign.rows("mart_acme.cq_duplicates")
    assert (duplicates["raw_rows"], duplicates["raw_keys"]) == (4, 3)
    assert (duplicates["redelivered_rows"], duplicates["versions"]) == (1, 3)
    (state,) = foreign.rows("mart_acme.cq_state_current")
    assert (state["table_name"], state["version"], state["batch"]) == ("orders", 2, 2)
    assert len(foreign.rows("mart_acme.cq_sync_log")) == 2
    (freshness,) = foreign.rows("mart_acme.cq_freshness")
    assert (freshness["last_batch"], freshness["last_status"]) == (2, "synced")
    assert (freshness["cursor"], freshness["cursor_lag_seconds"]) == ("1", None)
