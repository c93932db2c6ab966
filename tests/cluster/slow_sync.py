"""A sync that takes long enough for something to fail in the middle of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from tests.cluster.project import Machine, Place
from tests.crash import shop
from tests.services import Database
from tests.sync.project import Project, Ran

TABLE = "slow_orders"
_PAUSE = 0.7
"""Seconds for which the database waits before each changed row."""
_WAIT = 180


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + _WAIT
    while not condition():
        assert time.monotonic() < deadline, f"in {_WAIT} seconds, {what}"
        time.sleep(0.1)


class SlowSync:
    """A table whose first rows are synced and whose changed rows the database delivers slowly."""

    def __init__(
        self, place: Place, machine: Machine, project: Project, database: Database
    ) -> None:
        self.place, self.project, self.database = place, project, database
        shop.create(database, ["orders"])
        database.execute(
            "create table pause as select 0::float as seconds",
            f"create view {TABLE} as select * from orders where at < '2025-01-02' "
            "or pg_sleep((select seconds from pause)) is not null",
        )
        options = {TABLE: {"cursor_field": "at", "primary_key": "id"}}
        project.jdbc(database, [TABLE], table_options=options)
        first = machine.run(project, "run")
        assert first.code == 0, first.text
        shop.change(database, ["orders"])
        self._set_pause(_PAUSE)

    def start(self, machine: Machine, **variables: str) -> int:
        """Starts the sync on a machine. Returns the worker whose executor reads the rows."""
        machine.start(self.project, "run", **variables)
        wait_for("no executor has read from the database", lambda: self._find_readers())
        return self._find_readers()[0]

    def end(self, machine: Machine) -> Ran:
        """Waits for the sync to end, and checks the lake."""
        ran = machine.ended()
        assert ran.code == 0, ran.text
        self.check()
        return ran

    def check(self) -> None:
        """Checks that the raw table has each row once, and that state and ledger agree with it."""
        self._set_pause(0)
        batches = [shop.FIRST, shop.ADDED + shop.UPDATED]
        shop.assert_whole(self.project, self.database, [TABLE], batches)

    def _set_pause(self, seconds: float) -> None:
        self.database.execute(f"update pause set seconds = {seconds}")

    def _find_readers(self) -> list[int]:
        """Returns the workers whose executors have a connection to the source's server."""
        found = []
        for number, worker in enumerate(self.place.cluster.workers):
            for executor in psutil.Process(worker.pid).children():
                links = executor.net_connections("tcp")
                if any(
                    link.raddr and link.raddr.port == self.database.server.port for link in links
                ):
                    found.append(number)
        return found
