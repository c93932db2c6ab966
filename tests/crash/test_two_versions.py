"""Two versions of the loader on one lake: an upgrade during a run, and a downgrade after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import loader.lake.ledger
import loader.state.value
from loader.state import TableState
from tests.crash import shop
from tests.crash.steps import run_with
from tests.services import Database
from tests.sync.project import Project

NEWER = (
    "a newer loader wrote the stored state (its format is 2, this version reads 1). Upgrade "
    "the loader here: this version could lose rows"
)


class Died(Exception):
    """Stops a run at a step, like a kill."""


@contextmanager
def _newer() -> Iterator[None]:
    """Makes this process act like a newer loader, whose states have a higher format number."""

    def to_json(state: TableState) -> str:
        return json.dumps({**json.loads(plain(state)), "format": 2}, sort_keys=True)

    plain = TableState.to_json
    with pytest.MonkeyPatch.context() as later:
        later.setattr(TableState, "to_json", to_json)
        later.setattr(loader.state.value, "FORMAT", 2)
        yield


@pytest.fixture
def shop_project(project: Project, postgres_database: Database) -> Project:
    """A project with a table that was synced once and has changed since."""
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])
    return project


def test_an_upgrade_during_an_older_loaders_run(
    shop_project: Project, postgres_database: Database
) -> None:
    """The newer loader skips the table while the older one holds it, and then continues."""
    project, met = shop_project, []

    def newer(step: str, name: str) -> None:
        if step == "staged":
            with _newer():
                met.append(str(run_with(project, lambda step, name: None)[name].error))

    ended = run_with(project, newer)
    assert ended["shop.orders"].error is None
    [refused] = met
    assert refused.startswith("table shop.orders: another run holds this table (run ")
    with _newer():
        assert project.run().table("shop.orders")["status"] == "nothing new"
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )


def test_a_newer_loader_that_died_before_it_stored_its_state(
    shop_project: Project, postgres_database: Database
) -> None:
    """Its batch is published; no command of the older loader replaces its state."""
    project = shop_project

    def die(step: str, name: str) -> None:
        if step == "published":
            raise Died

    with _newer():
        assert run_with(project, die)["shop.orders"].error is not None
    before = project.rows("select * from raw._cq_state")
    for command in (
        ("run",),
        ("run", "--full-refresh"),
        ("reconcile", "--repair"),
        ("state", "rebuild"),
    ):
        ran = project.loader(*command)
        assert (ran.code, [NEWER in error for error in ran.errors]) == (1, [True]), ran.text
    assert project.rows("select * from raw._cq_state") == before
    with _newer():
        project.run()
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )


def test_a_state_of_a_newer_loader_over_older_commits(shop_project: Project) -> None:
    """The newer loader has set a cursor: no command of the older one overwrites it."""
    project = shop_project
    with _newer():
        moved = ("state", "set", "shop.orders", "2025-01-01 00:00:00+00:00")
        assert project.loader(*moved).code == 0
    before = sorted(project.rows("select * from raw._cq_state"))
    for command in (
        ("state", "set", "shop.orders", "2024-01-01 00:00:00+00:00"),
        ("state", "reset", "shop.orders"),
        ("state", "rebuild"),
        ("run", "--full-refresh"),
    ):
        ran = project.loader(*command)
        assert (ran.code, [NEWER in error for error in ran.errors]) == (1, [True]), ran.text
    assert sorted(project.rows("select * from raw._cq_state")) == before
    with _newer():
        assert project.run().table("shop.orders")["batch"] == 2


def test_tables_with_columns_of_a_newer_loader(
    shop_project: Project, postgres_database: Database
) -> None:
    """An older loader leaves them null, unless the newer one has raised the state's format."""
    project = shop_project
    for table in ("_cq_state", "_cq_syncs", "orders"):
        project.spark.sql(f"alter table {project.schema}.{table} add column _cq_later string")
    ran = project.run()
    assert ran.table("shop.orders")["batch"] == 2
    assert [text for text in ran.warnings if "_cq_later" in text] == []
    assert project.rows("select count(*) from raw.orders where _cq_later is not null") == [(0,)]
    assert project.run().table("shop.orders")["status"] == "nothing new"
    shop.assert_whole(
        project, postgres_database, ["orders"], [shop.FIRST, shop.ADDED + shop.UPDATED]
    )
    assert project.loader("compact", "--select", "shop.orders").code == 0
