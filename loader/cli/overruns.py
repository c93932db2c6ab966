"""Reports overruns: rounds of ``loader run --every`` that take longer than the interval."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter

from loader.cli.console import Output
from loader.cli.results import BuildResult
from loader.formatting import format_count

PAUSE = 300.0
"""The minimum number of seconds between two printed reports, if every round is an overrun."""

_MOST_NAMES = 3


@dataclass
class RoundTimes:
    """How long the parts of a round took, in seconds.

    Attributes:
        load: the duration of the sync; None if the round did not finish.
        tables: the number of synced tables.
        longest: the duration of each table's sync and of each other step, keyed by name.
        build: the result of the build; None if there was no build.
    """

    load: float | None = None
    tables: int = 0
    longest: Mapping[str, float] = field(default_factory=dict)
    build: BuildResult | None = None


class OverrunReporter:
    """Reports an overrun when the next round is due, and again at the end of the round.

    In JSON output, each report is an event. In text output, an overrun is printed only if the
    previous round was not an overrun, or if the last printed report is at least five minutes old.

    Args:
        every: the number of seconds from the start of one round to the start of the next.
        describe: returns a description of the current round's activity.
    """

    def __init__(self, output: Output, every: float, describe: Callable[[], str]) -> None:
        self._output = output
        self._every = every
        self._describe = describe
        self._printed_at: float | None = None
        self._is_printed = False

    @contextmanager
    def watch(self, number: int) -> Iterator[RoundTimes]:
        """Watches a round. The caller fills in the yielded times at the end."""
        began, times, is_due = time.monotonic(), RoundTimes(), threading.Event()

        def report_due() -> None:
            is_due.set()
            self._report_due(number)

        timer = threading.Timer(self._every, report_due)
        timer.daemon = True
        timer.start()
        try:
            yield times
        finally:
            timer.cancel()
            timer.join()
        if not is_due.is_set():
            self._printed_at = None
        elif times.load is not None:
            self._report_end(number, time.monotonic() - began, times.load, times)

    def _report_due(self, number: int) -> None:
        now, doing = time.monotonic(), self._describe()
        self._is_printed = self._printed_at is None or now - self._printed_at >= PAUSE
        if self._is_printed:
            self._printed_at = now
        text = f"round {number} is still running, so the next round starts late: {doing}"
        facts = {"round": number, "interval": self._every, "doing": doing}
        self._output.event("overdue", text if self._is_printed else "", **facts)

    def _report_end(self, number: int, seconds: float, load: float, times: RoundTimes) -> None:
        tables = _find_longest(times.longest)
        nodes: dict[str, float] = {}
        text = (
            f"round {number} took {seconds:.1f} s, longer than the interval of {self._every:g} s: "
            f"load of {format_count(times.tables, 'table')} {_format(load, tables)}"
        )
        if times.build is not None:
            nodes = _find_longest(times.build.node_seconds)
            count = format_count(len(times.build.node_seconds), "node")
            text += f", build of {count} {_format(times.build.seconds, nodes)}"
        self._output.event(
            "overrun",
            text if self._is_printed else "",
            round=number,
            interval=self._every,
            seconds=round(seconds, 1),
            load_seconds=round(load, 1),
            build_seconds=None if times.build is None else times.build.seconds,
            longest_tables=[{"table": name, "seconds": value} for name, value in tables.items()],
            longest_nodes=[{"node": name, "seconds": value} for name, value in nodes.items()],
        )


def _find_longest(seconds: Mapping[str, float]) -> dict[str, float]:
    longest = heapq.nlargest(_MOST_NAMES, seconds.items(), key=itemgetter(1))
    return {name: round(value, 1) for name, value in longest if value >= 0.05}


def _format(seconds: float, longest: Mapping[str, float]) -> str:
    names = ", ".join(f"{name} {value:.1f} s" for name, value in longest.items())
    return f"{seconds:.1f} s" + (f" (longest: {names})" if names else "")
