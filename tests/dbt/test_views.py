"""In a catalog with views, models find the raw table behind staging views, also with --defer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import SESSION, DbtProject
from tests.dbt.rawtables import RawSchema
from tests.services import Database

COLUMNS = "id int, cursor int, status string"
STAGED = (
    "{{ config(materialized='view') }}\n"
    "select id, cursor, %s as state, _cq_source_name, _cq_sync_time, _cq_batch, _cq_seq, "
    "_cq_row_hash, _cq_deleted, _cq_generation from {{ source('shop', 'orders') }}"
)


@pytest.fixture
def catalog(
    spark: SparkSession, postgres_database: Database, tmp_path: Path
) -> Iterator[SparkSession]:
    """Switches the session to an Iceberg catalog in PostgreSQL, which supports views."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": postgres_database.url,
        ".jdbc.user": postgres_database.user,
        ".jdbc.password": postgres_database.password,
        ".jdbc.schema-version": "V1",
        ".warehouse": str(tmp_path),
        ".cache-enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.with_views{name}", value)
    before = spark.catalog.currentCatalog()
    spark.catalog.setCurrentCatalog("with_views")
    yield spark
    spark.catalog.setCurrentCatalog(before)


def test_views(catalog: SparkSession, tmp_path: Path) -> None:
    """A view's SELECT counts as the model's: if it changes, the model is rebuilt or refused."""
    raw = RawSchema(catalog, "raw_views")
    project = DbtProject(catalog, tmp_path / "project", schema="marts", raw_schema="raw_views")
    outputs = {target: {**SESSION, "schema": target} for target in ("prod", "dev")}
    project.write("profiles.yml", {"probe_profile": {"target": "prod", "outputs": outputs}})
    project.write(
        "models/schema.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "orders"}]}],
            "models": [{"name": "orders", "data_tests": ["strandline.matches_raw"]}],
        },
    )

    def describe(text: str) -> None:
        """Writes the description of the view's key, which dbt stores in the view."""
        persisted = {"persist_docs": {"relation": True, "columns": True}}
        columns = [{"name": "id", "description": text}]
        model = {"name": "stg_orders", "description": text, "config": persisted, "columns": columns}
        project.write("models/staging.yml", {"models": [model]})

    describe("the customer's key (as of now)\nAS uuid()")
    project.write(
        "models/orders.sql",
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'cursor'}}) }}\n"
        "select * from {{ ref('stg_orders') }}",
    )
    project.write("models/stg_orders.sql", STAGED % "status")
    project.artifacts = True
    raw.create("orders", COLUMNS)

    def build(*command: str) -> str:
        results = project.run(*(command or ("build",)))
        assert {one.status for one in results.values()} <= {"success", "pass"}, results
        return results["orders"].message

    def states(schema: str) -> dict[int, Any]:
        return {one["id"]: one["state"] for one in project.rows(f"{schema}.orders")}

    raw.append("orders", 1, [{"id": 1, "cursor": 1, "status": "open"}])
    assert build() == "REBUILD to batch 1"
    raw.append("orders", 2, [{"id": 1, "cursor": 2, "status": "shut"}])
    assert build() == "MERGE to batch 2"
    assert states("prod") == {1: "shut"}
    # a changed SELECT of the view causes a rebuild
    project.write("models/stg_orders.sql", STAGED % "upper(status)")
    assert build() == "REBUILD to batch 2"
    assert states("prod") == {1: "SHUT"}
    describe("now() the customer's key")
    assert build() == "NO NEW BATCH"

    project.write("models/stg_orders.sql", STAGED % "if(now() is null, '', status)")
    told = project.run("build", "--select", "+orders")["orders"].message
    assert "in a view that it reads: its SELECT contains `now(`" in " ".join(told.split())
    project.write("models/stg_orders.sql", STAGED % "upper(status)")
    project.run("run", "--select", "stg_orders")

    # dbt-spark clones Delta tables only, and says so
    target = project.folder / "target"
    target.rename(project.folder / "prod")
    state = ("--state", str(project.folder / "prod"), "--target", "dev")
    assert "'delta'" in project.run("clone", *state)["orders"].message
    # a latest table in dev over the view in prod
    raw.append("orders", 3, [{"id": 2, "cursor": 3, "status": "open"}])
    defer = ("--defer", "--favor-state")
    assert build("build", "--select", "orders", *defer, *state) == "REBUILD to batch 3"
    assert states("dev") == {1: "SHUT", 2: "OPEN"}

    # a source that is a view is refused: it may leave out rows of the raw table
    living = f"select * from {raw.schema}.orders where not _cq_deleted"
    catalog.sql(f"create view {raw.schema}.living as {living}")
    project.write(
        "models/hidden.yml",
        {"sources": [{"name": "v", "schema": raw.schema, "tables": [{"name": "living"}]}]},
    )
    project.write(
        "models/of_view.sql",
        "{{ config(materialized='deduped_latest', unique_key='id') }}\n"
        "select * from {{ source('v', 'living') }}",
    )
    told = project.run("build", "--select", "of_view")["of_view"].message
    assert "its source raw_views.living is a view or not an Iceberg table" in told
