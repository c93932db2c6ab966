"""A loader runs while dbt builds and tests: each sees whole batches, and no test flakes."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession

from tests.crash import shop
from tests.crash.workers import Worker
from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

BUILDS = 2
MODEL = """
{{ config(materialized='deduped_latest', primary_key='id', cursor_field='at') }}
select * from {{ source('shop', 'orders') }}
"""
RAW_TESTS = ["inclusive_cursor", "state_not_ahead", "batches_accounted"]


def _dbt(spark: SparkSession, folder: Path, project: Project) -> DbtProject:
    dbt = DbtProject(spark, folder, schema=f"mart_{project.schema}", raw_schema=project.schema)
    key = {"primary_key": "id", "cursor_field": "at"}
    table = {
        "name": "orders",
        "config": {"meta": {"strandline": key}},
        "data_tests": [f"strandline.{name}" for name in RAW_TESTS],
    }
    model = {
        "name": "orders",
        "data_tests": [
            {"strandline.unique_key": {"arguments": {"primary_key": "id"}}},
            "strandline.latest_matches_raw",
        ],
    }
    dbt.write("models/orders.sql", MODEL)
    dbt.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": project.schema, "tables": [table]}],
            "models": [model],
        },
    )
    return dbt


def test_builds_and_tests_beside_a_running_loader(
    project: Project, postgres_database: Database, worker: Worker, tmp_path: Path
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    dbt = _dbt(project.spark, tmp_path / "dbt", project)
    enough = threading.Event()
    codes: list[int] = []

    def load() -> None:
        while not enough.is_set():
            number = 1000 + len(codes)
            postgres_database.execute(
                f"insert into orders values ({number}, 'new', clock_timestamp())",
                f"update orders set note = 'changed {number}', at = clock_timestamp() "
                f"where id = {number % shop.FIRST}",
            )
            worker.start(project, "run")
            codes.append(worker.ended().code)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        manifest = dbt.parse()
        heads = []
        for _ in range(BUILDS):
            results = dbt.run("build", manifest=manifest)
            # the last is said of exposures
            assert {r.status for r in results.values()} <= {"success", "pass", "no-op"}, results
            heads += [
                row["b"]
                for row in project.spark.sql(
                    f"select max(_cq_batch) as b from {dbt.schema}.orders"
                ).collect()
            ]
    finally:
        enough.set()
        loader.join()
    assert set(codes) == {0}
    assert heads == sorted(heads)
    assert heads[-1] > heads[0], "no batch came while dbt ran"
    dbt.run("build", manifest=manifest)
    snapshot = dbt.rows("orders")
    expected = postgres_database.query("select id, note from orders order by id")
    assert sorted((row["id"], row["note"]) for row in snapshot) == expected
