"""Leases: only one run may write a table, and the lease of a dead run is taken over."""

from __future__ import annotations

import datetime as dt
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from loader.errors import LockedError, TableError
from loader.lake.catalog_lock_store import CatalogLockStore
from loader.lake.lake import Lake
from loader.lake.lock_store import FileLockStore, LockRecord, LockStore, StalenessClock
from loader.lake.locks import (
    POLL_INTERVAL,
    Heartbeat,
    Lease,
    acquire_all,
    confirm_all,
    create_lease,
    release_all,
)
from loader.spark.session import sibling
from loader.sync import runner
from loader.sync.run_context import Watch
from tests.crash import shop
from tests.crash.steps import run_with
from tests.services import Database
from tests.services.pyiceberg_catalog import PyIcebergCatalog
from tests.services.rest_catalog import RestCatalog
from tests.sync.project import Project

EXPIRY = 30.0
"""Seconds without a heartbeat after which a lease expires; the loader's default is longer."""


class Clock:
    """A fake clock of this machine, which only waiting advances.

    Attributes:
        meanwhile: called during each wait, for events on another machine.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.time = 0.0
        self.meanwhile = meanwhile

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.meanwhile()


def _lease(
    folder: Path,
    owners: LockStore,
    run_id: str = "a",
    table: str = "orders",
    clock: Clock | None = None,
) -> Lease:
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{table}.lock", thread_local=False)
    clock = clock or Clock()
    staleness = StalenessClock(lambda: clock.time)
    where = "table shop.orders"
    return Lease(table, where, lock, owners, run_id, EXPIRY, staleness=staleness, sleep=clock.wait)


def _elsewhere(owners: LockStore, ago: float) -> None:
    """Makes the record another machine's, which took the lock that long ago by its own clock."""
    found = owners.read("orders")
    owner = LockRecord.from_json(found)
    assert owner is not None
    far = replace(owner, host="far", place="another/1:1", taken_at=_ago(ago))
    assert owners.swap("orders", found, far.to_json())


def _ago(seconds: float) -> str:
    then = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=seconds)
    return then.isoformat(timespec="milliseconds")


