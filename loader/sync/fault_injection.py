"""Injects crashes: kills the loader at a named step, as a power cut would.

``LOADER_CRASH_AT=published loader run`` dies after the first batch is published, before its
state is written. ``LOADER_CRASH_AT=published:shop.orders`` waits for that table, and
``ledger-recorded:shop.orders#5`` for the fifth time the table gets there (a backfill's fifth
chunk). Several places, separated by commas, stop each table at its own step; the loader dies when
all tables have reached theirs: one crash, many positions. The next run must complete as if
nothing had happened. The tests do this at every step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.error_report import did_you_mean
from loader.errors import SpecError, TableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "LOADER_CRASH_AT"
WAIT_SECONDS = 300
"""How long a table waits at its place for the others."""

STEPS = {
    "locked": "the table is ours, nothing was read yet",
    "recovered-state": "after a crash: the state agrees with the data again, the ledger not yet",
    "recovered": "state and ledger agree with the data",
    "windowed": "the window is fixed",
    "extracted": "the rows are read and compared",
    "prepared": "the raw table is there, with all columns",
    "staged": "the batch is written, no reader sees it",
    "published": "the batch is visible, state and ledger do not have it yet",
    "state-recorded": "the state is written, the ledger row is not",
    "ledger-recorded": "everything is written, the table is still locked",
    "unlocked": "the table is done",
}
"""The steps of the sync protocol, in order, with what is true when each is reached."""


@dataclass
class CrashPoint:
    """The step that one table must reach for the crash.

    Attributes:
        step: one of :data:`STEPS`.
        table: ``source.table``; None is the first table that gets there.
        times: how many more times it must get there.
    """

    step: str
    table: str | None = None
    times: int = 1


class FaultInjection:
    """Kills this process and its Spark when every place is taken.

    Args:
        places: where tables must be; with several, each table waits at its own.
        pids: the processes to kill, this one last.
    """

    def __init__(self, places: Sequence[CrashPoint], pids: tuple[int, ...]) -> None:
        self.places = places
        self.pids = pids
        self._arrival = threading.Lock()

    @property
    def apart(self) -> bool:
        """Whether each table must reach its own step, independently of the others."""
        return len(self.places) > 1

    def report_step(self, step: str, table: str) -> None:
        """Notes that a table has reached a step; kills the loader if that was the last place.

        Raises:
            TableError: if the other tables do not reach their places in time.
        """
        for place in self.places:
            if place.step == step and place.table in (None, table):
                with self._arrival:
                    place.times -= 1
                    if all(one.times < 1 for one in self.places):
                        self._kill()
                if place.times < 1:
                    self._stand(table)

    def _kill(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)  # nothing gets to clean up

    def _stand(self, table: str) -> None:
        threading.Event().wait(WAIT_SECONDS)
        raise TableError(
            f"waited {WAIT_SECONDS} seconds for the other tables of the drill",
            where=f"table {table}, {VARIABLE}",
            remedy="Give each place a table of its own, and run with --concurrency at least as "
            "high as there are places",
        )


def load_fault_injection(
    environment: Mapping[str, str], spark: SparkSession
) -> FaultInjection | None:
    """Returns the drill that the environment configures.

    Raises:
        SpecError: if it names an unknown step.
    """
    wanted = environment.get(VARIABLE)
    if not wanted:
        return None
    places = [_place(text.strip()) for text in wanted.split(",")]
    jvm: Any = spark._jvm
    return FaultInjection(places, (jvm.java.lang.ProcessHandle.current().pid(), os.getpid()))


def _place(text: str) -> CrashPoint:
    place, _, times = text.partition("#")
    step, _, table = place.partition(":")
    if times and not times.isdecimal():
        raise SpecError(
            f"{times!r} is not a number of times", where=VARIABLE, remedy="Write `published#2`"
        )
    if step not in STEPS:
        raise SpecError(
            f"the sync protocol has no step {step!r}",
            where=VARIABLE,
            remedy=f"{did_you_mean(step, STEPS)} Its steps: {', '.join(STEPS)}".strip(),
        )
    return CrashPoint(step, table or None, int(times or 1))
