"""If a run is killed at any step, the next run leaves no gap, partial batch or duplicate.

Only durable changes survive a crash, and tables share nothing durable except the state table and
the ledger, which change in whole commits. So one crash tests many tables: each is at a different
step when the process dies (`LOADER_CRASH_AT` lists several places), and the next run recovers all
of them. Tables at the steps of a recovery have failed once before, after they were published.
Durable when a step is reached:

=================  ==============================================================================
locked             the lock record
recovered-state    after a crash: the newest commit's state, but not its ledger row
recovered          after a crash: both; otherwise, nothing more than at `locked`
windowed           nothing more: only the process knows the window
extracted          nothing more: only the process has the rows
prepared           the raw table, empty or altered (tests/drift/test_crash.py)
staged             a snapshot that no reader sees
published          the batch; not the state, not the ledger row
state-recorded     the state; not the ledger row
ledger-recorded    the ledger row; the lock record still exists
unlocked           the removal of the lock record
=================  ==============================================================================

A kill leaves everything that earlier steps made durable. So `extracted` also covers `windowed`,
and, in a first sync, `locked`. A single table is different only if it is the lake's first: then the
state table and the ledger are new, too. This is tested at the steps before and after their first
commits.
"""

from __future__ import annotations

import signal

import pytest

from loader.sync.fault_injection import STEPS
from tests.crash import shop
from tests.crash.steps import break_off, run_with
from tests.crash.workers import Worker, Workers
from tests.services import Database
from tests.sync.project import Project

FIRST = (shop.FIRST,)
SECOND = (shop.FIRST, shop.ADDED + shop.UPDATED)
RECOVERING = ("recovered-state", "recovered")
"""Steps that have something to do only after another crash."""

LATER = [step for step in STEPS if step != "windowed"]
FIRSTS = [step for step in LATER if step != "locked"]


def _kill_at(worker: Worker, project: Project, places: dict[str, str]) -> None:
    """Runs until each of these tables has reached its step, where the process dies."""
    crash_at = ",".join(f"{step}:shop.{table}" for table, step in places.items())
    chosen = [option for table in places for option in ("--select", f"shop.{table}")]
    worker.start(project, "run", "--concurrency", str(len(places)), *chosen, crash_at=crash_at)
    assert worker.died() == signal.SIGKILL


@pytest.mark.slow
def test_killed_at_every_step_of_a_first_and_of_an_incremental_sync(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """19 tables, each at a different step: no gap, no partial batch, no duplicate."""
    victim = workers.take()
    first = {f"first_{step.replace('-', '_')}": step for step in FIRSTS}
    later = {f"later_{step.replace('-', '_')}": step for step in LATER}
    shop.create(postgres_database, [*first, *later])
    shop.configure(project, postgres_database, list(later))
    project.run("--concurrency", "4")
    shop.change(postgres_database, list(later))
    shop.configure(project, postgres_database, [*first, *later])
    places = {**first, **later}

    recovering = [f"shop.{table}" for table, step in places.items() if step in RECOVERING]
    break_off(project, "published", recovering)
    _kill_at(victim, project, places)
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
def test_killed_while_several_tables_are_recorded(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """It dies between the commit of all states and the commit of all ledger rows.

    The tables are the lake's first, so there is no ledger yet. Later syncs use one commit, too.
    """
    victim = workers.take()
    names = shop.names(3)
    shop.create(postgres_database, names)
    shop.configure(project, postgres_database, names)
    victim.start(project, "run", crash_at="state-recorded")
    assert victim.died() == signal.SIGKILL
    assert (_count_states(project, 1), _count_ledger_rows(project, 1)) == (3, 0)
    project.run()
    again = project.run()
    assert {again.table(f"shop.{name}")["status"] for name in names} == {"nothing new"}
    shop.assert_whole(project, postgres_database, names, FIRST)

    shop.change(postgres_database, names)
    found: dict[str, tuple[int, int]] = {}

    def count(step: str, table: str) -> None:
        if step in ("state-recorded", "ledger-recorded") and step not in found:
            found[step] = _count_states(project, 2), _count_ledger_rows(project, 2)

    run_with(project, count)
    assert found == {"state-recorded": (3, 0), "ledger-recorded": (3, 3)}
    shop.assert_whole(project, postgres_database, names, SECOND)


def _count_states(project: Project, version: int) -> int:
    """Returns how many tables have a state of this version."""
    [(count,)] = project.rows(f"select count(*) from raw._cq_state where version = {version}")
    return int(count)


def _count_ledger_rows(project: Project, batch: int) -> int:
    """Returns how many tables have a ledger row for this batch."""
    if not project.lake().exists("_cq_syncs"):
        return 0
    [(count,)] = project.rows(f"select count(*) from raw._cq_syncs where batch = {batch}")
    return int(count)


@pytest.mark.slow
def test_killed_in_the_first_sync_of_a_lake(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """The batch is published, but there is no state table. The test above has a state table."""
    victim = workers.take()
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    _kill_at(victim, project, {"orders": "published"})
    assert shop.batches_seen(project, ["orders"])["orders"] == [(1, shop.FIRST)]
    project.run()
    assert project.run().table("shop.orders")["status"] == "nothing new"
    shop.assert_whole(project, postgres_database, ["orders"], FIRST)
