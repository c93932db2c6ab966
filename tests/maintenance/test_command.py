"""`loader compact` removes only superseded versions and unused files."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from loader.lake import locks
from loader.lake.locks import lock_table
from loader.maintenance import table_stats
from tests.maintenance.shop import CHANGED, ORDERS, Shop
from tests.services import Database
from tests.sync.project import Project

ROWS = ORDERS + 4 * CHANGED
"""Rows in the raw table after five batches: all orders, then four times five updated ones."""

ORDERS_ONLY = ("--select", "shop.orders")


def _count_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_by_default_no_row_is_removed_and_files_are_merged(shop: Shop, warehouse: Path) -> None:
    for _ in range(3):
        shop.change()
        shop.project.run()
    before, head = shop.versions(), shop.head()
    folder = warehouse / shop.project.schema / "orders" / "data"
    taken = _count_bytes(folder)
    ran = shop.compact("--expire-days", "0")
    freed = shop.freed(ran)
    assert shop.versions() == before
    assert (freed["rows_before"], freed["rows_after"]) == (len(before), len(before))
    assert (freed["files_before"], freed["files_after"]) == (8, 2)
    assert freed["stored_after"] == freed["bytes_after"] < freed["bytes_before"]
    assert _count_bytes(folder) < taken
    assert shop.head() == head
    state = shop.freed(ran, f"{shop.project.schema}._cq_state")
    assert (state["files_before"], state["files_after"]) == (8, 1)
    # the ledger is sorted by table and batch, so that a sync reads few files of a year of runs
    listed = shop.project.rows("select table_name, batch from raw._cq_syncs")
    assert listed == sorted(listed, key=lambda row: (row[0], row[1] or 0))
    assert shop.project.run().table("shop.orders")["status"] == "nothing new"
    # no row of the raw table has changed; ledger and state were rewritten
    shop.run_tests(by="batches_complete state_consistent")

    shop.change()
    shop.project.run()
    files = shop.project.rows("select count(*) from raw.orders.files")
    assert files == [(3,)]  # batches 1 to 7, batch 8, which was the newest, and batch 9
    boundary = shop.project.state("shop.orders")["cursor"]
    for condition in ("_cq_batch > 8", f"at >= timestamp_ntz '{boundary}'"):
        frame = shop.project.spark.sql(
            f"select * from {shop.project.schema}.orders where {condition}"
        )
        frame.collect()
        scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
        metrics = scan.metrics()
        read, skipped = (
            metrics.get(name).get().value() for name in ("resultDataFiles", "skippedDataFiles")
        )
        assert (read, skipped) == (1, 2), condition


def test_superseded_versions_go_and_the_newest_stay(shop: Shop) -> None:
    before, latest = shop.versions(), shop.latest()
    freed = shop.freed(shop.compact("--keep-versions", "1", "--expire-days", "0"))
    # batches 2 to 4 have updated 15 of the 20 orders; batch 5 is the newest, so the versions that
    # it supersedes are kept
    kept = {(key, batch) for key, batch, _ in shop.versions()}
    wanted = {}
    for key, batch, _ in before:
        if batch < 5:
            wanted[key] = max(batch, wanted.get(key, 0))
    assert kept == set(wanted.items()) | {(key, batch) for key, batch, _ in before if batch == 5}
    assert (freed["rows_before"], freed["rows_after"]) == (ROWS, ORDERS + CHANGED)
    assert freed["stored_after"] < freed["stored_before"]
    assert shop.latest() == latest
    assert shop.project.run().table("shop.orders")["appended"] == 0
    again = shop.freed(shop.compact("--keep-versions", "1", *ORDERS_ONLY))
    assert again["rows_after"] == again["rows_before"]
    shop.change()
    shop.project.run()
    shop.freed(shop.compact("--keep-versions", "1", *ORDERS_ONLY))
    shop.run_tests()
    # a row that was removed in another way is detected
    shop.project.spark.sql(f"delete from {shop.project.schema}.orders where id = {ORDERS}")
    rows = shop.run_tests("batches_complete", by="batches_complete")["batches_complete"]
    [row] = [one for one in rows if one["problem"].startswith("up to this batch, raw table and")]
    removed = ROWS - ORDERS  # below the newest batch, one version of each order is left
    assert (row["rows_in_ledger"], row["rows_in_raw"]) == (ROWS, ROWS - removed - 1)


def test_a_dry_run_reports_and_changes_nothing(shop: Shop, warehouse: Path) -> None:
    folder = warehouse / shop.project.schema
    before = {path for path in folder.rglob("*") if path.is_file()}
    preview = shop.freed(shop.compact("--keep-versions", "1", "--expire-days", "0", "--dry-run"))
    assert (preview["rows"], preview["rows_to_remove"]) == (ROWS, ROWS - ORDERS - CHANGED)
    assert preview["snapshots_to_expire"] == 4
    assert {path for path in folder.rglob("*") if path.is_file()} == before
    # a source that cannot be reached is not taken for one without tables
    url = shop.project.sources[0]["spec"]["url"]
    shop.project.sources[0]["spec"]["url"] = re.sub(r":\d+/", ":1/", url)
    shop.project.sources[0]["tables"], asked = ["*"], shop.project.sources[0]["tables"]
    shop.project.write()
    ran = shop.project.loader("compact", "--keep-versions", "1", "--dry-run")
    shop.project.sources[0]["spec"]["url"], shop.project.sources[0]["tables"] = url, asked
    shop.project.write()
    assert ran.code == 1
    assert "Connection to" in ran.errors[0]
    notes = {e["note"] for e in ran.events if e["event"] == "preview" and "orders" in e["table"]}
    assert notes == {"its source cannot be read, so its key is not known"}


def test_table_stats_from_metadata_equal_counted_ones(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, lake = f"{shop.project.schema}.orders", shop.project.lake()
    shop.project.spark.sql(
        f"alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')"
    )
    shop.project.spark.sql(f"delete from {table} where id = 1 and _cq_batch = 1")
    reported = table_stats.measure_table(lake, "orders")
    assert (reported.rows, reported.files) == (
        ROWS - 1,
        6,
    )  # a data file for each batch, and a delete file
    monkeypatch.setattr(table_stats, "_TOTALS", (*table_stats._TOTALS, "what no commit says"))
    assert table_stats.measure_table(lake, "orders") == reported


def test_keep_days_and_keep_versions(shop: Shop) -> None:
    freed = shop.freed(shop.compact("--keep-days", "1", *ORDERS_ONLY))
    assert freed["rows_after"] == ROWS
    assert freed["note"] == "nothing is older than 1 day"
    freed = shop.freed(shop.compact("--keep-versions", "2", *ORDERS_ONLY))
    per_key = shop.project.rows(
        "select max(n) from (select count(*) n from raw.orders group by id)"
    )
    assert freed["rows_after"] <= ROWS
    assert per_key == [(2,)]


def test_a_table_that_is_being_synced_is_skipped_and_the_others_are_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RETRY_TIMEOUT", 0.5)
    before = shop.versions()
    with lock_table(shop.project.lake(), "orders", timeout=0):
        ran = shop.project.loader("compact", "--keep-versions", "1")
    assert ran.code == 1
    assert ran.errors[0].startswith("table shop.orders: another run holds this table.")
    assert shop.freed(ran, f"{shop.project.schema}._cq_syncs")["files_after"] == 1
    assert shop.versions() == before


def test_the_record_of_the_newest_commit_survives(shop: Shop) -> None:
    """The next run recovers the state of a killed run even after compaction."""
    project, head = shop.project, shop.head()
    state = project.state("shop.orders")
    project.spark.sql(f"delete from {project.schema}._cq_state where version = 5")
    project.spark.sql(f"delete from {project.schema}._cq_syncs where batch = 5")
    shop.compact("--keep-versions", "1", "--expire-days", "0")
    assert head.snapshot_id not in {
        row[0] for row in project.rows("select snapshot_id from raw.orders.snapshots")
    }
    assert shop.head() == head
    ran = project.run()
    assert any("rolled forward to batch 5" in text for text in ran.warnings)
    assert ran.table("shop.orders")["status"] == "nothing new"
    copied = {"mark": project.state("shop.orders")["mark"]}  # the test's database is a copy
    assert project.state("shop.orders") == {**state, **copied}
    assert project.rows("select status, rows_appended from raw._cq_syncs where batch = 5") == [
        ("recovered", CHANGED)
    ]
    shop.run_tests(by="batches_complete inclusive_cursor state_consistent")


def test_a_ledger_rebuilt_after_compaction(shop: Shop) -> None:
    shop.compact("--keep-versions", "1", "--expire-days", "0", *ORDERS_ONLY)
    project = shop.project
    project.spark.sql(f"drop table {project.schema}._cq_syncs")
    assert project.loader("state", "rebuild").code == 0
    assert project.rows("select batch, rows_appended from raw._cq_syncs order by batch") == [
        (1, None),
        (2, None),
        (3, None),
        (4, None),
        (5, CHANGED),
    ]
    shop.run_tests(by="batches_complete inclusive_cursor")


def test_without_a_key_nothing_is_removed(project: Project, postgres_database: Database) -> None:
    postgres_database.execute("create table t (a text, c int)", "insert into t values ('x', 1)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    for c in (2, 3):
        postgres_database.execute(f"insert into t values ('x', {c})")
        project.run()
    ran = project.loader("compact", "--keep-versions", "1", "--select", "shop.t")
    assert ran.code == 0, ran.text
    [freed] = [e for e in ran.events if e["event"] == "compacted" and e["table"] == "shop.t"]
    assert freed["rows_after"] == 3
    assert freed["note"] == "it has no primary key, so its rows are not versions of each other"


def test_old_versions_of_states_are_removed(shop: Shop) -> None:
    project = shop.project
    for number in range(6):
        moment = f"2025-01-01 00:{number:02d}:00"
        assert project.loader("state", "set", "shop.orders", moment).code == 0
    newest = project.state("shop.orders")
    shop.compact()
    [(count, top)] = project.rows("select count(*), max(version) from raw._cq_state")
    assert (count, top) == (10, 11)
    assert project.state("shop.orders") == newest
    # files that a loader may be reading stay for an hour
    time.sleep(0.01)
    shop.compact("--expire-days", "0")
    assert project.snapshots("_cq_state") > 1


def test_names_that_match_nothing(shop: Shop) -> None:
    for arguments in ((), ("--keep-versions", "1")):
        ran = shop.project.loader("compact", "--select", "shop.nothing", *arguments)
        assert (ran.code, len(ran.errors)) == (2, 1)
