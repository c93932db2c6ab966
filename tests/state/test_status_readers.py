"""`status`, `state list` and `state show` read a lake in a local folder without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.lake.folder_tables import FolderTables, SparkNeededError
from loader.lake.ledger import (
    FAILED,
    LOCKED,
    NOTHING_NEW,
    RECOVERED,
    SYNCED,
    TABLE,
    Ledger,
    SyncRecord,
    now,
)
from loader.lake.locks import create_lease, lock_table
from loader.reconcile.history import VerificationHistory, VerifiedBucket
from loader.spark.profile import load_profile
from loader.spec.spec import load_spec
from loader.state import TableState
from loader.state.lake_table import LakeState
from loader.sync.pipeline import Pipeline
from loader.sync.status_readers import (
    list_readers_by_spark,
    list_readers_in_folder,
    list_state_readers,
)
from tests.sync.project import ROOT, Project

TABLES = ("orders", "lines", "größe", "UPPER", "broken", "never")
STATUSES = (SYNCED, NOTHING_NEW, FAILED, LOCKED, RECOVERED)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two sources of files; the tables of one have been synced, or have failed."""
    project = Project(tmp_path_factory.mktemp("progress"), spark, "raw_progress")
    for name in ("orders", "lines", "broken"):
        folder = project.folder / "data" / name
        folder.mkdir(parents=True)
        (folder / "one.csv").write_text("id\n1\n2\n" if name != "broken" else "id\nx\n")
    options = {
        name: {"column_types": "id int", "primary_key": "id"} for name in ("orders", "lines")
    }
    options["broken"] = {"column_types": "id int"}
    own = {"path": "data", "format": "csv", "table_options": options}
    project.add("drop", "file", list(options), own)
    project.add("other", "file", ["*"], {"path": "data", "format": "csv"})
    assert project.loader("run", "-s", "drop.*").code == 1
    return project


def _read(project: Project) -> tuple[Any, Any]:
    """Reads ledgers and states, both with Spark and from the folder."""
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    profile = load_profile("strandline", None, ROOT, str(ROOT / "profiles"))
    by_spark = list_readers_by_spark(Pipeline(spec, project.spark))
    in_folder = list_readers_in_folder(spec, profile)

    def everything(progress: Any) -> Any:
        states = [state.rows() for state in list_state_readers(progress)]
        ledgers = [(one.names, one.ledger.newest(), one.comparisons.by_table()) for one in progress]
        return ledgers, states

    return everything(by_spark), everything(in_folder)


def _record(ledger: Ledger, count: int, seed: int) -> None:
    """Adds attempts of all kinds, with nulls wherever a column may be null."""
    some = random.Random(seed)
    began = now() - dt.timedelta(days=1)
    records = []
    for number in range(count):
        finished = began + dt.timedelta(microseconds=some.randrange(10**10) * 1000 + number)
        status = some.choice(STATUSES)
        records.append(
            SyncRecord(
                "run",
                some.choice(("drop", "former")),
                some.choice(TABLES[:-1]),
                batch=some.choice((None, number)),
                status=status,
                cursor_high=some.choice((None, str(number))),
                rows_appended=some.choice((None, 0, 10**10)),
                started_at=finished,
                finished_at=finished,
                error="it is down\nand\u2028out" if status == FAILED else None,
                log_bytes=some.choice((None, 2**40)),
                rows_below_cursor=some.choice((None, 0, 10**10)),
                rows_at_cursor=some.choice((None, 1)),
                rows_cursor_unmoved=some.choice((None, 1, 2)),
                complete_until=some.choice((None, finished - dt.timedelta(seconds=1))),
            )
        )
    ledger.append_all(records)


def _compare(history: VerificationHistory) -> None:
    """Adds comparisons of all keys of orders and lines, and of some keys of broken."""
    began = now() - dt.timedelta(hours=1)
    compared = {
        "orders": [(2, 0, 5), (2, 1, 3), (2, 1, 7), (4, 0, 9), (2, 0, 1)],
        "lines": [(1, 0, 2), (2, 0, 4), (2, 1, 3)],
        "broken": [(2, 1, 8)],
    }
    missed = {"missed_updates": 2, "missed_rows": 1}
    history.append(
        [
            # differences that a later comparison with other buckets no longer found
            VerifiedBucket("run", "drop", "lines", 0, 3, began, 1, 1, **missed),
            # in bucket 0, everything but the missed deletes is repaired; in bucket 1, nothing
            VerifiedBucket("run", "drop", "broken", 0, 2, began, 1, 1, **missed),
            VerifiedBucket(
                *("run", "drop", "broken", 0, 2, began + dt.timedelta(minutes=1), 1, 1),
                **missed,
                missed_deletes=3,
                batch=7,
            ),
            VerifiedBucket(
                *("run", "drop", "broken", 1, 2, began + dt.timedelta(minutes=9), 1, 1), **missed
            ),
        ]
    )
    for table, buckets in compared.items():
        history.append(
            [
                VerifiedBucket(
                    "run", "drop", table, number, of, began + dt.timedelta(minutes=minute), 1, 1
                )
                for of, number, minute in buckets
            ]
        )


