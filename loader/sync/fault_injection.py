"""Kills the loader at a step of the sync protocol, to test crash recovery.

``LOADER_CRASH_AT=published loader run`` kills the loader as soon as the first batch is published,
before its state is written. ``LOADER_CRASH_AT=published:shop.orders`` waits for a batch of this
table, and ``ledger-recorded:shop.orders#5`` waits until this table reaches the step for the fifth
time, such as in the fifth chunk of a backfill. Separate several crash points with commas. Each
table then waits at its crash point, and the loader is killed when all tables have reached theirs.
The next run must recover from a crash at any step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.errors import SpecError, TableError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "LOADER_CRASH_AT"
WAIT_SECONDS = 300
"""The maximum time in seconds that a table waits at its crash point for the other tables."""

STEPS = {
    "locked": "the table is locked, nothing was read yet",
    "recovered-state": "the state agrees with the data, the ledger perhaps not yet",
    "recovered": "state and ledger agree with the data",
    "windowed": "the window is fixed",
    "extracted": "the rows are read and compared",
    "prepared": "the raw table exists, with all columns",
    "staged": "the batch is written, but no reader sees it",
    "published": "the batch is visible, but state and ledger are not updated yet",
    "state-recorded": "the state is written, the ledger row is not",
    "ledger-recorded": "everything is written, the table is still locked",
    "unlocked": "the sync of the table has finished",
}
"""The steps of the sync protocol in order, and what is true at each step."""


@dataclass
class CrashPoint:
    """A step that a table must reach before the crash.

    Attributes:
        step: one of :data:`STEPS`.
        table: ``source.table``; None means the first table that reaches the step.
        times: the number of times that the table must still reach the step.
    """

    step: str
    table: str | None = None
    times: int = 1


class FaultInjection:
    """Kills this process and its JVM once tables have reached all crash points.

    Args:
        points: the crash points. If there are several, each table waits at its crash point.
        pids: the processes to kill; this process must be the last element.
    """

    def __init__(self, points: Sequence[CrashPoint], pids: tuple[int, ...]) -> None:
        self.points = points
        self.pids = pids
        self._counting = threading.Lock()

    @property
    def has_several_points(self) -> bool:
        """Returns whether there are several crash points, which tables must reach concurrently."""
        return len(self.points) > 1

    def report_step(self, step: str, table: str) -> None:
        """Records that a table has reached a step.

        Kills the loader once every crash point has been reached. Raises a TableError if the other
        tables do not reach their crash points in time.
        """
        for point in self.points:
            if point.step == step and point.table in (None, table):
                with self._counting:
                    point.times -= 1
                    if all(each.times < 1 for each in self.points):
                        self._kill()
                if point.times < 1:
                    self._wait_for_others(table)

    def _kill(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)  # no handler or finally block runs

    def _wait_for_others(self, table: str) -> None:
        threading.Event().wait(WAIT_SECONDS)
        raise TableError(
            f"waited {WAIT_SECONDS} seconds for other tables to reach their crash points",
            where=f"table {table}, {VARIABLE}",
            remedy="Specify a different table for each crash point, and set --concurrency to at "
            "least the number of crash points",
        )


def load_fault_injection(
    environment: Mapping[str, str], spark: SparkSession
) -> FaultInjection | None:
    """Returns the fault injection that ``LOADER_CRASH_AT`` configures, or None if it is unset.

    Raises a SpecError if the variable contains an unknown step.
    """
    setting = environment.get(VARIABLE)
    if not setting:
        return None
    points = [_parse_crash_point(text.strip()) for text in setting.split(",")]
    jvm: Any = spark._jvm
    return FaultInjection(points, (jvm.java.lang.ProcessHandle.current().pid(), os.getpid()))


def _parse_crash_point(text: str) -> CrashPoint:
    point, _, times = text.partition("#")
    step, _, table = point.partition(":")
    if times and not times.isdecimal():
        raise SpecError(f"{times!r} is not a count", where=VARIABLE, remedy="Write `published#2`")
    if step not in STEPS:
        raise SpecError(
            f"the sync protocol has no step {step!r}",
            where=VARIABLE,
            remedy=f"{did_you_mean(step, STEPS)} Its steps: {', '.join(STEPS)}".strip(),
        )
    return CrashPoint(step, table or None, int(times or 1))
