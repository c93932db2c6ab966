"""Shows each table's progress in a run: phase, rows, rate and time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.live import Live
from rich.table import Table

from loader.cli.console import ERR, Output, list_names
from loader.sync.run_context import RECORDING

LONG_SECONDS = 30.0
"""After this many seconds, a table gets a separate line in a log."""

_MAX_LISTED_NAMES = 4


class Progress:
    """Shows live progress: a line for each table with its phase, rows, rate and time.

    Without a terminal, a table gets a line only after `LONG_SECONDS`. Until a table has a line, one
    line shows the number of finished tables and the names of the tables in progress.

    Args:
        rows_done: returns the number of rows that Spark has written for a table so far, or None if
            the number is unknown.
    """

    def __init__(self, output: Output, rows_done: Callable[[str], int | None]) -> None:
        self.output = output
        self.rows_done = rows_done
        self._tables: dict[str, _TableProgress] = {}
        self._finished: set[str] = set()
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.output.err.is_terminal and not self.output.json and not self.output.quiet:
            self._live = Live(
                get_renderable=self._render,
                console=self.output.err,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        else:
            self.output.slow_steps.describe = self._lines
        return self

    def __exit__(self, *_: object) -> None:
        self.output.slow_steps.describe = list
        if self._live is not None:
            self.output.streams.write(ERR, self._live.stop)

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        now = time.monotonic()
        with self._lock:
            before = self._tables.get(table)
            self._finished.discard(table)  # it is synced again after a lost connection
            if rows is None and before is not None and phase == "appending":
                rows_expected = before.rows  # Spark reads the rows while it appends them
            else:
                rows_expected = rows
            began = now if before is None else before.began
            self._tables[table] = _TableProgress(phase, rows_expected, began, now)
        self.output.event("phase", "", table=table, phase=phase, rows=rows)

    def warn(self, table: str, text: str) -> None:
        self.output.warning(f"{table}: {text}", table=table)

    def done(self, table: str, text: str, has_failed: bool = False) -> None:
        """Removes the line of a finished table, and prints `text`.

        Without a terminal, `text` is printed only if the table failed or took a long time, because
        the final summary lists all tables.
        """
        with self._lock:
            progress = self._tables.pop(table, None)
            self._finished.add(table)
        is_long = progress is not None and progress.seconds >= LONG_SECONDS
        if not self.output.json and (self._live is not None or is_long or has_failed):
            self.output.event("done", text)

    def _render(self) -> Table:
        grid = Table(box=None, pad_edge=False, show_header=False)
        for facts in self._measure():
            grid.add_row(self.output.format_line(facts["table"]), *_describe_progress(facts))
        return grid

    def _lines(self) -> list[tuple[str, dict[str, Any]]]:
        measured = self._measure()
        working = [facts for facts in measured if facts["phase"] != RECORDING or self.output.json]
        lines = [
            (f"{facts['table']}: {', '.join(filter(None, _describe_progress(facts)))}", facts)
            for facts in working
            if self.output.json or facts["seconds"] >= LONG_SECONDS
        ]
        if lines or not working:
            return lines
        finished = len(self._finished) + len(measured) - len(working)
        names = [facts["table"] for facts in working]
        listed = list_names(names, _MAX_LISTED_NAMES)
        return [(f"tables finished: {finished}; in progress: {listed}", {})]

    def _measure(self) -> list[dict[str, Any]]:
        with self._lock:
            tables = dict(self._tables)
        now = time.monotonic()
        measured = []
        for table, progress in tables.items():
            done, seconds = self.rows_done(table), now - progress.since
            rate = done / seconds if done and seconds > 0 else None
            left = (progress.rows - done) / rate if rate and done and progress.rows else None
            measured.append(
                {
                    "table": table,
                    "phase": progress.phase,
                    "rows_done": done,
                    "rows": progress.rows,
                    "rows_per_second": rate and round(rate),
                    "seconds": round(now - progress.began),
                    "seconds_left": None if left is None else max(0, round(left)),
                }
            )
        return measured


@dataclass(frozen=True)
class _TableProgress:
    """The current phase of a table.

    Attributes:
        rows: the number of rows that the phase will process; None if unknown.
        began, since: the times at which the table and its current phase started.
    """

    phase: str
    rows: int | None
    began: float
    since: float

    @property
    def seconds(self) -> float:
        """The seconds since the table started, without the time spent waiting for other tables."""
        return (self.since if self.phase == RECORDING else time.monotonic()) - self.began


def _describe_progress(facts: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    done, rows = facts["rows_done"], facts["rows"]
    count = "" if done is None else f"{done:,} rows"
    if rows is not None:
        count = f"{done or 0:,} of {rows:,} rows"
    rate, left = facts["rows_per_second"], facts["seconds_left"]
    return (
        facts["phase"],
        count,
        f"{rate:,} rows/s" if rate else "",
        _format_seconds(facts["seconds"]),
        "" if left is None else f"about {_format_seconds(left)} left",
    )


def _format_seconds(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