def test_both_readers_give_the_same_answers(shop: Project) -> None:
    lake = shop.lake()
    ledger, state = Ledger(lake), LakeState(lake, "_cq_state")
    by_spark, in_folder = _read(shop)
    assert in_folder == by_spark
    [(_, attempts, _), _], [states] = in_folder
    assert {row["table_name"]: row["status"] for row in attempts} == {
        "orders": SYNCED,
        "lines": SYNCED,
        "broken": FAILED,
    }
    assert {row.key for row in states} == {"drop.orders", "drop.lines"}

    _compare(VerificationHistory(lake))
    for seed in range(3):  # several files, and snapshots
        _record(ledger, 40, seed)
    for batch in range(12):
        state.write("drop.orders", TableState(batch, generation=batch + 1))
    # another loader's row without a version, two values of one version, text of all kinds
    shop.spark.sql(
        f"insert into {shop.schema}._cq_state values ('drop.größe', '{{}}', null, null), "
        f"('drop.orders', 'x', 13, now()), ('drop.''q''', 'ü', 1, timestamp'1969-12-31 23:59:59.5')"
    )
    lease = create_lease(lake, "orders", "table orders", "me")
    lease.acquire()
    with lock_table(lake, TABLE):  # locked as during a run
        by_spark, in_folder = _read(shop)
    lease.release()
    assert in_folder == by_spark
    [(_, attempts, compared), _], _ = in_folder
    assert all(row["rows_cursor_unmoved"] for row in attempts if row["source_name"] == "former")
    assert any(row["complete_micros"] for row in attempts)
    since = {name: found.verified_until for name, found in compared.items()}
    assert since["drop", "orders"] - since["drop", "lines"] == 2 * 60_000_000  # minutes 5 and 3
    assert since["drop", "broken"] is None
    # bucket 0 of 2 has 3 missed deletes that were held back, bucket 1 three differences
    assert {name: found.unrepaired for (_, name), found in compared.items()} == {
        "orders": 0,
        "lines": 0,
        "broken": 6,
    }

    # rows deleted by Spark, copy-on-write and merge-on-read; rewritten files; an expired snapshot
    state.prune({"drop.orders": 3})
    shop.spark.sql(
        f"alter table {shop.schema}.{TABLE} set tblproperties ('write.delete.mode'='merge-on-read')"
    )
    shop.spark.sql(f"delete from {shop.schema}.{TABLE} where batch = 7 or table_name = 'lines'")
    by_spark, in_folder = _read(shop)
    assert in_folder == by_spark
    assert shop.loader("compact", "--expire-days", "0").code == 0
    by_spark, in_folder = _read(shop)
    assert in_folder == by_spark
    assert len(in_folder[1][0]) > 5

    # an older loader's ledger
    shop.spark.sql(f"alter table {shop.schema}.{TABLE} drop columns (log_bytes, rows_at_cursor)")
    by_spark, in_folder = _read(shop)
    assert in_folder == by_spark
    assert {row["log_bytes"] for row in in_folder[0][0][1]} == {None}
    assert {row["rows_at_cursor"] for row in in_folder[0][0][1]} == {None}


def test_each_read_sees_one_snapshot_while_runs_commit(shop: Project) -> None:
    ledger, tables = Ledger(shop.lake()), FolderTables(_warehouse(shop), shop.schema)
    done = threading.Event()
    columns = {"batch": "long"}

    def write() -> None:
        for batch in range(1, 31):
            ledger.append_all([SyncRecord("run", "drop", "orders", batch=batch)] * 10)
        done.set()

    before = tables.read(TABLE, columns)
    assert before is not None
    writer = threading.Thread(target=write)
    writer.start()
    seen = [before.num_rows]
    while not done.is_set():
        found = tables.read(TABLE, columns)
        assert found is not None
        seen.append(found.num_rows)
    writer.join()
    assert seen == sorted(seen)
    assert {(rows - seen[0]) % 10 for rows in seen} == {0}
    assert len({*seen}) > 3


