"""`loader compact` deletes old files that killed runs left, and `stored` counts all files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.lake.lock_store import LockRecord
from loader.lake.staging import stage_batch
from loader.lake.system_tables import report_damage
from loader.maintenance.rebuild_state import quarantine_table
from loader.maintenance.snapshot_expiry import count_expirable, expire_snapshots
from loader.spark.session import sibling
from loader.state.lake_table import LakeState
from tests.maintenance.shop import Shop

DAYS = 86_400.0


def _create_orphan(folder: Path, name: str, age: float) -> Path:
    """Creates a data file as left by a run that was killed `age` seconds ago."""
    source = next(folder.glob("*.parquet"))
    stray = folder / f"{name}.parquet"
    shutil.copyfile(source, stray)
    os.utime(stray, (time.time() - age,) * 2)
    return stray


def test_old_files_of_killed_runs_are_deleted(shop: Shop, warehouse: Path) -> None:
    shop.project.run()
    lake = warehouse / shop.project.schema
    data = lake / "orders" / "data"
    clean = shop.freed(shop.compact("--dry-run"))
    old = [_create_orphan(data, f"old-{number}", 2 * DAYS) for number in range(3)]
    young = _create_orphan(data, "young", 60)
    ledger = _create_orphan(lake / "_cq_syncs" / "data", "old", 2 * DAYS)
    owners = {
        "gone.owner": LockRecord.of("dead", "elsewhere/1:1").to_json(),
        "dead.alive": "2025-01-01T00:00:00.000+00:00",
        "orders.owner.7.7": "{",
        "elsewhere.owner": LockRecord.of("living", "elsewhere/1:1").to_json(),
    }
    for name, text in owners.items():
        (lake / name).write_text(text)
        os.utime(lake / name, (time.time() - 2 * DAYS,) * 2)
    (lake / "living.alive").write_text("2025-01-01T00:00:00.000+00:00")

    preview = shop.freed(shop.compact("--dry-run"))
    taken = sum(file.stat().st_size for file in (*old, young))
    assert preview["stored"] == clean["stored"] + taken
    assert preview["note"] == "4 files that no batch refers to, deleted once a day old"
    assert all(file.exists() for file in old)

    rows = shop.versions()
    ran = shop.compact()
    freed = shop.freed(ran)
    assert [file.exists() for file in (*old, young, ledger)] == [False] * 3 + [True, False]
    assert freed["note"] == (
        "3 files of killed runs deleted, 1 file that no batch refers to, deleted once a day old"
    )
    there = sum(file.stat().st_size for file in data.glob("*.parquet"))
    assert freed["stored_after"] == there
    assert shop.versions() == rows
    assert shop.freed(ran, f"{shop.project.schema}._cq_syncs")["note"] == (
        "1 file of killed runs deleted"
    )
    kept = {file.name for file in lake.iterdir() if ".owner" in file.name or ".alive" in file.name}
    assert kept == {"living.alive", "elsewhere.owner"}
    shop.change()
    assert shop.project.run().table("shop.orders")["status"] == "synced"


def test_a_batch_that_was_never_published_is_removed(shop: Shop) -> None:
    lake = shop.project.lake().for_thread()
    rows = lake.frame("orders").limit(1).drop("_cq_batch").selectExpr("*", "bigint(6) as _cq_batch")
    stage_batch(lake, "orders", rows, 6, {"state": "{}", "sync": {}})
    shop.compact()
    staged = [
        snapshot
        for snapshot in shop.project.lake().handle("orders").snapshots()
        if snapshot.summary().get("wap.id") == "6"
    ]
    assert not staged
    shop.change()
    assert shop.project.run().table("shop.orders")["batch"] == 6


def test_old_comparisons_are_removed_like_old_states(shop: Shop) -> None:
    """By default, each bucket keeps its ten newest comparisons."""
    project = shop.project
    assert project.loader("reconcile", "--buckets", "2").code == 0
    table = f"{project.schema}._cq_reconciled"
    columns = project.spark.table(table).columns
    earlier = ", ".join(
        "verified_at - make_interval(0, 0, 0, n)" if name == "verified_at" else name
        for name in columns
    )
    project.spark.sql(
        f"insert into {table} select /*+ repartition(4) */ {earlier} "
        f"from {table} cross join (select explode(sequence(1, 12)) as n)"
    )
    newest = project.rows("select bucket, max(verified_at) from raw._cq_reconciled group by 1")
    freed = shop.freed(shop.compact(), table)
    assert freed["rows_after"] == 20
    assert freed["files_after"] < 5  # fewer than five files are not merged
    assert project.rows(
        "select bucket, count(*) from raw._cq_reconciled group by 1 order by 1"
    ) == [
        (0, 10),
        (1, 10),
    ]
    kept = project.rows("select bucket, max(verified_at) from raw._cq_reconciled group by 1")
    assert sorted(kept) == sorted(newest)
    snapshots = project.snapshots("_cq_reconciled")
    assert shop.freed(shop.compact(), table)["rows_after"] == 20
    assert project.snapshots("_cq_reconciled") == snapshots


def test_a_copied_warehouse_is_refused_and_a_link_to_it_is_not(
    shop: Shop, warehouse: Path, tmp_path: Path
) -> None:
    """A copy refers to the original's files, so `compact` there would delete new files of it."""
    schema = shop.project.schema
    shutil.copytree(warehouse / schema, tmp_path / "copy" / schema)
    (tmp_path / "link").symlink_to(warehouse)
    original = shop.project.lake()

    def seen_from(place: str) -> Lake:
        spark = sibling(original.spark)
        old = f"spark.sql.catalog.{original.catalog}"
        spark.conf.set(f"spark.sql.catalog.{place}", spark.conf.get(old))
        spark.conf.set(f"spark.sql.catalog.{place}.type", spark.conf.get(f"{old}.type"))
        spark.conf.set(f"spark.sql.catalog.{place}.warehouse", str(tmp_path / place))
        spark.conf.set("spark.sql.defaultCatalog", place)
        return Lake(spark, schema)

    for table in ("orders", "_cq_state", "_cq_syncs"):
        with pytest.raises(TableError, match="warehouse was copied or moved") as reported:
            seen_from("copy").handle(table)
        assert str(tmp_path / "copy") in str(reported.value)
    _assert_state_is_refused(seen_from("copy"))
    assert seen_from("link").handle("orders").currentSnapshot() is not None
    # the original was moved, so that none of the files is where the metadata says
    elsewhere = warehouse.with_name(f"{warehouse.name}_moved")
    elsewhere.mkdir()
    (tmp_path / "moved").symlink_to(elsewhere)
    (warehouse / schema).rename(elsewhere / schema)
    try:
        moved = seen_from("moved")
        _assert_state_is_refused(moved)
        with pytest.raises(TableError, match="warehouse was copied or moved"):
            quarantine_table(moved, "_cq_syncs")
        with (
            pytest.raises(TableError, match="warehouse was copied or moved"),
            report_damage(moved, "_cq_syncs", "create it again"),
        ):
            moved.frame("_cq_syncs").count()
    finally:
        (elsewhere / schema).rename(warehouse / schema)


