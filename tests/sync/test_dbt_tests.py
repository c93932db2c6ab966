"""The dbt tests pass on tables that the loader wrote, and fail if those are tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

MODEL = """
{{ config(
    materialized='deduped_latest', unique_key='id', meta={'strandline': {'cursor_field': 'at'}}
) }}
select * from {{ source('shop', 'orders') }}
"""
OF_ORDERS = ("matches_raw", "no_cursor_ties", "no_duplicates")
TESTS = (*OF_ORDERS, "inclusive_cursor", "state_consistent", "batches_complete")
RECORDS = ("cq_sync_log", "cq_state_current")


@pytest.fixture
def synced(project: Project, postgres_database: Database) -> Project:
    """Ten orders, synced once. Each further sync appends the three at the highest cursor again."""
    postgres_database.execute(
        "create table orders (id int primary key, at timestamptz)",
        "insert into orders select n, timestamptz '2025-01-01Z' + least(n, 8) * interval '1 hour' "
        "from generate_series(1, 10) n",
    )
    options = {"orders": {"cursor_field": "at", "redelivered_rows": "append"}}
    project.jdbc(postgres_database, ["orders"], table_options=options)
    project.run()
    return project


@pytest.fixture
def dbt(synced: Project, tmp_path: Path) -> DbtProject:
    """A dbt project with a model of the latest orders, and with every test."""
    name = synced.schema
    dbt = DbtProject(synced.spark, tmp_path / "dbt", schema=f"mart_{name}", raw_schema=name)
    table = {
        "name": "orders",
        "config": {"meta": {"strandline": {"unique_key": "id", "cursor_field": "at"}}},
    }
    model = {"name": "orders", "data_tests": [f"strandline.{test}" for test in OF_ORDERS]}
    source = {"name": "shop", "schema": name, "tables": [table]}
    dbt.write("models/shop.yml", {"sources": [source], "models": [model]})
    dbt.write("models/orders.sql", MODEL)
    return dbt


def _build_and_list_statuses(dbt: DbtProject) -> dict[str, tuple[str, int | None]]:
    results = dbt.run("build", "--select", "orders", *RECORDS)
    return {
        next((test for test in TESTS if test in name), name): (one.status, one.failures)
        for name, one in results.items()
    }


def test_appended_redeliveries_are_counted_and_a_window_that_begins_too_late_is_found(
    synced: Project, dbt: DbtProject
) -> None:
    assert _build_and_list_statuses(dbt)["no_duplicates"] == ("pass", 0)
    before = dbt.rows("orders")
    for number in range(1, 6):
        synced.run()
        assert synced.rows("select count(*) from raw.orders") == [(10 + 3 * number,)]
    statuses = _build_and_list_statuses(dbt)
    assert statuses["no_duplicates"] == ("warn", 15)
    assert statuses["inclusive_cursor"] == ("pass", 0)
    assert statuses["orders"][0] == "success"
    columns = ("id", "at")
    assert sorted([row[c] for c in columns] for row in dbt.rows("orders")) == sorted(
        [row[c] for c in columns] for row in before
    )
    synced.spark.sql(
        f"update {synced.schema}._cq_syncs set cursor_low = '2025-01-01 08:00:00.000001' "
        "where batch = 6"  # the newest batch: a later one would read the gap
    )
    assert _build_and_list_statuses(dbt)["inclusive_cursor"] == ("fail", 1)


def test_a_state_row_ahead_of_its_data_is_reported(synced: Project, dbt: DbtProject) -> None:
    assert _build_and_list_statuses(dbt)["state_consistent"] == ("pass", 0)
    synced.spark.sql(
        f"insert into {synced.schema}._cq_state values ('shop.orders', "
        '\'{"batch": 2, "cursor": "2025-02-01 00:00:00", "cursor_field": "at", '
        '"cursor_type": "timestamptz", "generation": 1}\', 2, now())'
    )
    results = dbt.run("test", "--select", *RECORDS)
    [found] = [one for name, one in results.items() if "state_consistent" in name]
    assert (found.status, found.failures) == ("fail", 1)
    [row] = dbt.failing_rows(found)
    assert (row["key"], row["version"]) == ("shop.orders", 2)
    assert row["problem"] == "the batch is ahead of the raw table"
