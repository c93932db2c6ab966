"""dbt features on the generic tests: `where`, `--empty`, `--defer`, disabled models, odd names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, sync_time

OF_ROWS = (
    "cursor_conflict",
    "cursor_not_null",
    "duplicate_in_batch",
    "exact_redelivery",
    "no_cursor_regression",
    "no_future_cursor",
    "redelivered_at_boundary",
    "unique_key",
)
OF_TABLES = ("batches_accounted", "inclusive_cursor", "state_not_ahead", "state_not_behind")
MODEL = """
{{{{ config(materialized='deduped_latest', primary_key={key}, cursor_field='at') }}}}
select * from {{{{ source('shop', '{table}') }}}}
"""
# odd names for a key; names that our SQL uses itself
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
            {f"strandline.{test}": {"name": f"{test}_{name}", "config": config}}
            for test in (*OF_ROWS[:-1], *OF_TABLES)
        ]

    settings = {"primary_key": "id", "cursor_field": "at"}
    odd_settings = {"primary_key": list(KEYS), "cursor_field": "at"}
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
    where = {"name": "unique_where", "config": {"where": "id = 1"}}
    unique = [{"strandline.unique_key": {"name": "unique"}}, {"strandline.unique_key": where}]
    model = {"name": "orders_latest", "data_tests": unique}
    project.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": tables}],
            "models": [model, {"name": "OddLatest", "data_tests": ["strandline.unique_key"]}],
        },
    )
    project.write("models/orders_latest.sql", MODEL.format(key="'id'", table="orders"))
    project.write("models/OddLatest.sql", MODEL.format(key=list(KEYS), table="odd"))
    return project


def test_where_narrows_what_judges_rows_and_is_refused_by_what_judges_tables(
    shop: DbtProject,
) -> None:
    models = ["orders_latest", "OddLatest"]
    built = shop.run("run", "--select", *models)
    assert {one.status for one in built.values()} == {"success"}, built
    results = shop.run("test", "--select", "source:shop", *models)
    assert results["exact_redelivery_orders"].status == "warn"
    wrong = {
        name: (one.status, one.message)
        for name, one in results.items()
        if one.status not in ("pass", "success") and not name.endswith("_where")
    }
    assert set(wrong) == {"exact_redelivery_orders"}, wrong
    for test in OF_ROWS[:-1]:
        assert results[f"{test}_where"].status == "pass", results[f"{test}_where"].message
    assert results["unique_where"].status == "pass"
    for test in OF_TABLES:
        told = results[f"{test}_where"]
        assert told.status == "error"
        assert f"Test {test} on {shop.raw_schema}.orders judges the whole table" in told.message
        assert "Remove `where` from its config" in " ".join(told.message.split())


def test_nothing_is_judged_of_empty_models(shop: DbtProject) -> None:
    chosen = ["package:strandline", "source:shop", "unique", "unique_where"]
    results = shop.run("build", "--empty", "--select", *chosen)
    assert {one.status for one in results.values()} == {"success", "pass"}, {
        name: one.message for name, one in results.items() if one.status not in ("success", "pass")
    }
    assert shop.rows("cq_duplicates") == []


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
            *("test", "--select", "orders_latest", "--defer", "--state", str(state)),
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
    results = project.run("build")
    assert {name: one.status for name, one in results.items()} == {
        "strandline_source_state_monotonic_strandline__cq_state_": "pass"
    }


@pytest.mark.parametrize(
    ("type", "lacks"),
    [
        ("duckdb", "is of type duckdb: dbt-duckdb has neither"),
        ("databricks", "Databricks' own tables have no such metadata tables"),
    ],
)
def test_another_adapter_is_refused(shop: DbtProject, type: str, lacks: str) -> None:
    from dbt.cli.main import dbtRunner

    told: list[str] = []
    folder = str(shop.folder)
    outcome = dbtRunner(callbacks=[lambda event: told.append(event.info.msg)]).invoke(
        [
            *("run-operation", "strandline.check_adapter", "--args", json.dumps({"type": type})),
            *("--project-dir", folder, "--profiles-dir", folder),
            *("--log-path", f"{folder}/logs", "--target-path", f"{folder}/target", "--quiet"),
        ]
    )
    assert not outcome.success
    assert "needs dbt-spark and Apache Iceberg" in " ".join(told)
    assert lacks in " ".join(told)
