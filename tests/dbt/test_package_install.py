"""The package works from a git tag, on an empty catalog, and in a project with its own names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.gitpackage import write_git_package
from tests.dbt.rawtables import RawSchema

GENERATE_SCHEMA_NAME = """
{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ "mart_" ~ (custom_schema_name or target.schema) }}
{%- endmacro %}
"""
MODEL = """
{{ config(
    materialized='deduped_latest',
    unique_key='id',
    meta={'strandline': {'cursor_field': 'updated_at'}}
) }}
select * from {{ source('shop', 'orders') }}
"""


@pytest.fixture(scope="module")
def foreign(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DbtProject:
    """A project with its own profile, variables and schema names, which do not exist yet."""
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
            "models": {
                "strandline": {
                    "cq_duplicates": {"+enabled": True},
                    "cq_acknowledged": {"+enabled": True},
                }
            },
        },
    )
    project.write("macros/generate_schema_name.sql", GENERATE_SCHEMA_NAME)
    return project


@pytest.fixture(scope="module")
def bare(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DbtProject:
    """A project that installs the package from a git tag, and has no other setting for it."""
    folder = tmp_path_factory.mktemp("bare")
    repository, tag = write_git_package(folder / "strandline.git")
    project = DbtProject(
        spark,
        folder / "project",
        name="bare",
        schema="bare",
        raw_schema="raw_bare",
        settings={"dispatch": [], "vars": {"strandline__raw_schema": "raw_bare"}},
    )
    install = {"packages": [{"git": str(repository), "revision": tag}]}
    project.write("packages.yml", install)
    raw = RawSchema(spark, "raw_bare")
    raw.create("orders", "id int, updated_at int, payload string")
    rows = [{"id": key, "updated_at": 1, "payload": "x"} for key in (1, 2, 3)]
    raw.append("orders", 1, rows)
    raw.states("orders", [(1, stored_state("1", batch=1))])
    raw.syncs("orders", [{"batch": 1, "rows_appended": 3, **WINDOW}])
    project.write("models/orders.sql", MODEL)
    key = {"unique_key": "id", "cursor_field": "updated_at"}
    orders = {"name": "orders", "config": {"meta": {"strandline": key}}}
    project.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": "raw_bare", "tables": [orders]}],
            "models": [
                {
                    "name": "orders",
                    "data_tests": ["strandline.matches_raw", "strandline.no_cursor_ties"],
                }
            ],
        },
    )
    return project


WINDOW = {"cursor_field": "updated_at", "cursor_type": "integer", "cursor_high": "1"}


def stored_state(cursor: str, batch: int) -> dict[str, Any]:
    """Returns the state that the loader stores for an integer cursor."""
    kind = {"cursor_field": "updated_at", "cursor_type": "integer", "generation": 1}
    return {"cursor": cursor, "batch": batch, **kind}


def test_a_bare_project(bare: DbtProject) -> None:
    """The package parses, compiles, builds and documents without a dispatch entry."""
    bare.parse()
    for command in ("compile", "build"):
        done = bare.run(command)
        assert {one.status for one in done.values()} <= {"success", "pass"}, done
        bare.artifacts = True
        bare.document()
        bare.artifacts = False
    assert not (bare.folder / "dbt_packages" / "strandline").is_symlink()
    assert (bare.folder / "target" / "catalog.json").is_file()


def test_a_role_that_may_only_read(bare: DbtProject) -> None:
    """Tests write neither tables nor properties, so a role that may only read can run them."""
    bare.run("build")
    tested = bare.run("test", "--select", "tag:strandline")
    assert {one.status for one in tested.values()} == {"pass"}, tested
    assert len(tested) >= 6
    words = {STATEMENT.sub("", one).split()[0].lower() for one in bare.asked}
    assert words <= {"select", "with", "show", "set", "describe"}, words


STATEMENT = re.compile(r"^(\s|/\*.*?\*/|--[^\n]*\n)*", re.DOTALL)
"""Matches the comments and spaces before a statement's first word."""


@pytest.mark.parametrize("command", ["compile", "test"])
def test_a_warehouse_that_does_not_exist_yet(
    spark: SparkSession, tmp_path: Path, command: str
) -> None:
    """The state after `loader init` and before the first `loader run`."""
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
    if command != "test":  # the models of these tests were not built
        assert {one.status for one in done.values()} <= {"success", "pass"}, done
    assert "NoSuchNamespace" not in str({name: one.message for name, one in done.items()})
    assert not (tmp_path / "warehouse").exists()


def test_builds_on_a_fresh_catalog(foreign: DbtProject) -> None:
    """Before the first sync, models are empty, tests pass, and no model of the demo is built."""
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
    """Models and all tests work with the project's own names and with stored failures."""
    raw = RawSchema(spark, "landing", state_table="cursors", syncs_table="ledger")
    raw.create("orders", "id int, updated_at int, payload string")
    rows = [{"id": key, "updated_at": 1, "payload": "x"} for key in (1, 2, 3)]
    raw.append("orders", 1, rows)
    raw.append("orders", 2, rows[:1])
    raw.states("orders", [(batch, stored_state("1", batch)) for batch in (1, 2)])
    raw.syncs(
        "orders",
        [
            {"batch": 1, "rows_appended": 3, **WINDOW},
            {"batch": 2, "rows_appended": 1, "cursor_low": "1", **WINDOW},
        ],
    )
    foreign.write("models/orders.sql", MODEL)
    foreign.write("models/orders_history.sql", MODEL.replace("deduped_latest", "deduped_history"))
    tests = ["no_cursor_ties", "cursor_plausible", "no_duplicates"]
    key = {"unique_key": "id", "cursor_field": "updated_at"}
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
                        "strandline.matches_raw",
                    ],
                }
            ],
        },
    )
    chosen = ["orders", "orders_history", "source:*", "package:strandline"]
    results = foreign.run("build", "--select", *chosen)
    statuses = {name: one.status for name, one in results.items()}
    warned = {name for name, status in statuses.items() if status == "warn"}
    assert warned == {"strandline_source_no_duplicates_shop_orders_"}, statuses
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
