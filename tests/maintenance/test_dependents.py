"""The batches that dbt models have not merged yet limit the compaction of their raw table."""

from __future__ import annotations

from typing import Any

import pytest

from loader.lake.lake import Lake
from loader.maintenance import compaction
from loader.maintenance.dependents import find_dependents
from loader.maintenance.superseded_versions import SupersededVersions
from tests.dbt.dbtproject import as_json
from tests.maintenance.shop import CHANGED, MODEL, ORDERS, Shop

VERSIONS = "--keep-versions=1"
ORDERS_ONLY = ("--select", "shop.orders")
JUDGED = "batches_complete matches_raw"


def _rows(shop: Shop, model: str) -> list[str]:
    return sorted(as_json(row) for row in shop.dbt.rows(model))


def _compact(shop: Shop) -> dict[str, Any]:
    return shop.freed(shop.compact(VERSIONS, "--expire-days", "0", *ORDERS_ONLY))


def test_versions_that_a_snapshot_has_not_merged_are_kept(shop: Shop) -> None:
    shop.model("lagging", "deduped_latest")
    for _ in range(3):
        shop.change()
        shop.project.run()
    [found] = [d for d in find_dependents(shop.project.lake()) if d.name.endswith(".lagging")]
    assert found.name.startswith(shop.dbt.schema)
    merged = found.find_merged_batch(f"{shop.project.schema}.orders")
    assert (found.history, merged, found.key, found.cursor) == (False, 5, ("id",), "at")
    assert found.reads(f"{shop.project.schema}.orders")
    before = _rows(shop, "lagging")
    freed = _compact(shop)
    assert freed["note"] == f"{found.name} has merged up to batch 5 only"
    # one version of each order from the first five batches, and all rows of the three later ones
    assert freed["rows_after"] == ORDERS + 3 * CHANGED
    assert _rows(shop, "lagging") == before
    shop.run_tests(by=JUDGED)
    shop.dbt.run("run", "--select", "lagging")
    merged = _rows(shop, "lagging")
    assert _compact(shop)["rows_after"] == ORDERS + CHANGED
    shop.dbt.run("run", "--select", "lagging", "--full-refresh")
    assert _rows(shop, "lagging") == merged


def test_for_a_history_only_repeated_rows_are_removed(shop: Shop) -> None:
    project = shop.project
    options = {"cursor_field": "at", "redelivered_rows": "append", "lookback": "2 minutes"}
    project.jdbc(shop.database, ["orders"], table_options={"orders": options})
    for _ in range(3):
        project.run()  # each run redelivers the rows in the lookback
    shop.change()
    project.run()
    shop.model("history", "deduped_history")
    # without lookback: rows that the last windows could read stay in the raw table
    project.jdbc(shop.database, ["orders"], table_options={"orders": {"cursor_field": "at"}})
    for _ in range(2):
        shop.change()
        project.run()
    shop.dbt.run("run", "--select", "history")
    before, raw = _rows(shop, "history"), len(shop.versions())
    freed = _compact(shop)
    assert freed["note"].startswith("only repeated rows are removed: ")
    assert freed["rows_after"] < raw
    assert _rows(shop, "history") == before
    shop.dbt.run("run", "--select", "history", "--full-refresh")
    assert _rows(shop, "history") == before
    shop.run_tests(by="batches_complete no_duplicates inclusive_cursor matches_raw")


def test_a_snapshot_of_another_key_keeps_all_versions(shop: Shop) -> None:
    # by default, a key other than the raw table's is refused, as deleted rows would stay
    sql = MODEL.format(kind="deduped_latest").replace("unique_key='id'", "unique_key='note'")
    sql = sql.replace("'cursor_field': 'at'", "'cursor_field': 'at', 'strict': false")
    shop.dbt.write("models/by_note.sql", sql)
    results = shop.dbt.run("run", "--select", "by_note")
    assert {one.status for one in results.values()} == {"success"}, results
    before = shop.versions()
    freed = shop.freed(shop.compact(VERSIONS, *ORDERS_ONLY))
    assert freed["note"] == (
        f"{shop.dbt.schema}.by_note needs other versions: its key is note, ordered by at"
    )
    assert shop.versions() == before


def test_time_travel_before_the_removal_limit_is_refused(shop: Shop) -> None:
    for batch in (3, 4):
        shop.dbt.write(
            f"models/as_of_{batch}.sql",
            "{{ config(materialized='table', file_format='iceberg') }}\n"
            "{{ strandline.deduped_latest(source('shop', 'orders'), 'id', 'at', "
            f"as_of={batch}) }}}}",
        )
    both = ("run", "--select", "as_of_3", "as_of_4")
    assert {one.status for one in shop.dbt.run(*both).values()} == {"success"}
    before = _rows(shop, "as_of_4")
    assert _rows(shop, "as_of_3") != before
    shop.freed(shop.compact(VERSIONS, *ORDERS_ONLY))
    results = shop.dbt.run(*both)
    assert results["as_of_3"].status == "error"
    assert "as_of 3 is before batch 4, and compaction has removed" in results["as_of_3"].message
    assert results["as_of_4"].status == "success"
    assert _rows(shop, "as_of_4") == before


def test_keys_missing_from_a_recreated_raw_table_are_removed(shop: Shop) -> None:
    shop.model("latest", "deduped_latest")
    shop.database.execute("delete from orders where id = 3")
    shop.project.spark.sql(f"drop table {shop.project.schema}.orders")
    shop.project.run()
    results = shop.dbt.run("run", "--select", "latest")
    assert results["latest"].message == "REBUILD to batch 6"
    assert {row["id"] for row in shop.dbt.rows("latest")} == set(range(1, ORDERS + 1)) - {3}


def test_a_model_built_during_compaction_keeps_its_versions(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counting the rows may take hours, during which somebody builds a history.
    count = compaction.count_rows
    counted = []

    def built_meanwhile(lake: Lake, gone: SupersededVersions) -> int:
        rows = count(lake, gone)
        if not counted:
            shop.model("history", "deduped_history")
        counted.append(rows)
        return rows

    monkeypatch.setattr(compaction, "count_rows", built_meanwhile)
    before = shop.versions()
    freed = _compact(shop)
    assert counted == [3 * CHANGED, 0]
    assert freed["note"].startswith("only repeated rows are removed: ")
    assert shop.versions() == before
