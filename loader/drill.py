"""Crash drills: kill the loader at a named step, as a power cut would, and see what is left.

``LOADER_CRASH_AT=published loader run`` dies after the first batch is published, before its
state is written; ``LOADER_CRASH_AT=published:shop.orders`` waits for that table, and
``ledger-recorded:shop.orders#5`` for the fifth time it gets there (a backfill's fifth chunk). The
next run must complete as if nothing had happened. The tests do this at every step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loader.errors import SpecError
from loader.problems import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "LOADER_CRASH_AT"

STEPS = {
    "locked": "the table is ours, nothing was looked at",
    "recovered-state": "after a crash: the state follows the data again, the ledger not yet",
    "recovered": "state and ledger agree with the data",
    "windowed": "the window is fixed",
    "extracted": "the rows are read and compared",
    "prepared": "the raw table is there, with all columns",
    "staged": "the batch is written, and nobody sees it",
    "published": "the batch is visible, neither state nor ledger know",
    "state-recorded": "the state is written, the ledger does not know",
    "ledger-recorded": "all is written, the table is still locked",
    "unlocked": "the table is done",
}
"""The steps of the sync protocol, in order, with what is true when each is reached."""


class Drill:
    """Kills this process, and the Spark in it, when a table reaches a step.

    Args:
        step: one of :data:`STEPS`.
        table: ``source.table``; None is the first table that gets there.
        pids: the processes to kill, this one last.
        times: how often it must have come there.
    """

    def __init__(self, step: str, table: str | None, pids: tuple[int, ...], times: int = 1) -> None:
        self.step = step
        self.table = table
        self.pids = pids
        self.times = times

    def reached(self, step: str, table: str) -> None:
        """A table has come to a step."""
        if step != self.step or self.table not in (None, table):
            return
        self.times -= 1
        if self.times < 1:
            # SIGKILL: nothing gets to clean up.
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)


def drill(environment: Mapping[str, str], spark: SparkSession) -> Drill | None:
    """The drill that the environment asks for.

    Raises:
        SpecError: where it names a step that there is not.
    """
    wanted = environment.get(VARIABLE)
    if not wanted:
        return None
    place, _, times = wanted.partition("#")
    step, _, table = place.partition(":")
    if times and not times.isdecimal():
        raise SpecError(
            f"{times!r} is no number of times", where=VARIABLE, remedy="Write `published#2`"
        )
    if step not in STEPS:
        raise SpecError(
            f"the sync protocol has no step {step!r}",
            where=VARIABLE,
            remedy=f"{did_you_mean(step, STEPS)} Its steps: {', '.join(STEPS)}".strip(),
        )
    jvm: Any = spark._jvm
    pids = (jvm.java.lang.ProcessHandle.current().pid(), os.getpid())
    return Drill(step, table or None, pids, int(times or 1))
