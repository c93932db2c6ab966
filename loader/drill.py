"""Crash drills: kill the loader at a named step, as a power cut would, and see what is left.

``LOADER_CRASH_AT=published loader run`` dies after the first batch is published, before its
state is written; ``LOADER_CRASH_AT=published:shop.orders`` waits for that table. The next run
must complete as if nothing had happened. The tests do this at every step.
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
    """

    def __init__(self, step: str, table: str | None, pids: tuple[int, ...]) -> None:
        self.step = step
        self.table = table
        self.pids = pids

    def reached(self, step: str, table: str) -> None:
        """A table has come to a step."""
        if step == self.step and self.table in (None, table):
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
    step, _, table = wanted.partition(":")
    if step not in STEPS:
        raise SpecError(
            f"the sync protocol has no step {step!r}",
            where=VARIABLE,
            remedy=f"{did_you_mean(step, STEPS)} Its steps: {', '.join(STEPS)}".strip(),
        )
    jvm: Any = spark._jvm
    return Drill(step, table or None, (jvm.java.lang.ProcessHandle.current().pid(), os.getpid()))