def _assert_state_is_refused(lake: Lake) -> None:
    """Checks that its state is neither shown nor changed, and not reported as damaged."""
    state = LakeState(lake, "_cq_state")
    for ask in (state.rows, lambda: state.rows("shop.orders"), lambda: state.prune({"x": 1})):
        with pytest.raises(TableError, match="warehouse was copied or moved"):
            ask()


def test_snapshots_expire_by_their_age_unless_they_have_a_name(shop: Shop) -> None:
    lake = shop.project.lake()
    lake.create("line", "n bigint", {"write.wap.enabled": "true"})
    assert count_expirable(lake, "line", int(time.time() * 1000)) == 0
    for number in range(4):
        lake.spark.sql(f"insert into {lake.name('line')} values ({number})")
    stage_batch(lake, "line", lake.spark.range(1).toDF("n"), 5, {"state": "{}", "sync": {}})
    ids = [snapshot.snapshotId() for snapshot in lake.handle("line").snapshots()]
    times = [snapshot.timestampMillis() for snapshot in lake.handle("line").snapshots()]
    lake.spark.sql(f"alter table {lake.name('line')} create tag january as of version {ids[1]}")
    ends = (times[0], times[1], times[3], times[4], times[4] + 1)
    # the second snapshot has a tag, the fourth is the current one, the fifth is staged
    assert [count_expirable(lake, "line", end) for end in ends] == [0, 1, 2, 2, 3]
    assert expire_snapshots(lake, "line", times[4]) == 2
    assert expire_snapshots(lake, "line", times[4]) == 0
    left = [snapshot.snapshotId() for snapshot in lake.handle("line").snapshots()]
    assert left == [ids[1], ids[3], ids[4]]
    assert lake.frame("line").count() == 4
    lake.drop("line")


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_files_of_tags_and_branches_are_no_orphans(shop: Shop, kind: str) -> None:
    """Compaction expires the commits between a tag and the newest one, so nothing links the two."""
    raw = f"{shop.project.schema}.orders"
    shop.change()
    shop.project.run()
    shop.project.spark.sql(f"alter table {raw} create {kind} january")
    january = shop.project.rows(f"select count(*) from {raw}")
    for _ in range(2):
        shop.change()
        shop.project.run()
    for _ in range(2):
        shop.compact("--expire-days", "0")
        shop.change()
        assert shop.project.run().table("shop.orders")["appended"] > 0
    assert shop.project.rows(f"select count(*) from {raw} version as of 'january'") == january
