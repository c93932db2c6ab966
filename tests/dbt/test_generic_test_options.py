"""Generic tests with `where`, `--empty`, `--defer`, disabled models and names that need quotes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, sync_time

OF_ROWS = ("no_cursor_ties", "no_duplicates", "cursor_plausible")
OF_TABLES = ("batches_complete", "inclusive_cursor", "state_consistent")
RECORDS = {
    "batches_complete": "_cq_syncs",
    "inclusive_cursor": "_cq_syncs",
    "state_consistent": "_cq_state",
}
"""The tests that cover all raw tables, with the loader's table to which each is attached."""
MODEL = """
{{{{ config(
    materialized='deduped_latest', unique_key={key}, meta={{'strandline': {{'cursor_field': 'at'}}}}
) }}}}
select * from {{{{ source('shop', '{table}') }}}}
"""
# names of key columns that the package's SQL uses itself or that need quotes
KEYS = ("since", "place", "cursor", "batch", "value", "version", "newest", "Key of it", "order")


def _row(key: int, day: int, **more: Any) -> dict[str, Any]:
    return {"id": key, "at": sync_time(day), **more}


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> DbtProject:
    """Two batches, the second a redelivery; tests with and without a `where`."""
    raw.create("orders", "id int, at timestamp")
    raw.append("orders", 1, [_row(1, 1), _row(2, 1)])
    raw.append("orders", 2, [_row(2, 1)])
    raw.create("`Odd Ones`", ", ".join(f"`{name}` int" for name in KEYS) + ", at timestamp")
    odd: dict[str, Any] = dict.fromkeys(KEYS, 1)
    raw.append("`Odd Ones`", 1, [{**odd, "at": sync_time(1)}])
    state = {"batch": 2, "cursor": "2025-01-02 00:00:00", "cursor_field": "at"}
    raw.states("orders", [(1, {**state, "cursor_type": "timestamptz", "generation": 1})])
    raw.states("Odd Ones", [(1, {**state, "batch": 1, "generation": 1})])
    window = {"cursor_field": "at", "cursor_high": "2025-01-02 00:00:00"}
    raw.syncs("orders", [{"batch": n, "rows_appended": 3 - n, **window} for n in (1, 2)])
    raw.syncs("Odd Ones", [{"batch": 1, "rows_appended": 1, **window}])

    def tests(name: str, **config: str) -> list[Any]:
        return [
            {f"strandline.{test}": {"name": f"{test}_{name}", "config": config}} for test in OF_ROWS
        ]

    settings = {"unique_key": "id", "cursor_field": "at"}
    odd_settings = {"unique_key": list(KEYS), "cursor_field": "at"}
    whole = {"identifier": "Odd Ones", "quoting": {"identifier": True}}
    tables: list[dict[str, Any]] = [
        {
            "name": "orders",
            "config": {"meta": {"strandline": settings}},
            "data_tests": [*tests("orders"), *tests("where", where="id = 1")],
        },
        {
            "name": "odd",
            **whole,
            "config": {"meta": {"strandline": odd_settings}},
            "data_tests": tests("odd"),
        },
    ]
    tables += [
        {
            "name": records,
            "data_tests": [
                {
                    f"strandline.{test}": {
                        "name": f"{test}_where",
                        "config": {"where": "true"},
                    }
                }
                for test, of in RECORDS.items()
                if of == records
            ],
        }
        for records in ("_cq_syncs", "_cq_state")
    ]
    where = {"name": "unique_where", "config": {"where": "id = 1"}}
    unique = [{"strandline.unique_key": {"name": "unique"}}, {"strandline.unique_key": where}]
    of_model = [
        {
            f"strandline.{test}": {
                "name": f"{test}_of_model_{key}",
                "config": {"where": f"id = {key}"},
            }
        }
        for test in OF_ROWS
        for key in (1, 2)
    ]
    matches = {"name": "matches_where", "config": {"where": "id = 1"}}
    whole_model = [{"strandline.matches_raw": matches}]
    model = {"name": "orders_latest", "data_tests": [*unique, *of_model, *whole_model]}
    odd_model = {
        "name": "OddLatest",
        "data_tests": [f"strandline.{test}" for test in ("unique_key", "matches_raw", *OF_ROWS)],
    }
    project.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": tables}],
            "models": [model, odd_model],
        },
    )
    project.write("models/orders_latest.sql", MODEL.format(key="'id'", table="orders"))
    project.write("models/OddLatest.sql", MODEL.format(key=list(KEYS), table="odd"))
    return project


