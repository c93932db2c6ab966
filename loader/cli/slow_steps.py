"""Reports steps that take more than a few seconds, and the tables' progress in the meantime."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loader.spark.named_steps import LOGGER

SECONDS = 5.0
"""A step is first reported after this many seconds. The interval then doubles up to LONGEST."""

LONGEST = 60.0
"""The longest interval between two reports of a step, in seconds."""

PROGRESS_SECONDS = 10.0
"""The interval between two reports on the tables' progress, in seconds."""

_PAUSE = 0.5


class SlowSteps(logging.Handler):
    """Reports the oldest running step (:func:`loader.spark.named_steps.step`).

    Attributes:
        describe: returns the progress of tables, as lines and JSON objects. If there are any, they
            are printed instead of the step.
        seconds: the total time of the finished steps, keyed by the text of the step.
    """

    def __init__(self, show: Callable[[str, Mapping[str, Any]], None]) -> None:
        super().__init__(logging.DEBUG)
        self.describe: Callable[[], list[tuple[str, dict[str, Any]]]] = list
        self.seconds: dict[str, float] = {}
        self._show_line = show
        self._ended = threading.Event()
        # Maps each thread to the text and the start time of its step.
        self._steps: dict[int | None, tuple[str, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Records that a step has started or ended."""
        ended = self._steps.pop(record.thread, None)
        if ended is not None:
            text, began = ended
            self.seconds[text] = self.seconds.get(text, 0.0) + time.monotonic() - began
        if record.getMessage():
            self._steps[record.thread] = record.getMessage(), time.monotonic()

    def find_oldest(self) -> tuple[str, float] | None:
        """Returns the text and start time of the oldest running step; None if there is none."""
        return min(self._steps.copy().values(), key=lambda step: step[1], default=None)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Reports slow steps and the tables' progress within the block."""
        log = logging.getLogger(LOGGER)
        log.addHandler(self)
        log.setLevel(logging.DEBUG)
        try:
            with self.report():
                yield
        finally:
            log.removeHandler(self)

    @contextmanager
    def report(self) -> Iterator[None]:
        """Reports the tables' progress within the block, but no other steps."""
        thread = threading.Thread(target=self._show, name="slow-steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _show(self) -> None:
        reported: object = None
        last, pause = 0.0, SECONDS
        while not self._ended.wait(min(_PAUSE, SECONDS)):
            now = time.monotonic()
            lines, current, began = self.describe(), "tables", now
            oldest = self.find_oldest()
            if not lines and oldest is not None:
                current, began = oldest
                lines = [(f"{current} ({now - began:.0f} s)", {})]
            if (current, bool(lines)) != reported:
                reported, last, pause = (current, bool(lines)), began, SECONDS
            if lines and now - last >= pause:
                last = now
                pause = PROGRESS_SECONDS if current == "tables" else min(2 * pause, LONGEST)
                for line, facts in lines:
                    self._show_line(line, facts)
