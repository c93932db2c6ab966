"""If two sources share a raw table, models, tests and maintenance keep their rows apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.services.postgres import Postgres
from tests.sync.project import Project

STALE = """
{{{{
    config(
        materialized='deduped_{kind}',
        unique_key={key},
        meta={{'strandline': {{'cursor_field': 'c', 'delete_stale': true}}}}
    )
}}}}
select * from {{{{ source('eu', 'orders') }}}}
"""
NEWEST = """
{{ config(materialized='table', file_format='iceberg') }}
{{ strandline.newest_refresh(source('eu', 'orders')) }}
"""
MACRO = """
{{{{ config(materialized='table', file_format='iceberg') }}}}
{{{{ strandline.deduped_{kind}(source('eu', 'orders'), 'id', 'c') }}}}
"""
KEY = ["_cq_source_name", "id"]


@pytest.fixture
def shards(postgres: Postgres, project: Project) -> Iterator[dict[str, Database]]:
    """Two databases with the same tables that share a raw table, synced one after the other."""
    with postgres.database() as eu, postgres.database() as us:
        for name, database, high in (("eu", eu, 5), ("us", us, 3)):
            database.execute(
                "create table orders (id int primary key, note text, c int)",
                f"insert into orders select g, '{name}' || g, g from generate_series(1, {high}) g",
            )
            options = {"orders": {"cursor_field": "c", "shared": True}}
            project.jdbc(database, ["orders"], name, table_options=options)
        project.run("--select", "eu.*")
        project.run("--select", "us.*")
        yield {"eu": eu, "us": us}


def _latest(dbt: DbtProject, model: str) -> list[tuple[object, ...]]:
    rows = [(row["_cq_source_name"], row["id"], row["note"]) for row in dbt.rows(model)]
    return sorted(rows, key=str)


def _rows(shards: dict[str, Database]) -> list[tuple[object, ...]]:
    query = "select id, note from orders order by id"
    return [(name, *row) for name, database in shards.items() for row in database.query(query)]


def _find_failures(
    dbt: DbtProject, manifest: Any, command: str = "build"
) -> dict[str, tuple[str, int | None]]:
    built = dbt.run(command, "--exclude", "cq_freshness+", manifest=manifest)
    fine = ("success", "pass", "no-op")
    return {n: (r.status, r.failures) for n, r in built.items() if r.status not in fine}


def test_models_and_tests_of_a_shared_table(
    project: Project, dbt: DbtProject, shards: dict[str, Database], spark: SparkSession
) -> None:
    written = project.loader("codegen", "--select", "us.orders", "--history", "eu.orders")
    assert written.code == 0, written.text
    assert project.loader("codegen").warnings == []
    models = project.folder / "models" / "strandline"
    assert sorted(path.name for path in models.glob("*.sql")) == [
        "eu_orders_history.sql",
        "eu_orders_latest.sql",
    ]
    for kind in ("latest", "history"):
        dbt.write(f"models/stale_{kind}.sql", STALE.format(kind=kind, key=KEY))
    dbt.write("models/newest.sql", NEWEST)
    recently = {"strandline.reconciled_recently": {"arguments": {"tables": ["orders"]}}}
    records = {"name": "_cq_reconciled", "data_tests": [recently]}
    own = {"name": "records", "schema": project.schema, "tables": [records]}
    dbt.write("models/records.yml", {"sources": [own]})
    manifest = dbt.parse()
    [(test, outcome)] = _find_failures(dbt, manifest).items()
    assert "reconciled" in test
    assert outcome == ("warn", 1)
    assert _latest(dbt, "eu_orders_latest") == _rows(shards)

    # Rows that a full refresh of one source did not find are deleted in that source only.
    shards["us"].execute("delete from orders where id = 1")
    project.run("--full-refresh", "--select", "us.orders")
    shards["eu"].execute("update orders set note = 'new', c = 6 where id in (1, 2)")
    project.run()
    assert project.loader("reconcile", "--repair", "--allow-deletes", "--buckets", "4").code == 0
    assert _find_failures(dbt, manifest) == {}
    for model in ("eu_orders_latest", "stale_latest"):
        assert _latest(dbt, model) == _rows(shards)
    older = [("eu", 1, "eu1"), ("eu", 2, "eu2")]
    deleted = ("us", 1, None)
    assert _latest(dbt, "newest") == sorted([*_rows(shards), *older, deleted], key=str)
    history = [
        (row["_cq_source_name"], row["note"], row["is_current"])
        for row in dbt.rows("stale_history")
        if row["id"] == 1
    ]
    assert sorted(history) == [("eu", "eu1", False), ("eu", "new", True), ("us", "us1", False)]

    # Compaction keeps one version of each source's keys, and each source's newest state.
    assert project.loader("compact", "--keep-versions", "1", "--expire-days", "0").code == 0
    assert _find_failures(dbt, manifest, "test") == {}
    spark.sql(f"drop table {project.schema}._cq_state")
    ran = project.run()
    assert [ran.table(f"{name}.orders")["status"] for name in shards] == ["nothing new"] * 2
    assert _latest(dbt, "stale_latest") == _rows(shards)

    # A source's state must not be ahead of that source's own rows.
    state = project.state("eu.orders")
    ahead = json.dumps({**state, "batch": state["batch"] + 1}).replace("'", "\\'")
    spark.sql(f"insert into {project.schema}._cq_state values ('eu.orders', '{ahead}', 100, now())")
    assert state["batch"] < project.state("us.orders")["batch"]
    failed = dbt.run("test", "--select", "test_name:state_consistent")
    assert [(r.status, r.failures) for r in failed.values()] == [("fail", 1)]

    # Rows of two sources are not versions of each other.
    dbt.write("models/mixed_materialized.sql", STALE.format(kind="latest", key=["id"]))
    for kind in ("latest", "history"):
        dbt.write(f"models/mixed_{kind}.sql", MACRO.format(kind=kind))
    refused = dbt.run("run", "--select", "mixed_materialized mixed_latest mixed_history")
    assert len(refused) == 3
    for mixed in refused.values():
        assert mixed.status == "error"
        assert "the sources eu, us share" in mixed.message
        assert "Set unique_key=['_cq_source_name', 'id']" in mixed.message
