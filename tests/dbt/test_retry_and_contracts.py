"""`dbt retry` completes a failed build, and merges keep the contract of a model."""

from __future__ import annotations

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

COLUMNS = {
    "id": "int",
    "cursor": "int",
    "payload": "string",
    "_cq_batch": "bigint",
    "_cq_seq": "bigint",
    "_cq_generation": "bigint",
    "_cq_deleted": "boolean",
    "_cq_row_hash": "bigint",
    "_cq_sync_time": "timestamp",
}
SNAPSHOT = """
{{{{ config(
    materialized='deduped_latest',
    unique_key='id',
    meta={{'strandline': {{'cursor_field': 'cursor'}}}},
    {more}
) }}}}
select {columns} from {{{{ source('shop', '{table}') }}}}
"""
SEEN = """
{{ config(materialized='table', file_format='iceberg') }}
select * from {{ ref('orders') }}
"""
# The build fails because a table is missing: a changed variable would make dbt parse again.
DIES = "post_hook='select * from ' ~ target.schema ~ '.killed'"


def _describe_contract(payload: str) -> dict[str, object]:
    types = {**COLUMNS, "payload": payload}
    return {
        "config": {"contract": {"enforced": True}},
        "columns": [{"name": name, "data_type": type_} for name, type_ in types.items()],
    }


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> DbtProject:
    """A latest table that can fail, a model of it, and two latest tables with a contract."""
    for table in ("orders", "agreed"):
        raw.create(table, "id int, cursor int, payload string")
        raw.append(table, 1, [{"id": n, "cursor": 1, "payload": "x"} for n in (1, 2)])
    project.write("models/orders.sql", SNAPSHOT.format(more=DIES, columns="*", table="orders"))
    project.write("models/orders_seen.sql", SEEN)
    for name in ("agreed", "broken"):
        columns = ", ".join(COLUMNS)
        project.write(
            f"models/{name}.sql", SNAPSHOT.format(more="", columns=columns, table="agreed")
        )
    tables = [{"name": "orders"}, {"name": "agreed"}]
    project.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": tables}],
            "models": [
                {"name": "agreed", **_describe_contract("string")},
                {"name": "broken", **_describe_contract("int")},
            ],
        },
    )
    project.artifacts = True
    return project


def test_dbt_retry_completes_a_failed_build(shop: DbtProject, raw: RawSchema) -> None:
    for batch in (1, 2):
        if batch > 1:
            raw.append("orders", batch, [{"id": 2, "cursor": batch, "payload": "newer"}])
        shop.spark.sql(f"drop table if exists {shop.schema}.killed")
        broken = shop.run("run", "--select", "orders+")
        assert {name: one.status for name, one in broken.items()} == {
            "orders": "error",
            "orders_seen": "skipped",
        }
        assert "killed" in broken["orders"].message
        shop.spark.sql(f"create table {shop.schema}.killed (id int) using iceberg")
        retried = shop.run("retry")
        assert {name: one.status for name, one in retried.items()} == {
            "orders": "success",
            "orders_seen": "success",
        }
        newest = {1: "x", 2: "x" if batch == 1 else "newer"}
        assert {row["id"]: row["payload"] for row in shop.rows("orders_seen")} == newest


def test_a_contract_holds_through_merges(shop: DbtProject, raw: RawSchema) -> None:
    broken = shop.run("run", "--select", "broken")["broken"]
    assert broken.status == "error"
    assert "This model has an enforced contract that failed" in broken.message
    assert shop.run("run", "--select", "agreed")["agreed"].message == "REBUILD to batch 1"
    raw.append("agreed", 2, [{"id": 3, "cursor": 2, "payload": "new"}])
    assert shop.run("run", "--select", "agreed")["agreed"].message == "MERGE to batch 2"
    described = shop.spark.sql(f"describe table {shop.schema}.agreed").collect()
    assert {row[0]: row[1] for row in described} == COLUMNS
    assert {row["id"] for row in shop.rows("agreed")} == {1, 2, 3}
