"""Reports the current step once it has taken five seconds, on a terminal and in a log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loader.spark.steps import LOGGER

SECONDS = 5.0
"""After so long a step is shown; then after twice as long, until it is every :data:`LONGEST`."""

LONGEST = 60.0

_PAUSE = 0.5


class SlowSteps(logging.Handler):
    """Shows the oldest of the steps that :func:`loader.spark.steps.step` encloses.

    Args:
        show: shows a line.

    Attributes:
        describe: returns lines that are shown instead, if there are any: the tables of a run.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self.describe: Callable[[], list[str]] = list
        self._show_line = show
        self._ended = threading.Event()
        self._steps: dict[int | None, tuple[str, float]] = {}  # by thread, with its begin

    def emit(self, record: logging.LogRecord) -> None:
        """Notes that a step has begun or ended."""
        self._steps.pop(record.thread, None)
        if record.getMessage():
            self._steps[record.thread] = record.getMessage(), time.monotonic()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Shows steps for as long as a command runs."""
        log = logging.getLogger(LOGGER)
        log.addHandler(self)
        log.setLevel(logging.DEBUG)
        thread = threading.Thread(target=self._show, name="slow-steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            log.removeHandler(self)

    def _show(self) -> None:
        doing: object = None
        shown, pause = 0.0, SECONDS
        while not self._ended.wait(min(_PAUSE, SECONDS)):
            now = time.monotonic()
            lines, current, began = self.describe(), "tables", now
            oldest = min(self._steps.copy().values(), key=lambda one: one[1], default=None)
            if not lines and oldest is not None:
                current, began = oldest
                lines = [f"{current} ({now - began:.0f} s)"]
            if (current, bool(lines)) != doing:
                doing, shown, pause = (current, bool(lines)), began, SECONDS
            if lines and now - shown >= pause:
                shown, pause = now, min(2 * pause, LONGEST)
                for line in lines:
                    self._show_line(line)
