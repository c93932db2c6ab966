"""Reports a run's progress and stops the run on request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from loader.spark.interruption import interruption_error

RECORDING = "recording"
"""The last phase of a table: its rows are published, but its state is not yet stored."""

_log = logging.getLogger("loader")


class Listener(Protocol):
    """A receiver of progress reports; see :mod:`loader.cli.console`."""

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        """Shows that a table has entered a phase.

        Args:
            rows: the number of rows that the phase will process; None if unknown.
        """

    def warn(self, table: str, text: str) -> None:
        """Shows a warning. The sync continues."""


class _Silence:
    def report_phase(self, table: str, phase: str, rows: int | None) -> None: ...

    def warn(self, table: str, text: str) -> None: ...


class Steps(Protocol):
    """A receiver of the steps that tables reach; see :mod:`loader.sync.fault_injection`."""

    def report_step(self, step: str, table: str) -> None:
        """Reports that a table has reached a step."""


class Watch:
    """Forwards progress to a listener, and stops the run if its `stopped` flag is set.

    A stopped run ends before it publishes the next batch. Phases (DEBUG) and warnings (WARNING) are
    also sent to the ``loader`` logger.

    Attributes:
        redact: removes secrets from log messages. Each run sets it to its spec's redactor.
    """

    def __init__(self, listener: Listener | None = None, steps: Steps | None = None) -> None:
        self.listener = listener or _Silence()
        self.steps = steps
        self.redact: Callable[[str], str] = str
        self.stopped = threading.Event()

    @property
    def keeps_tables_apart(self) -> bool:
        """Returns whether tables must not wait for each other. True if they have crash points."""
        return bool(getattr(self.steps, "has_several_points", False))

    def report_step(self, step: str, table: str) -> None:
        """Reports that a table has reached a step of the protocol."""
        if self.steps is not None:
            self.steps.report_step(step, table)

    def report_phase(self, table: str, phase: str, rows: int | None = None) -> None:
        """Reports that a table has entered a phase.

        Raises a TableError if the run was asked to stop.
        """
        self.check_interruption(table)
        _log.debug("%s: %s", table, phase)
        self.listener.report_phase(table, phase, rows)

    def warn(self, table: str, text: str) -> None:
        """Shows a warning to the user and logs it."""
        _log.warning("%s: %s", table, self.redact(text))
        self.listener.warn(table, text)

    def check_interruption(self, table: str) -> None:
        """Raises a TableError if the run was asked to stop.

        The next run discards this run's staged files.
        """
        if self.stopped.is_set():
            raise interruption_error(f"table {table}")
