"""Runs compact the state and ledger tables, without any command or option."""

from __future__ import annotations

import logging

import pytest

from loader.cli import system_table_upkeep
from loader.lake.locks import lock_table
from tests.services import Database
from tests.sync.project import Project


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limits: four files count as many, and two versions of each state are kept."""
    monkeypatch.setattr(system_table_upkeep, "MANY_FILES", 4)
    monkeypatch.setattr(system_table_upkeep, "VERSIONS", 2)


@pytest.fixture
def orders(project: Project, postgres_database: Database) -> Database:
    """A table of one row, synced four times with a new row each."""
    postgres_database.execute("create table orders (id int primary key)")
    project.jdbc(postgres_database, ["orders"], table_options={"orders": {"cursor_field": "id"}})
    for number in range(4):
        postgres_database.execute(f"insert into orders values ({number})")
        project.run()
    return postgres_database


def _count_files(project: Project, table: str) -> int:
    return project.lake().records(table).files()


def test_a_run_compacts_state_and_ledger(
    project: Project, orders: Database, low_limits: None
) -> None:
    assert (_count_files(project, "_cq_syncs"), _count_files(project, "_cq_state")) == (4, 4)
    ledger = project.rows("select batch, rows_appended from raw._cq_syncs order by 1")
    state = project.state("shop.orders")
    project.run()
    assert (_count_files(project, "_cq_syncs"), _count_files(project, "_cq_state")) == (
        1,
        2,
    )  # two versions
    assert project.rows("select batch, rows_appended from raw._cq_syncs order by 1") == [
        (None, 0),
        *ledger,
    ]
    assert project.state("shop.orders") == state
    assert project.rows("select version from raw._cq_state order by 1") == [(3,), (4,)]
    orders.execute("insert into orders values (9)")
    assert project.run().table("shop.orders")["batch"] == 5


def test_a_locked_table_is_compacted_by_the_next_run(
    project: Project, orders: Database, low_limits: None, caplog: pytest.LogCaptureFixture
) -> None:
    with lock_table(project.lake(), "_cq_state"), caplog.at_level(logging.WARNING, "loader"):
        project.run()  # it has no state to write
    assert not caplog.records
    assert _count_files(project, "_cq_state") == 4
    project.run()
    assert _count_files(project, "_cq_state") == 2


def test_an_error_during_compaction_does_not_fail_the_run(
    project: Project,
    orders: Database,
    low_limits: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("loader.maintenance.compaction.rewrite", broken)
    with caplog.at_level(logging.WARNING, "loader"):
        project.run()
    assert "no space left on device" in caplog.text


def test_manifests_are_merged_early(project: Project, postgres_database: Database) -> None:
    """Each reader opens all manifests of a table. By default, Iceberg merges them at a hundred."""
    postgres_database.execute("create table t (id int primary key)", "insert into t values (0)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    setting = "commit.manifest.min-count-to-merge"
    project.spark.sql(f"alter table {project.schema}.t unset tblproperties ('{setting}')")
    assert project.loader("compact").code == 0  # sets it on tables that were created without it
    assert project.lake().properties("t")[setting] == "8"
    for number in range(1, 10):
        postgres_database.execute(f"insert into t values ({number})")
        project.run()
    for table in ("t", "_cq_state", "_cq_syncs"):
        [(count,)] = project.rows(f"select count(*) from raw.{table}.manifests")
        assert count < 8, table
