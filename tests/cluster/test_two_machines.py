"""Two machines that sync the same table: only one of them writes it at a time."""

from __future__ import annotations

import time

from tests.cluster.project import Machine, Place
from tests.cluster.slow_sync import SlowSync
from tests.crash import worker
from tests.services import Database
from tests.sync.project import Project

EXPIRY = 20
"""Seconds without a heartbeat after which a run loses its tables. The loader's default is 120."""


def test_two_machines_race_for_a_table(
    place: Place,
    machine: Machine,
    other: Machine,
    lakehouse: Project,
    postgres_database: Database,
) -> None:
    """One machine loads the table; the other one reports which run holds it."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    other.wait_until_ready()
    for each in (machine, other):
        each.start(lakehouse, "run")
    ended = [machine.ended(), other.ended()]
    assert sorted(ran.code for ran in ended) == [0, 1], [ran.text for ran in ended]
    [loser] = [ran for ran in ended if ran.code == 1]
    [error] = loser.errors
    assert "table shop.slow_orders: another run holds this table (run " in error
    sync.check()


def test_a_suspended_loader_comes_back_after_it_was_taken_over(
    place: Place,
    machine: Machine,
    other: Machine,
    lakehouse: Project,
    postgres_database: Database,
) -> None:
    """It detects that another run holds the table, and writes nothing more."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    expiry = {worker.EXPIRY: str(EXPIRY)}
    sync.start(other, **expiry)
    other.suspend()
    try:
        skipped = machine.run(lakehouse, "run", **expiry)
        assert skipped.code == 1
        assert "another run holds this table" in skipped.errors[0]
        time.sleep(EXPIRY)
        taken = machine.run(lakehouse, "run", **expiry)
        assert taken.code == 0, taken.text
        assert any(f"no heartbeat for {EXPIRY} s" in warning for warning in taken.warnings), (
            taken.text
        )
        sync.check()
    finally:
        other.resume()
    late = other.ended()
    assert late.code == 1
    assert "another run took over the table while this run was suspended" in late.errors[0]
    sync.check()
