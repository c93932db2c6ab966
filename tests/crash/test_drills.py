"""The drills of docs/recovery.md: after each failure, the lake is complete and consistent."""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from loader.errors import TableError
from loader.lake import ledger
from loader.lake.catalog_lock_store import CatalogLockStore
from loader.spec.spec import load_spec
from loader.sync.destination_check import check_destination
from loader.sync.fault_injection import STEPS
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, run_tables
from tests.crash import shop
from tests.crash.steps import Hook, run_with
from tests.services import Database
from tests.services.rest_catalog import RestCatalog
from tests.sync.project import Project


def _table(step: str) -> str:
    return "t_" + step.replace("-", "_")


@pytest.mark.slow
def test_a_machine_that_is_paused_at_every_step(
    project: Project, postgres_database: Database
) -> None:
    """While it is suspended, another machine takes over the table and syncs it."""
    steps = [step for step in STEPS if step not in ("recovered-state", "unlocked")]
    tables = [_table(step) for step in steps]
    shop.create(postgres_database, tables)
    shop.configure(project, postgres_database, tables)
    project.run()
    shop.change(postgres_database, tables)
    folder = Path(project.spark.conf.get("spark.sql.catalog.lake.warehouse") or "")
    paused: set[str] = set()
    heirs: list[Outcome] = []

    def heir(table: str) -> None:
        """Syncs a table on another machine, whose kernel does not see this one's locks."""
        (folder / project.schema / f"{table}.lock").unlink()
        pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
        heirs.extend(run_tables(pipeline, Watch(), [f"shop.{table}"], False, 1))

    def pause(step: str, name: str) -> None:
        table = name.partition(".")[2]
        if table == _table(step) and table not in paused:
            paused.add(table)
            thread = threading.Thread(target=heir, args=(table,))
            thread.start()
            thread.join()

    ended = run_with(project, pause)
    assert paused == set(tables)
    assert [str(one.error) for one in heirs if one.error] == []
    for step in steps:
        error = str(ended[f"shop.{_table(step)}"].error)
        if step == "ledger-recorded":  # nothing was left to write
            assert error == "None"
        else:
            assert "another run took over the table while this run was suspended" in error, step
    project.run()  # what the paused runs had staged is deleted
    shop.assert_whole(project, postgres_database, tables, [shop.FIRST, shop.ADDED + shop.UPDATED])


def test_a_clock_that_is_set_back(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no effect: the database sets the cursor, and batches are ordered by number."""
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])

    def hours_ago() -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=5)

    clock = ledger.now
    for name, module in list(sys.modules.items()):
        if name.startswith("loader.") and vars(module).get("now") is clock:
            monkeypatch.setattr(module, "now", hours_ago)
    assert project.run().table("shop.orders")["batch"] == 2
    assert project.run().table("shop.orders")["status"] == "nothing new"
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )
    assert project.loader("compact").code == 0


@contextmanager
def _read_only(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Makes a folder read-only; for root, by a mount or a limit on file sizes."""
    if os.geteuid():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    mount = ("mount", "--bind", str(folder), str(folder))
    if not subprocess.run(mount, capture_output=True, check=False).returncode:
        subprocess.run(("mount", "-o", "remount,ro,bind", str(folder)), check=True)
        try:
            yield
        finally:
            subprocess.run(("umount", "-l", str(folder)), check=True)
        return
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_a_warehouse_that_cannot_be_written(
    project: Project, postgres_database: Database, warehouse: Path
) -> None:
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])
    with _read_only(project.spark, warehouse / project.schema):
        ran = project.loader("run")
        checked = project.loader("check")
    assert (ran.code, checked.code) == (1, 1)
    lake = f"destination lake, schema {project.schema}: it cannot be written to: "
    for errors, start in ((ran.errors, "table shop.orders: "), (checked.errors, lake)):
        [error] = errors
        assert error.startswith(start)
        denials = ("read-only", "permission denied", "file too large", "mkdirs failed")
        assert any(reported in error.lower() for reported in denials), error
        assert error.endswith(("no partial batch is visible", "use another warehouse")), error
        assert "This is a bug" not in error
    with pytest.raises(TableError, match="did not write a row within 0 seconds"):
        check_destination(project.lake(), "lake", deadline=0)
    for thread in threading.enumerate():
        if thread.name == "check-destination":
            thread.join()
    assert project.loader("check").code == 0
    assert not [name for name in project.lake().tables() if name.startswith("_cq_check")]
    project.run()
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )


def test_a_state_store_that_is_gone(project: Project, postgres_database: Database) -> None:
    """The state table is dropped; the cursor is restored from the newest commit."""
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    project.spark.sql(f"drop table {project.schema}._cq_state")
    shop.change(postgres_database, ["orders"])
    ran = project.run()
    assert any("state was behind: rolled forward to batch 1" in text for text in ran.warnings)
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )


