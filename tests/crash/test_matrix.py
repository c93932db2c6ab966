"""Killed at every step, and run again: as if nothing had happened.

A crash leaves what is durable, and tables share nothing durable but the state table and the
ledger, which both take whole commits. So one crash tests many tables: each is at a different step
when the process dies (`LOADER_CRASH_AT` with several places), and the next run finds all of these
positions at once. What is durable when a step is reached:

=================  ==============================================================================
locked             the owner's record of the lock
recovered-state    after a crash: the newest commit's state, and not its ledger row
recovered          after a crash: both; else nothing more than at `locked`
windowed           nothing more: the window is the process's own
extracted          nothing more: the rows are the process's own
prepared           the raw table, empty or altered (tests/drift/test_crash.py)
staged             a snapshot that no reader sees
published          the batch; neither state nor ledger
state-recorded     the state; not the ledger row
ledger-recorded    the ledger row; the lock's record is still there
unlocked           the lock's record is gone
=================  ==============================================================================

A kill leaves everything that the steps before it made durable. So `extracted` stands for
`windowed`, and in a first sync for `locked` as well. A single table differs only if it is the
lake's first: then state table and ledger are new, too. That is tested at the steps on both sides
of each of their first commits.
"""

from __future__ import annotations

import signal

import pytest

from loader.sync.drill import STEPS
from tests.crash import shop
from tests.crash.workers import Worker, Workers
from tests.services import Database
from tests.sync.project import Project

FIRST = (shop.FIRST,)
SECOND = (shop.FIRST, shop.ADDED + shop.UPDATED)
RECOVERING = ("recovered-state", "recovered")
"""Steps that have something to do only after another crash."""

LATER = [step for step in STEPS if step != "windowed"]
FIRSTS = [step for step in LATER if step != "locked"]


def _killed(worker: Worker, project: Project, places: dict[str, str]) -> None:
    """Runs until each of these tables is at its step, and dies there."""
    crash_at = ",".join(f"{step}:shop.{table}" for table, step in places.items())
    chosen = [option for table in places for option in ("--select", f"shop.{table}")]
    worker.start(project, "run", "--concurrency", str(len(places)), *chosen, crash_at=crash_at)
    assert worker.died() == signal.SIGKILL


@pytest.mark.slow
def test_killed_at_every_step_of_a_first_and_of_an_incremental_sync(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """No gap, no torn batch, no double: 19 tables, each at a different step."""
    victims = [workers.take(), workers.take()]
    first = {f"first_{step.replace('-', '_')}": step for step in FIRSTS}
    later = {f"later_{step.replace('-', '_')}": step for step in LATER}
    shop.create(postgres_database, [*first, *later])
    shop.configure(project, postgres_database, list(later))
    project.run("--concurrency", "4")
    shop.change(postgres_database, list(later))
    shop.configure(project, postgres_database, [*first, *later])
    places = {**first, **later}

    _killed(
        victims[0],
        project,
        {table: "published" for table, step in places.items() if step in RECOVERING},
    )
    _killed(victims[1], project, places)
    seen = shop.batches_seen(project, [*places])
    order = list(STEPS)
    for table, step in places.items():
        after = SECOND if table in later else FIRST
        visible = step in RECOVERING or order.index(step) >= order.index("published")
        batches = after if visible else after[:-1]
        assert seen[table] == list(enumerate(batches, 1)), f"{table}: a reader sees part of a batch"

    project.run("--concurrency", "4")
    again = project.run("--concurrency", "4")
    assert {again.table(f"shop.{table}")["status"] for table in places} == {"nothing new"}
    shop.assert_whole(project, postgres_database, [*first], FIRST)
    shop.assert_whole(project, postgres_database, [*later], SECOND)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["state-recorded", "ledger-recorded"])
def test_killed_while_several_tables_are_recorded(
    project: Project, postgres_database: Database, workers: Workers, step: str
) -> None:
    """One commit for states, one for the ledger: it stops between them, or before unlocking."""
    victim = workers.take()
    names = shop.names(3)
    shop.create(postgres_database, names)
    shop.configure(project, postgres_database, names)
    project.run()
    shop.change(postgres_database, names)
    victim.start(project, "run", crash_at=step)
    assert victim.died() == signal.SIGKILL
    states = project.rows("select count(*) from raw._cq_state where version = 2")
    synced = project.rows("select count(*) from raw._cq_syncs where batch = 2")
    assert states == [(3,)]
    assert synced == [(0 if step == "state-recorded" else 3,)]
    project.run()
    again = project.run()
    assert {again.table(f"shop.{name}")["status"] for name in names} == {"nothing new"}
    shop.assert_whole(project, postgres_database, names, SECOND)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["published", "state-recorded"])
def test_killed_in_the_first_sync_of_a_lake(
    project: Project, postgres_database: Database, workers: Workers, step: str
) -> None:
    victim = workers.take()
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    _killed(victim, project, {"orders": step})
    assert shop.batches_seen(project, ["orders"])["orders"] == (
        [] if step == "locked" else [(1, shop.FIRST)]
    )
    project.run()
    assert project.run().table("shop.orders")["status"] == "nothing new"
    shop.assert_whole(project, postgres_database, ["orders"], FIRST)
