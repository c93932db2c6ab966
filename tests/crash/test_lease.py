"""Who may write a table, and when a lease is taken over."""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from pyspark.sql import SparkSession

from loader.catalog_owners import CatalogOwners
from loader.errors import LockedError, TableError
from loader.lake import Lake
from loader.lease import EXPIRY, FileOwners, Heartbeat, Lease, Owner, Owners
from loader.spark import sibling
from tests.crash import shop
from tests.crash.steps import run_with
from tests.services import Database
from tests.services.rest_catalog import RestCatalog
from tests.sync.project import Project


def _lease(folder: Path, owners: Owners, run_id: str = "a", table: str = "orders") -> Lease:
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{table}.lock", thread_local=False)
    return Lease(table, "table shop.orders", lock, owners, run_id)


def _elsewhere(owners: Owners, silent_for: float) -> None:
    """Makes the record one of another machine that was last alive so many seconds ago."""
    found = owners.read("orders")
    owner = Owner.from_json(found)
    assert owner is not None
    alive = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=silent_for)
    far = replace(owner, host="far", place="another/1:1", alive_at=alive.isoformat())
    assert owners.swap("orders", found, far.to_json())


@pytest.fixture(params=["files", "catalog"])
def owners(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Owners:
    """Both places where records are kept."""
    if request.param == "files":
        return FileOwners(tmp_path)
    database: Database = request.getfixturevalue("postgres_database")
    return CatalogOwners(_shared_lake(spark, database, tmp_path))


@pytest.fixture
def rest_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[RestCatalog]:
    """A REST catalog on loopback."""
    catalog = RestCatalog(spark, tmp_path / "served")
    yield catalog
    catalog.close()


@pytest.fixture(params=["jdbc", "rest", "hadoop"])
def shared_lake(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Lake:
    """A lake in each kind of catalog that several machines may share."""
    if request.param == "jdbc":
        return _shared_lake(spark, request.getfixturevalue("postgres_database"), tmp_path)
    if request.param == "rest":
        served: RestCatalog = request.getfixturevalue("rest_catalog")
        return _lake(spark, served.settings("served_" + uuid.uuid4().hex[:8]))
    return _lake(
        spark,
        {
            "spark.sql.catalog.remote": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.remote.type": "hadoop",
            "spark.sql.catalog.remote.warehouse": str(tmp_path / "remote"),
            "spark.sql.catalog.remote.cache-enabled": "false",
            "spark.sql.defaultCatalog": "remote",
        },
    )


def _shared_lake(spark: SparkSession, database: Database, folder: Path) -> Lake:
    """A lake in a catalog that several machines could share: a PostgreSQL database."""
    setting = "spark.sql.catalog.shared"
    settings = {
        setting: "org.apache.iceberg.spark.SparkCatalog",
        f"{setting}.type": "jdbc",
        f"{setting}.uri": database.url,
        f"{setting}.jdbc.user": database.user,
        f"{setting}.jdbc.password": database.password,
        f"{setting}.warehouse": str(folder / "shared"),
        f"{setting}.cache-enabled": "false",
        "spark.sql.defaultCatalog": "shared",
    }
    return _lake(spark, settings)


def _lake(spark: SparkSession, settings: Mapping[str, str]) -> Lake:
    session = sibling(spark)
    for key, value in settings.items():
        session.conf.set(key, value)
    lake = Lake(session, "raw")
    lake.prepare()
    return lake


def test_a_table_is_held_by_one_and_given_free(owners: Owners, tmp_path: Path) -> None:
    mine = _lease(tmp_path / "here", owners)
    assert mine.acquire() is None
    with pytest.raises(LockedError, match=r"another run holds this table \(run a, pid \d+"):
        _lease(tmp_path / "here", owners, "b").acquire()
    mine.confirm()
    mine.release()
    mine.release()
    assert owners.read("orders") is None
    other = _lease(tmp_path / "here", owners, "b")
    assert other.acquire() is None
    other.release()


def test_a_dead_process_of_this_machine_is_taken_over_at_once(
    owners: Owners, tmp_path: Path
) -> None:
    dead = _lease(tmp_path / "here", owners)
    dead.acquire()
    dead._lock.release()  # what the kernel does with a killed process's lock
    heir = _lease(tmp_path / "here", owners, "b")
    told = heir.acquire()
    assert told is not None
    assert told.startswith("taken over from another run, whose process is gone (run a, pid")
    heir.release()


def test_another_machine_is_believed_until_it_is_silent(owners: Owners, tmp_path: Path) -> None:
    far = _lease(tmp_path / "there", owners)
    far.acquire()
    _elsewhere(owners, silent_for=EXPIRY - 30)
    late = _lease(tmp_path / "here", owners, "b")
    with pytest.raises(LockedError, match=r"pid \d+ on far"):
        late.acquire()
    _elsewhere(owners, silent_for=EXPIRY + 1)
    told = late.acquire()
    assert told is not None
    assert f"silent for more than {EXPIRY:.0f} s" in told
    with pytest.raises(TableError, match="took the table over while this one stood still"):
        far.confirm()
    far.renew()
    late.confirm()  # the late sign of life of the other changes nothing
    late.release()


def test_two_folders_of_one_machine_do_not_share_locks(owners: Owners, tmp_path: Path) -> None:
    # Two containers with /tmp of their own: the free lock in one proves nothing of the other.
    first = _lease(tmp_path / "container-1", owners)
    first.acquire()
    with pytest.raises(LockedError):
        _lease(tmp_path / "container-2", owners, "b").acquire()
    first.release()


def test_a_heartbeat_keeps_it_alive(owners: Owners, tmp_path: Path) -> None:
    mine = _lease(tmp_path / "here", owners)
    mine.acquire()
    before = json.loads(owners.read("orders") or "")["alive_at"]
    beaten = threading.Event()
    renew = mine.renew

    def renewed() -> None:
        renew()
        beaten.set()

    mine.renew = renewed  # type: ignore[method-assign]
    with Heartbeat([mine], every=0.05):
        assert beaten.wait(20)
    assert json.loads(owners.read("orders") or "")["alive_at"] > before
    mine.confirm()
    mine.release()


class Elsewhere(CatalogOwners):
    """Another machine's records: each swap lets somebody else be first, as late as can be."""

    def __init__(self, lake: Lake, first: Callable[[], object]) -> None:
        super().__init__(lake)
        self._first: list[Callable[[], object]] = [first]

    def moved(self, base: Any, table: str, snapshot: Any) -> Any:
        for first in self._first:
            self._first = []
            first()
        return super().moved(base, table, snapshot)


def test_a_record_moves_only_from_what_was_read(shared_lake: Lake) -> None:
    owners = CatalogOwners(shared_lake)
    assert owners.swap("main", None, "m")  # a table may have any name
    assert not owners.swap("orders", "nobody", "a")
    # Between reading the record and the commit another takes it: one of them holds the table.
    late = Elsewhere(shared_lake, lambda: owners.swap("orders", None, "early"))
    assert not late.swap("orders", None, "late")
    assert owners.read("orders") == "early"
    # Another table's record does not stand in the way, also in that moment.
    other = Elsewhere(shared_lake, lambda: owners.swap("customers", None, "c"))
    assert other.swap("orders", "early", "next")
    # Giving it free is a swap like any other.
    late = Elsewhere(shared_lake, lambda: owners.swap("orders", "next", "again"))
    assert not late.swap("orders", "next", None)
    assert [owners.read(name) for name in ("orders", "customers", "main")] == ["again", "c", "m"]
    assert owners.swap("orders", "again", None)
    assert owners.read("orders") is None
    # What is gone leaves no trace: a snapshot a table, and a sign of life adds none.
    for sign in range(3):
        assert owners.swap("main", "m" if not sign else str(sign - 1), str(sign))
    assert len(list(shared_lake.handle("_cq_locks").snapshots())) == 3


def test_machines_race_for_a_table_of_a_shared_catalog(shared_lake: Lake, tmp_path: Path) -> None:
    lake = shared_lake
    CatalogOwners(lake).swap("other", None, "{}")  # the table is there
    for number in range(5):
        together = threading.Barrier(4)
        won: list[Lease] = []

        def race(machine: int, together: threading.Barrier, won: list[Lease]) -> None:
            owners = CatalogOwners(lake.for_thread())
            lease = _lease(tmp_path / f"machine-{machine}", owners, f"run-{machine}")
            together.wait()
            try:
                lease.acquire()
                won.append(lease)
            except LockedError:
                pass

        threads = [
            threading.Thread(target=race, args=(machine, together, won)) for machine in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, f"round {number}: {len(won)} hold the table"
        won[0].release()


def test_a_run_that_was_taken_over_publishes_nothing(
    project: Project, postgres_database: Database
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])
    owners = project.lake().lease("orders", "", "")._owners

    def overtake(step: str, table: str) -> None:
        if step == "staged":
            found = owners.read("orders")
            assert owners.swap("orders", found, Owner.of("b", "another/1:1").to_json())

    ended = run_with(project, overtake)["shop.orders"]
    assert str(ended.error).startswith("table shop.orders: another run took the table over")
    assert project.rows("select count(*) from raw.orders") == [(shop.FIRST,)]
    owners.swap("orders", owners.read("orders"), None)
    project.run()
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )
