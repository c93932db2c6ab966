"""Reports a sync's progress while it runs, and stops it on request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from loader.spark.interruption import interruption_error

_log = logging.getLogger("loader")


class Listener(Protocol):
    """Shows progress; see :mod:`loader.cli.console`."""

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        """Shows that a table entered a phase; `rows` is how many it will read."""

    def warn(self, table: str, text: str) -> None:
        """Shows a warning; the sync goes on."""


class _Silence:
    def report_phase(self, table: str, phase: str, rows: int | None) -> None: ...

    def warn(self, table: str, text: str) -> None: ...


class Steps(Protocol):
    """Is notified when a table reaches a step; see :mod:`loader.sync.fault_injection`."""

    def report_step(self, step: str, table: str) -> None:
        """Called when a table has reached a step."""


class Watch:
    """Passes progress on, and holds the flag that stops a run before its next publish.

    The logger ``loader`` gets both, too: phases at level DEBUG, warnings at WARNING.

    Attributes:
        redact: removes secrets from what is logged; a run sets its spec's.
    """

    def __init__(self, listener: Listener | None = None, steps: Steps | None = None) -> None:
        self.listener = listener or _Silence()
        self.steps = steps
        self.redact: Callable[[str], str] = str
        self.stopped = threading.Event()

    @property
    def apart(self) -> bool:
        """Whether tables may not wait for each other: a drill wants each at its own step."""
        return bool(getattr(self.steps, "apart", False))

    def report_step(self, step: str, table: str) -> None:
        """Reports that a table has reached a step of the protocol."""
        if self.steps is not None:
            self.steps.report_step(step, table)

    def report_phase(self, table: str, phase: str, rows: int | None = None) -> None:
        """Reports that a table entered a phase, unless the run was asked to stop."""
        self.check_interruption(table)
        _log.debug("%s: %s", table, phase)
        self.listener.report_phase(table, phase, rows)

    def warn(self, table: str, text: str) -> None:
        """Warns the user, and logs it."""
        _log.warning("%s: %s", table, self.redact(text))
        self.listener.warn(table, text)

    def check_interruption(self, table: str) -> None:
        """Raises an error if the run was asked to stop.

        Raises:
            TableError: if it was; the next run discards what is staged.
        """
        if self.stopped.is_set():
            raise interruption_error(f"table {table}")