def test_credentials_that_are_rotated_between_two_runs(
    project: Project, postgres_database: Database
) -> None:
    database, user = postgres_database, f"rotated_{project.schema}"
    shop.create(database, ["orders"])
    database.execute(
        f"create role {user} login password 'first'",
        f"grant select on all tables in schema public to {user}",
    )
    secret = project.folder / "password"
    secret.write_text("first\n")
    project.jdbc(
        database,
        ["orders"],
        user=user,
        password=f"${{file:{secret}}}",
        table_options={"orders": {"cursor_field": "at"}},
    )
    project.run()
    database.execute(f"alter role {user} password 'second'")
    shop.change(database, ["orders"])
    failed = project.loader("run")
    assert failed.code == 1
    assert "password authentication failed" in failed.errors[0]
    assert "first" not in failed.text
    secret.write_text("second\n")
    project.run()
    shop.assert_whole(project, database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED])
    database.execute(f"drop owned by {user}", f"drop role {user}")


def test_credentials_that_are_rotated_during_a_run(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables read before are kept; later ones fail, until the variable is updated."""
    database, user, tables = postgres_database, f"midst_{project.schema}", ["first", "second"]
    before, after = "old-Tr0ub4dor", "new-c0rrecthorse"
    shop.create(database, tables)
    database.execute(
        f"create role {user} login password '{before}'",
        f"grant select on all tables in schema public to {user}",
    )
    monkeypatch.setenv("ROTATED_PASSWORD", before)
    options = {table: {"cursor_field": "at"} for table in tables}
    password = "${ROTATED_PASSWORD}"
    project.jdbc(database, tables, user=user, password=password, table_options=options)
    project.run()
    shop.change(database, tables)
    ended = []

    def rotate(step: str, name: str) -> None:
        if step == "published" and not ended:
            ended.append(name)
            database.execute(f"alter role {user} password '{after}'")

    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    outcomes = list(run_tables(pipeline, Watch(steps=Hook(rotate)), (), False, 1))
    [lost] = [outcome for outcome in outcomes if outcome.error is not None]
    assert [outcome.table for outcome in outcomes if outcome.error is None] == ended
    assert str(lost.error).startswith(f"table {lost.table}: ")
    assert "password authentication failed" in str(lost.error)
    # runs with the old password report the same error, and write no batch
    for _ in range(2):
        ran = project.loader("run")
        assert ran.code == 1
        [error] = ran.errors
        assert "password authentication failed" in error
        assert before not in ran.text
    monkeypatch.setenv("ROTATED_PASSWORD", after)
    ran = project.run()
    assert ran.table(ended[0])["status"] == "nothing new"
    assert ran.table(lost.table)["batch"] == 2
    shop.assert_whole(project, database, tables, [shop.FIRST, shop.ADDED + shop.UPDATED])
    errors = project.rows("select error from raw._cq_syncs where error is not null")
    assert not [text for (text,) in errors if before in text or after in text]
    database.execute(f"drop owned by {user}", f"drop role {user}")


def test_a_catalog_that_is_unavailable_for_a_while(spark: SparkSession, tmp_path: Path) -> None:
    """Meanwhile, a lock cannot be confirmed; afterwards, heartbeats and locks work again."""
    from tests.crash.test_lease import _lake, _lease

    served = RestCatalog(spark, tmp_path / "served")
    catalog = "away_" + project_name(tmp_path)
    # clients retry for half a minute by default
    patience = {f"spark.sql.catalog.{catalog}.rest.client.max-retries": "1"}
    lake = _lake(spark, {**served.settings(catalog), **patience})
    owners = CatalogLockStore(lake)
    mine = _lease(tmp_path / "here", owners)
    assert mine.acquire() is None
    owners.write_heartbeat("a", "1")
    with served.away(), pytest.raises(Py4JJavaError, match="unavailable"):
        mine.confirm()
    mine.confirm()
    owners.write_heartbeat("a", "2")
    assert owners.read_heartbeat("a") == "2"
    mine.release()
    served.close()


def project_name(folder: Path) -> str:
    """Returns a catalog name that no other test uses."""
    return "".join(c for c in folder.name if c.isalnum())


def test_a_newer_loader_on_the_same_lake(project: Project, postgres_database: Database) -> None:
    """The older loader refuses the newer one's state, and appends nothing."""
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    newer = json.dumps({**project.state("shop.orders"), "format": 2})
    project.spark.sql(
        f"insert into {project.schema}._cq_state select key, '{newer}', 2, updated_at "
        f"from {project.schema}._cq_state"
    )
    shop.change(postgres_database, ["orders"])
    ran = project.loader("run")
    assert ran.code == 1
    [error] = ran.errors
    assert error == (
        "state shop.orders: a newer loader wrote the stored state (its format is 2, this "
        "version reads 1). Upgrade the loader here: this version could lose rows"
    )
    assert project.rows("select max(_cq_batch) from raw.orders") == [(1,)]