def test_where_narrows_tests_of_rows_and_is_refused_by_tests_of_tables(
    shop: DbtProject,
) -> None:
    """For a model of our materializations, `where` narrows the versions behind its rows."""
    models = ["orders_latest", "OddLatest"]
    own = ["cq_sync_log", "cq_state_current"]
    built = shop.run("run", "--select", *models, *own)
    assert {one.status for one in built.values()} == {"success"}, built
    results = shop.run("test", "--select", "source:shop", *models, *own)
    refused = {f"{test}_where" for test in OF_TABLES} | {"matches_where"}
    warned = {"no_duplicates_orders", "no_duplicates_of_model_2"}
    wrong = {name: one for name, one in results.items() if one.status not in ("pass", "success")}
    assert set(wrong) == refused | warned, wrong
    assert {wrong[name].status for name in warned} == {"warn"}
    for name in refused:
        assert wrong[name].status == "error"
        told = " ".join(wrong[name].message.split())
        assert "This test needs the whole table" in told
        assert "Remove `where`." in told
    assert {f"{test}_where" for test in OF_ROWS} < set(results)
    assert len([one for one in results.values() if one.tested == "OddLatest"]) == 5


def test_tests_of_empty_models_pass(shop: DbtProject) -> None:
    chosen = ["package:strandline", "source:shop", "unique", "unique_where"]
    results = shop.run("build", "--empty", "--select", *chosen)
    assert {one.status for one in results.values()} == {"success", "pass"}, {
        name: one.message for name, one in results.items() if one.status not in ("success", "pass")
    }
    assert shop.rows("cq_sync_log") == []
    built = shop.run("run", "--select", "cq_sync_log", "cq_state_current")
    assert {one.status for one in built.values()} == {"success"}, built
    assert len(shop.rows("cq_sync_log")) == 3


def test_deferred_to_another_target(shop: DbtProject, spark: SparkSession, tmp_path: Path) -> None:
    """Tests of a model that is built only in production find its key and its source."""
    shop.artifacts = True
    shop.run("run", "--select", "orders_latest")
    shop.artifacts = False
    state = tmp_path / "state"
    state.mkdir()
    shutil.copy(shop.folder / "target" / "manifest.json", state)
    profiles = (shop.folder / "profiles.yml").read_text()
    try:
        (shop.folder / "profiles.yml").write_text(profiles.replace(shop.schema, "elsewhere"))
        results = shop.run(
            *("test", "--select", "unique", "unique_where", "--defer", "--state", str(state)),
            *("--vars", "{strandline__prove_all: true}"),
        )
    finally:
        (shop.folder / "profiles.yml").write_text(profiles)
    assert {name: one.status for name, one in results.items()} == {
        "unique": "pass",
        "unique_where": "pass",
    }, results
    assert f"`{shop.schema}`.`orders_latest`" in results["unique"].sql


def test_the_package_without_its_models(
    spark: SparkSession, raw: RawSchema, tmp_path: Path
) -> None:
    project = DbtProject(
        spark,
        tmp_path,
        name="bare",
        schema="bare",
        raw_schema=raw.schema,
        settings={"models": {"strandline": {"+enabled": False}}},
    )
    raw.create("alone", "id int, at timestamp")
    raw.append("alone", 1, [_row(1, 1)])
    tests = ["strandline.no_cursor_ties", {"strandline.unique_key": {"name": "unique_alone"}}]
    table = {
        "name": "alone",
        "config": {"meta": {"strandline": {"unique_key": "id", "cursor_field": "at"}}},
        "data_tests": tests,
    }
    project.write(
        "models/bare.yml",
        {"sources": [{"name": "bare", "schema": raw.schema, "tables": [table]}]},
    )
    project.write(
        "models/alone.sql",
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'at'}}) }}\n"
        "select * from {{ source('bare', 'alone') }}",
    )
    project.write(
        "models/alone.yml",
        {"models": [{"name": "alone", "data_tests": ["strandline.matches_raw"]}]},
    )
    raw.syncs("alone", [{"batch": 1, "rows_appended": 1}])
    results = project.run("build")
    assert {one.status for one in results.values()} == {"pass", "success"}, results
    assert len(results) == 4