@pytest.fixture(params=["files", "catalog"])
def owners(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> LockStore:
    """Each kind of store for lock records."""
    if request.param == "files":
        return FileLockStore(tmp_path)
    database: Database = request.getfixturevalue("postgres_database")
    return CatalogLockStore(_shared_lake(spark, database, tmp_path))


@pytest.fixture
def rest_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[RestCatalog]:
    """A REST catalog on loopback."""
    catalog = RestCatalog(spark, tmp_path / "served")
    yield catalog
    catalog.close()


@pytest.fixture
def pyiceberg_catalog(tmp_path: Path) -> Iterator[PyIcebergCatalog]:
    """Another REST catalog on loopback, with different rules for commits."""
    catalog = PyIcebergCatalog(tmp_path / "pyiceberg")
    yield catalog
    catalog.stop()


@pytest.fixture(params=["jdbc", "rest", "pyiceberg", "hadoop"])
def shared_lake(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Lake:
    """A lake in each kind of catalog that several machines may share."""
    if request.param == "jdbc":
        return _shared_lake(spark, request.getfixturevalue("postgres_database"), tmp_path)
    if request.param == "rest":
        served: RestCatalog = request.getfixturevalue("rest_catalog")
        return _lake(spark, served.settings("served_" + uuid.uuid4().hex[:8]))
    if request.param == "pyiceberg":
        other: PyIcebergCatalog = request.getfixturevalue("pyiceberg_catalog")
        return _lake(spark, other.settings("served_" + uuid.uuid4().hex[:8]))
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
    """Returns a lake whose catalog is a PostgreSQL database, which several machines could share."""
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


def test_one_run_holds_a_table_and_releases_it(owners: LockStore, tmp_path: Path) -> None:
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
    owners: LockStore, tmp_path: Path
) -> None:
    dead = _lease(tmp_path / "here", owners)
    dead.acquire()
    dead._lock.release()  # as the kernel does with a killed process's lock
    heir = _lease(tmp_path / "here", owners, "b")
    reported = heir.acquire()
    assert reported is not None
    assert reported.startswith("taken over from another run, whose process has exited (run a, pid")
    heir.release()


def test_a_lease_with_recent_heartbeats_is_refused_at_once(
    owners: LockStore, tmp_path: Path
) -> None:
    far = _lease(tmp_path / "there", owners)
    far.acquire()
    clock = Clock()
    _elsewhere(owners, ago=EXPIRY - 10)
    with pytest.raises(LockedError, match=r"pid \d+ on far, since .* last heartbeat 2\d s ago"):
        _lease(tmp_path / "here", owners, "b", clock=clock).acquire()
    _elsewhere(owners, ago=10 * EXPIRY)
    owners.write_heartbeat("a", _ago(5))
    with pytest.raises(LockedError, match=r"last heartbeat [5-9] s ago"):
        _lease(tmp_path / "here", owners, "b", clock=clock).acquire()
    assert clock.time == 0
    far.release()


@pytest.mark.parametrize("skew", [150.0, -86_400.0])
def test_another_machines_clock_does_not_matter(
    owners: LockStore, tmp_path: Path, skew: float
) -> None:
    far = _lease(tmp_path / "there", owners)
    far.acquire()
    _elsewhere(owners, ago=skew + 1)
    signs = 0

    def live() -> None:
        """Sends a heartbeat of the other machine every 20 seconds, by that machine's clock."""
        nonlocal signs
        if clock.time >= 20 * (signs + 1):
            signs += 1
            owners.write_heartbeat("a", _ago(skew - clock.time))

    clock = Clock(live)
    owners.write_heartbeat("a", _ago(skew))
    reported: list[str] = []
    with pytest.raises(LockedError, match=r"pid \d+ on far"):
        _lease(tmp_path / "here", owners, "b", clock=clock).acquire(reported.append)
    assert clock.time <= 20 + POLL_INTERVAL
    assert [re.sub(r"run .* may", "it may", text) for text in reported] == [
        f"it may be dead: waiting for up to {EXPIRY:.0f} s"
    ]
    clock.meanwhile = lambda: None
    clock.time = 0
    late = _lease(tmp_path / "here", owners, "b", clock=clock)
    taken = late.acquire()
    assert clock.time == pytest.approx(EXPIRY)
    assert taken is not None
    assert taken.startswith(
        f"taken over from another run, which sent no heartbeat for {EXPIRY:.0f} s (run a, pid"
    )
    assert owners.read_heartbeat("a") is None
    with pytest.raises(TableError, match="took over the table while this run was suspended"):
        far.confirm()
    late.confirm()
    far.release()  # a late release of the previous lease changes nothing
    late.confirm()
    late.release()


def test_the_tables_of_a_dead_run_are_waited_for_together(
    owners: LockStore, tmp_path: Path
) -> None:
    clock = Clock()
    tables = ["orders", "items", "lines"]
    dead = LockRecord("gone", "far", "another/1:1", 7, _ago(EXPIRY + 1)).to_json()
    assert owners.swap_all(dict.fromkeys(tables, (None, dead))) == set(tables)
    owners.write_heartbeat("gone", _ago(EXPIRY + 1))
    leases = [_lease(tmp_path / "here", owners, "b", table, clock) for table in tables]
    for lease in leases[1:]:
        lease._staleness = leases[0]._staleness
    taken = acquire_all(leases)
    assert all(str(reported).startswith("taken over from another run, which") for reported in taken)
    assert clock.time == pytest.approx(EXPIRY)
    assert owners.read_heartbeat("gone") is None
    for lease in leases:
        lease.release()


def test_time_during_a_suspension_does_not_count_as_silence() -> None:
    clock = Clock()
    staleness = StalenessClock(lambda: clock.time, max_gap=10)
    assert staleness.unchanged_for("a", "sign") == 0
    clock.time += 5
    assert staleness.unchanged_for("a", "sign") == 5
    clock.time += 600  # this machine was suspended, and maybe the other one, too
    assert staleness.unchanged_for("a", "sign") == 15
    assert staleness.unchanged_for("a", "another sign") == 0


def test_a_record_of_another_version_counts_as_a_lock(owners: LockStore, tmp_path: Path) -> None:
    clock = Clock()
    assert owners.swap("orders", None, '{"run": "of another version"}')
    late = _lease(tmp_path / "here", owners, "b", clock=clock)
    assert "no heartbeat for" in str(late.acquire())
    assert clock.time == pytest.approx(EXPIRY)
    late.release()


def test_two_folders_of_one_machine_do_not_share_locks(owners: LockStore, tmp_path: Path) -> None:
    # Two containers, each with its own /tmp: a free lock in one proves nothing about the other.
    first = _lease(tmp_path / "container-1", owners)
    first.acquire()
    with pytest.raises(LockedError):
        _lease(tmp_path / "container-2", owners, "b").acquire()
    first.release()


def test_one_heartbeat_covers_all_tables_of_a_run(owners: LockStore, tmp_path: Path) -> None:
    leases = [_lease(tmp_path / "here", owners, "a", f"t{number}") for number in range(3)]
    assert acquire_all(leases) == [None] * 3
    given: list[str | None] = []
    beaten = threading.Event()
    give_sign = owners.write_heartbeat

    def signed(run_id: str, text: str | None) -> None:
        give_sign(run_id, text)
        given.append(text)
        if len(given) > 1:
            beaten.set()

    owners.write_heartbeat = signed  # type: ignore[method-assign]
    records = [owners.read(lease.table) for lease in leases]
    with Heartbeat(leases, interval=0.05):
        assert beaten.wait(30)
    assert given[-1] is None
    assert sorted(set(given[:-1])) == given[:-1]  # type: ignore[type-var]
    assert owners.read_heartbeat("a") is None
    assert [owners.read(lease.table) for lease in leases] == records
    for lease in leases:
        lease.confirm()
        lease.release()


def test_the_locks_of_many_tables_are_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    lake = _lake(
        spark,
        {
            "spark.sql.catalog.many": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.many.type": "hadoop",
            "spark.sql.catalog.many.warehouse": str(tmp_path / "many"),
            "spark.sql.catalog.many.cache-enabled": "false",
            "spark.sql.defaultCatalog": "many",
        },
    )
    owners = CatalogLockStore(lake)

    def commits() -> int:
        """Returns the number of versions of the lock table."""
        place = str(lake.handle("_cq_locks").operations().current().metadataFileLocation())
        return int(re.findall(r"v(\d+)\.metadata", place)[0])

    leases = [_lease(tmp_path / "here", owners, "a", f"t{number}") for number in range(50)]
    assert acquire_all(leases) == [None] * 50
    assert commits() == 3  # creating the table and its branch, and all records
    owners.write_heartbeat("a", _ago(0))
    assert commits() == 4
    assert len(list(lake.handle("_cq_locks").snapshots())) == 3
    owners.write_heartbeat("a", None)
    assert commits() == 5
    for lease in leases[:2]:
        lease.release()
    assert [owners.read(f"t{number}") is None for number in range(3)] == [True, True, False]
    assert commits() == 7
    assert release_all(leases) == [None] * 50
    assert commits() == 8
    assert owners.read("t49") is None
    assert release_all(leases) == [None] * 50
    assert commits() == 8


def test_of_many_tables_only_those_that_were_taken_over_are_refused(
    owners: LockStore, tmp_path: Path
) -> None:
    names = ["items", "orders", "lines"]
    leases = [_lease(tmp_path / "here", owners, "a", name) for name in names]
    assert acquire_all(leases) == [None] * 3
    _elsewhere(owners, 0)
    taken = owners.read("orders")
    kept, lost, also_kept = confirm_all(leases)
    assert (kept, also_kept) == (None, None)
    assert "took over the table" in str(lost)
    assert release_all(leases) == [None] * 3
    assert [owners.read(name) for name in names] == [None, taken, None]
    for lease in leases:  # the file locks are free, too
        lease._lock.acquire(timeout=0)
        lease._lock.release()


def test_tables_whose_records_cannot_be_removed_free_their_files(
    owners: LockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [_lease(tmp_path / "here", owners, "a", name) for name in ("orders", "lines")]
    acquire_all(leases)

    def fail(*_: object) -> set[str]:
        raise OSError("the catalog is away")

    monkeypatch.setattr(owners, "swap_all", fail)
    assert [str(error) for error in release_all(leases)] == ["the catalog is away"] * 2
    monkeypatch.undo()
    heirs = [_lease(tmp_path / "here", owners, "b", name) for name in ("orders", "lines")]
    assert all("whose process has exited" in str(result) for result in acquire_all(heirs))
    assert release_all(heirs) == [None] * 2


class Elsewhere(CatalogLockStore):
    """A lock store in which another run commits immediately before the first commit."""

    def __init__(self, lake: Lake, first: Callable[[], object]) -> None:
        super().__init__(lake)
        self._first: list[Callable[[], object]] = [first]

    def move_tags(self, base: Any, snapshots: Mapping[str, Any]) -> Any:
        for first in self._first:
            self._first = []
            first()
        return super().move_tags(base, snapshots)


def test_a_swap_fails_if_the_record_has_changed(shared_lake: Lake) -> None:
    owners = CatalogLockStore(shared_lake)
    assert owners.swap("main", None, "m")  # a table may have any name
    assert not owners.swap("orders", "nobody", "a")
    # Another run takes the record between the read and the commit: only one holds the table.
    late = Elsewhere(shared_lake, lambda: owners.swap("orders", None, "early"))
    assert not late.swap("orders", None, "late")
    assert owners.read("orders") == "early"
    # A commit for another table at that moment does not make the swap fail.
    other = Elsewhere(shared_lake, lambda: owners.swap("customers", None, "c"))
    assert other.swap("orders", "early", "next")
    # A release is a swap like any other.
    late = Elsewhere(shared_lake, lambda: owners.swap("orders", "next", "again"))
    assert not late.swap("orders", "next", None)
    assert [owners.read(name) for name in ("orders", "customers", "main")] == ["again", "c", "m"]
    assert owners.swap("orders", "again", None)
    assert owners.read("orders") is None
    # Each held table has one snapshot, and so has the branch; released tables have none, and new
    # records of the same table add none.
    for sign in range(3):
        assert owners.swap("main", "m" if not sign else str(sign - 1), str(sign))
    assert len(list(shared_lake.handle("_cq_locks").snapshots())) == 3


def test_a_catalog_that_refuses_lock_records_is_quoted(
    spark: SparkSession, pyiceberg_catalog: PyIcebergCatalog, tmp_path: Path
) -> None:
    """The error does not claim that another run holds the table."""
    lake = _lake(spark, pyiceberg_catalog.settings("refusing_" + uuid.uuid4().hex[:8]))
    owners = CatalogLockStore(lake)
    assert owners.swap("orders", None, None)  # the table exists
    pyiceberg_catalog.refusal = 409, "Requirement failed: tags are not supported"
    with pytest.raises(TableError) as refused:
        _lease(tmp_path / "here", owners).acquire()
    assert str(refused.value) == (
        "table raw._cq_locks: the catalog refuses lock records: Commit failed: Requirement failed: "
        "tags are not supported. Check the catalog server's log. Locks need a catalog that accepts "
        "tags of Iceberg tables"
    )
    pyiceberg_catalog.refusal = 403, "this account may not write"
    with pytest.raises(Py4JJavaError, match="this account may not write"):
        _lease(tmp_path / "here", owners).acquire()
    pyiceberg_catalog.refusal = None
    _lease(tmp_path / "here", owners).acquire()


def test_a_run_that_waits_for_another_sends_heartbeats(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It already holds other tables, which a third machine must not take over."""
    clock = Clock()
    owners = FileLockStore(tmp_path)
    far = LockRecord("gone", "far", "another/1:1", 7, _ago(EXPIRY + 1)).to_json()
    assert owners.swap("orders", None, far)
    beating: list[Lease] = []
    waited: list[list[str]] = []
    clock.meanwhile = lambda: waited.append([lease.table for lease in beating])
    monkeypatch.setattr(
        runner,
        "create_lease",
        lambda lake, table, where, run_id: _lease(tmp_path, owners, run_id, table, clock),
    )
    plans: Any = [SimpleNamespace(name=f"shop.{n}", lake_table=n) for n in ("items", "orders")]
    lake: Any = None
    leases = runner.lock_all(plans, lake, Watch(), "b", beating)
    assert leases == beating
    assert waited[0] == ["items", "orders"]


def test_machines_race_for_a_table_of_a_shared_catalog(shared_lake: Lake, tmp_path: Path) -> None:
    lake = shared_lake
    CatalogLockStore(lake).swap("other", None, "{}")  # the table exists
    for number in range(5):
        together = threading.Barrier(4)
        won: list[Lease] = []

        def race(machine: int, together: threading.Barrier, won: list[Lease]) -> None:
            owners = CatalogLockStore(lake.for_thread())
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


@pytest.mark.parametrize("at", ["staged", "published", "state-recorded"])
def test_a_run_that_was_taken_over_writes_nothing_more(
    project: Project, postgres_database: Database, at: str
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])
    owners = create_lease(project.lake(), "orders", "", "").store
    batches = "select count(distinct _cq_batch) from raw.orders"
    states = "select count(*) from raw._cq_state"
    syncs = "select count(*) from raw._cq_syncs where status <> 'failed'"
    written: list[int] = []

    def overtake(step: str, table: str) -> None:
        if step == at:
            found = owners.read("orders")
            assert owners.swap("orders", found, LockRecord.of("b", "another/1:1").to_json())
            written.extend(project.rows(query)[0][0] for query in (batches, states, syncs))

    ended = run_with(project, overtake)["shop.orders"]
    assert str(ended.error).startswith("table shop.orders: another run took over the table")
    assert [project.rows(query)[0][0] for query in (batches, states, syncs)] == written
    assert (
        written
        == {
            "staged": [1, 1, 1],
            "published": [2, 1, 1],
            "state-recorded": [2, 2, 1],
        }[at]
    )
    owners.swap("orders", owners.read("orders"), None)
    project.run()
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )
