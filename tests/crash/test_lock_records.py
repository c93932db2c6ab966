"""Lock records in a shared catalog are removed with their tags, snapshots and files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.errors import TableError
from loader.lake import staging
from loader.lake.catalog_lock_store import CatalogLockStore
from loader.lake.lake import Lake
from loader.lake.lock_store import FileLockStore, LockRecord
from loader.lake.locks import acquire_all
from loader.lake.staging import discard_staged, publish_batch, stage_batch
from loader.package import page
from tests.crash.test_lease import EXPIRY, Clock, Elsewhere, _ago, _lake, _lease
from tests.crash.test_lease import pyiceberg_catalog as pyiceberg_catalog
from tests.crash.test_lease import rest_catalog as rest_catalog
from tests.crash.test_lease import shared_lake as shared_lake

DAY = 86400.0


def _read_lock_table(lake: Lake) -> tuple[list[str], int, list[Path]]:
    """Returns the tags, the number of snapshots and the files of the lock table."""
    handle = lake.handle("_cq_locks")
    folder = Path(str(handle.location()).removeprefix("file:")) / "metadata"
    files = [path for path in folder.iterdir() if not path.name.endswith(".crc")]
    return sorted(map(str, handle.refs())), len(list(handle.snapshots())), files


def test_finished_runs_leave_no_lock_records(shared_lake: Lake, tmp_path: Path) -> None:
    """Each run locks three tables; while some of them do, another run locks a table, too."""
    owners = CatalogLockStore(shared_lake)
    for number in range(6):
        mine: CatalogLockStore = owners
        if number % 3 == 0:
            mine = Elsewhere(shared_lake, lambda: owners.swap("other", None, "{}"))
        leases = [
            _lease(tmp_path / "here", mine, f"run{number}", f"t{n}_{number % 2}") for n in range(3)
        ]
        assert acquire_all(leases) == [None] * 3
        for lease in leases:
            lease.confirm()
            owners.write_heartbeat(f"run{number}", _ago(0))
            lease.release()
        owners.write_heartbeat(f"run{number}", None)
        owners.swap("other", "{}", None)
        assert _read_lock_table(shared_lake)[:2] == (["main"], 1)
    assert owners.delete_old(DAY) == 0  # unused files are still too new to be deleted
    owners.delete_old(0)
    # The last versions of the metadata, the hint, and the manifest list of the branch.
    assert len(_read_lock_table(shared_lake)[2]) <= 8


def test_records_that_are_damaged_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the lock table, not the table to be locked, and the remedy."""
    setting = "spark.sql.catalog.broken"
    lake = _lake(
        spark,
        {
            setting: "org.apache.iceberg.spark.SparkCatalog",
            f"{setting}.type": "hadoop",
            f"{setting}.warehouse": str(tmp_path / "broken"),
            f"{setting}.cache-enabled": "false",
            "spark.sql.defaultCatalog": "broken",
        },
    )
    owners = CatalogLockStore(lake)
    assert owners.swap("orders", None, "{}")
    newest = max(f for f in _read_lock_table(lake)[2] if f.name.endswith(".metadata.json"))
    newest.write_bytes(newest.read_bytes()[:200])
    with pytest.raises(TableError) as refused:
        _lease(tmp_path / "here", owners).acquire()
    assert str(refused.value) == (
        f"table raw._cq_locks: its metadata cannot be read: {newest.name} is damaged or missing. "
        "It contains only locks: drop it while no loader runs, and run again. "
        f"{page('recovery', 'A damaged table')}, describes the recovery"
    )


def test_an_unreadable_record_counts_as_a_lock(tmp_path: Path) -> None:
    """A truncated or malformed record does not fail a run, but is not ignored, either."""
    odd = {"run_id": 1, "host": [], "place": "", "pid": "x", "taken_at": 5}
    for record in (b"{", b"\xff\xfe", b"[]", json.dumps(odd).encode()):
        owners = FileLockStore(tmp_path)
        (tmp_path / "orders.owner").write_bytes(record)
        clock = Clock()
        taken = _lease(tmp_path, owners, clock=clock).acquire()
        assert taken is not None
        assert "run unknown, pid 0 on another machine" in taken
        assert clock.time >= EXPIRY
        (tmp_path / "orders.owner").unlink()


def test_heartbeats_and_files_of_dead_runs_are_deleted(shared_lake: Lake) -> None:
    owners = CatalogLockStore(shared_lake)
    assert owners.delete_old(DAY) == 0  # there is no such table yet
    held = LockRecord.of("held", "another/1:1").to_json()
    assert owners.swap("orders", None, held)
    for run, ago in (("held", 3 * DAY), ("dead", 2 * DAY), ("lives", 5.0)):
        owners.write_heartbeat(run, _ago(ago))
    written = Path(str(_read_lock_table(shared_lake)[2][0])).parent / "snap-1-1-killed.avro"
    written.write_bytes(b"a list of a commit that never came about")
    young = written.with_name("snap-2-1-just-now.avro")
    young.write_bytes(b"of one that may still come")
    os.utime(written, (0, 0))
    assert owners.delete_old(DAY) == 2
    assert (written.exists(), young.exists()) == (False, True)
    assert _read_lock_table(shared_lake)[0] == ["main", "owner.orders", "run.held", "run.lives"]
    assert owners.delete_old(DAY) == 0
    # the record and heartbeat of a dead run are removed when the next run takes the table
    assert owners.swap("orders", held, None)
    owners.remove_heartbeat("held")
    assert _read_lock_table(shared_lake)[0] == ["main", "run.lives"]


def test_a_batch_that_another_run_may_still_publish_is_kept(
    shared_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A REST server may apply a commit after its client has lost the connection."""
    shared_lake.create("orders", "id bigint, _cq_batch bigint")
    shared_lake.set_properties("orders", {"write.wap.enabled": "true"})
    rows = shared_lake.spark.range(3).selectExpr("id", "cast(1 as bigint) as _cq_batch")
    staged = stage_batch(shared_lake, "orders", rows, 1, {"state": "{}", "sync": {}})
    is_rest = "REST" in staging._describe_operations(shared_lake.handle("orders"))
    assert discard_staged(shared_lake, "orders") == (0 if is_rest else 1)
    if is_rest:
        publish_batch(shared_lake, "orders", staged)
        assert shared_lake.frame("orders").count() == 3
        assert discard_staged(shared_lake, "orders") == 0
        later = stage_batch(shared_lake, "orders", rows, 2, {"state": "{}", "sync": {}})
        monkeypatch.setattr(staging, "LATE_COMMIT", 0.0)
        assert discard_staged(shared_lake, "orders") == 1
        assert shared_lake.fresh("orders").snapshot(later) is None