def test_the_newest_metadata_is_found_as_spark_finds_it(shop: Project) -> None:
    folder = _warehouse(shop) / shop.schema / TABLE / "metadata"
    hint = folder / "version-hint.text"
    newest = int(hint.read_text())
    for text in (str(newest - 1), "", "x"):  # a process was killed after its commit
        hint.write_text(text)
        by_spark, in_folder = _read(shop)
        assert in_folder == by_spark
    hint.unlink()
    by_spark, in_folder = _read(shop)
    assert in_folder == by_spark
    rows = _read_folder(shop)
    os.mkfifo(hint)  # a pipe to which nobody writes
    assert _read_folder(shop).equals(rows)
    hint.unlink()
    hint.write_text(str(newest + 1))
    with pytest.raises(SparkNeededError):
        _read_folder(shop)
    hint.write_text(str(newest))


def test_damaged_tables_are_left_to_spark(shop: Project) -> None:
    folder = _warehouse(shop) / shop.schema / TABLE / "metadata"
    newest = max(folder.glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SparkNeededError):
        _read_folder(shop)
    [error] = shop.loader("status").errors
    assert f"{newest.name} is damaged or missing" in error
    assert "loader state rebuild" in error
    newest.write_bytes(whole)
    assert shop.loader("status").code == 0

    moved = whole.replace(f"/{shop.schema}/".encode(), b"/elsewhere/")
    newest.write_bytes(moved)
    [error] = shop.loader("status").errors
    assert "its warehouse was copied or moved" in error
    newest.write_bytes(whole)


def test_files_on_other_machines_are_not_read(shop: Project) -> None:
    folder = _warehouse(shop) / shop.schema / TABLE / "metadata"
    newest = max(folder.glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    whole = newest.read_text()
    metadata = json.loads(whole)
    for snapshot in metadata["snapshots"]:
        snapshot["manifest-list"] = "s3://strandline.invalid/list.avro"
    newest.write_text(json.dumps(metadata))
    with pytest.raises(SparkNeededError, match="files are not in a local folder"):
        _read_folder(shop)
    newest.write_text(whole)


def test_no_spark_is_started_and_the_answer_is_quick(shop: Project) -> None:
    config = str(shop.folder / "loader.yml")
    code = (
        "import sys; from loader.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print('pyspark' in sys.modules)"
    )
    for command in (["status"], ["state", "list"], ["state", "show", "orders"]):
        before = _cpu_seconds()
        ran = subprocess.run(
            [sys.executable, "-c", code, "-c", config, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        # CPU seconds, because other tests run at the same time
        assert _cpu_seconds() - before < 2
        assert ran.stdout.splitlines()[-1] == "False", ran.stdout + ran.stderr
        assert "orders" in ran.stdout or "version" in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({}, "/srv/lake"),
        ({"spark.sql.catalog.lake.warehouse": "file:/srv/lake"}, "/srv/lake"),
        ({"spark.sql.catalog.lake.warehouse": "file:///srv/lake"}, "/srv/lake"),
        ({"spark.sql.catalog.lake.warehouse": "s3://srv/lake"}, None),
        ({"spark.sql.catalog.lake.warehouse": "hdfs:/lake"}, None),
        ({"spark.sql.catalog.lake.type": "rest"}, None),
        ({"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkSessionCatalog"}, None),
        ({"spark.sql.catalog.lake.io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}, None),
        ({"spark.sql.defaultCatalog": "other"}, None),
        ({"spark.hadoop.fs.defaultFS": "hdfs://name"}, None),
    ],
)
def test_which_lakes_are_local_folders(conf: dict[str, str], found: str | None) -> None:
    from loader.lake.folder_tables import find_warehouse

    embedded = {
        "spark.sql.defaultCatalog": "lake",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "/srv/lake",
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    assert find_warehouse({**embedded, **conf}) == (Path(found) if found else None)


def _read_folder(project: Project) -> Any:
    return FolderTables(_warehouse(project), project.schema).read(TABLE, {"batch": "long"})


def _warehouse(project: Project) -> Path:
    return Path(project.spark.conf.get("spark.sql.catalog.lake.warehouse") or "")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
