"""The package works over a Spark Thrift server, as BI tools and dbt Cloud use it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

MODEL = """
{{{{ config(materialized='{materialized}', unique_key='id',
    meta={{'strandline': {{'cursor_field': 'updated_at'}}}}) }}}}
select * from {{{{ source('shop', 'orders') }}}}
"""
AT_BOUNDARY = {"strandline.no_duplicates": {"arguments": {"kinds": "at_boundary"}}}
ROW_TESTS = [
    *(f"strandline.{test}" for test in ("no_cursor_ties", "cursor_plausible", "no_duplicates")),
    AT_BOUNDARY,
]


@pytest.fixture(scope="module")
def port(spark: SparkSession) -> Iterator[int]:
    """Starts a Thrift server on the suite's own Spark; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    jvm: Any = spark._jvm
    spark.conf.set("hive.server2.thrift.port", str(number))
    spark.conf.set("hive.server2.thrift.bind.host", "127.0.0.1")
    # PyHive, and most clients of HiveServer2, begin with `use default`
    spark.sql("create namespace if not exists default")
    server = jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2.startWithContext(
        spark._jsparkSession.sqlContext()
    )
    yield number
    server.stop()


def test_builds_over_thrift(spark: SparkSession, raw: RawSchema, port: int, tmp_path: Path) -> None:
    """Builds and tests all models, then builds them again with a new batch."""
    thrift = {"type": "spark", "method": "thrift", "host": "127.0.0.1", "port": port, "threads": 2}
    project = DbtProject(
        spark,
        tmp_path,
        name="dashboards",
        schema="dashboards",
        raw_schema=raw.schema,
        output=thrift,
        settings={"data_tests": {"+store_failures": True}},
    )
    raw.create("orders", "id int, updated_at timestamp, note string")
    for model in ("latest", "history"):
        text = MODEL.format(materialized=f"deduped_{model}")
        project.write(f"models/orders_{model}.sql", text)
    key = {"unique_key": "id", "cursor_field": "updated_at"}
    orders = {
        "name": "orders",
        "config": {"meta": {"strandline": key}},
        "data_tests": ROW_TESTS,
    }
    proofs = ["strandline.unique_key", "strandline.matches_raw"]
    project.write(
        "models/shop.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": [orders]}],
            "models": [
                {"name": "orders_latest", "data_tests": [*proofs, *ROW_TESTS]},
                {"name": "orders_history", "data_tests": proofs},
            ],
        },
    )
    at = raw.spark.sql("select timestamp '2025-01-01 12:00:00' as at").first()["at"]
    text = "2025-01-01 12:00:00"
    raw.append("orders", 1, [{"id": n, "updated_at": at, "note": "it's 🌊"} for n in (1, 2)])
    raw.append("orders", 2, [{"id": 1, "updated_at": at, "note": None, "_deleted": True}])
    state = {"cursor": text, "cursor_field": "updated_at", "cursor_type": "timestamptz"}
    raw.states("orders", [(1, {"batch": 1, **state}), (2, {"batch": 2, **state})])
    window = {"cursor_field": "updated_at", "cursor_high": text}
    raw.syncs(
        "orders",
        [
            {"batch": 1, "rows_appended": 2, **window},
            {"batch": 2, "rows_appended": 1, "cursor_low": text, **window},
        ],
    )
    results = project.run("build", "--exclude", "resource_type:exposure")
    assert {one.status for one in results.values()} == {"success", "pass"}, {
        name: (one.status, one.message[:800])
        for name, one in results.items()
        if one.status not in ("success", "pass")
    }
    assert [row["id"] for row in project.rows("orders_latest")] == [2]
    assert {row["id"]: row["is_current"] for row in project.rows("orders_history")} == {
        1: False,
        2: True,
    }
    raw.append("orders", 3, [{"id": 3, "updated_at": at, "note": "new"}])
    results = project.run("run")
    assert {results[f"orders_{kind}"].status for kind in ("latest", "history")} == {"success"}
    assert sorted(row["id"] for row in project.rows("orders_latest")) == [2, 3]
    assert len(project.rows("orders_history")) == 3
