"""``loader run``: runs once, or again and again in one process."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader.cli import report
from loader.cli.output import Progress
from loader.cli.settings import Settings, profile_of, stopping
from loader.errors import LoaderError, TableError
from loader.runtime.spark import rows_written
from loader.sync.drill import drill
from loader.sync.pipeline import Outcome, Pipeline, Work
from loader.sync.protocol import sync_table
from loader.sync.watch import Watch

if TYPE_CHECKING:
    from loader.cli.building import Build

_LONGEST_REST = 300.0
"""In seconds. A source that keeps failing is tried at least that often."""


@dataclass(frozen=True)
class Wanted:
    """What to do in each round.

    Attributes:
        select: tables, by name or wildcard; empty means all.
        build: what dbt builds afterwards; None means nothing.
    """

    select: tuple[str, ...] = ()
    full_refresh: bool = False
    concurrency: int | None = None
    accept_key_change: bool = False
    work: Work = sync_table
    build: Build | None = None

    def run(self, pipeline: Pipeline, watch: Watch, done: Callable[[Outcome], None]) -> None:
        """Syncs the tables; calls `done` for each as it ends."""
        pipeline.accepts_key_change = self.accept_key_change
        for outcome in pipeline.run(
            watch, self.select, self.full_refresh, self.concurrency, self.work
        ):
            done(outcome)


def once(settings: Settings, pipeline: Pipeline, wanted: Wanted) -> int:
    """Runs once, and builds after it; returns the higher of both exit codes."""
    output = settings.output
    progress = Progress(output, lambda table: rows_written(pipeline.spark, table))
    watch = Watch(progress, drill(os.environ, pipeline.spark))
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        progress.done(outcome.table, report.ended(outcome))
        outcomes.append(outcome)

    with progress, stopping(watch.stopped.set, pipeline.spark):
        wanted.run(pipeline, watch, done)
    code = report.finished(output, outcomes)
    if wanted.build is None or watch.stopped.is_set():
        return code
    return max(code, _built(settings, pipeline, wanted.build, watch.stopped))


def _built(settings: Settings, pipeline: Pipeline, build: Build, stopped: threading.Event) -> int:
    assert settings.profile is not None
    with stopping(stopped.set, pipeline.spark, interrupt=True):
        return build.run(settings.output, settings.profile, pipeline.spec.folder)


class _Heard:
    """A loop's listener: reports warnings only, and each only when it is new."""

    def __init__(self, settings: Settings) -> None:
        self.output = settings.output
        self.told: set[tuple[str, str]] = set()
        self.now: set[tuple[str, str]] = set()

    def phase(self, table: str, phase: str, rows: int | None) -> None: ...

    def warn(self, table: str, text: str) -> None:
        self.now.add((table, text))
        if (table, text) not in self.told:
            self.output.warning(f"{table}: {text}", table=table)

    def next(self) -> None:
        """A round begins."""
        self.told, self.now = self.now, set()


@dataclass
class _Down:
    """A source with no table that could be synced.

    Attributes:
        rounds: for how many rounds in a row.
        until: when it is tried again, by the monotonic clock.
    """

    since: dt.datetime
    rounds: int = 0
    until: float = 0.0


@dataclass
class Loop:
    """Rounds in one process, until a signal ends it.

    A source whose tables all failed rests: for one interval, then two, four and so on up to five
    minutes. Other sources do not wait for it. The spec is read again before each round; if it is
    wrong, the loop reports that and goes on with the one before.

    Args:
        every: seconds from the start of one round to the start of the next.
    """

    settings: Settings
    pipeline: Pipeline
    wanted: Wanted
    every: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._heard = _Heard(self.settings)
        self._down: dict[str, _Down] = {}
        self._errors: dict[str, str] = {}
        self._wrong_spec = ""
        self._unbuilt = True
        self._build_code = 0

    def run(self) -> int:
        """Runs the rounds; returns 0, or 1 if tables or the build failed in the last one."""
        steps = drill(os.environ, self.pipeline.spark)
        number, failing = 0, False
        with stopping(self.stopped.set, self.pipeline.spark):
            while not self.stopped.is_set():
                number += 1
                began = time.monotonic()
                self._read_spec()
                self._heard.next()
                watch = Watch(self._heard, steps)
                watch.stopped = self.stopped
                outcomes: list[Outcome] = []
                self._rest(began)
                try:
                    self.wanted.run(self.pipeline, watch, outcomes.append)
                    self._errors.pop("", None)
                except LoaderError as error:
                    if number == 1:
                        raise
                    self._tell("", error)
                if self.stopped.is_set():
                    break
                self._alive()
                failing = self._told(number, outcomes, time.monotonic() - began)
                self._built(outcomes)
                self.stopped.wait(max(0.0, began + self.every - time.monotonic()))
        self.settings.output.event("stopped", "stopped", rounds=number)
        return 1 if failing or self._build_code else 0

    def _read_spec(self) -> None:
        settings, before = self.settings, self.pipeline.spec
        redact = settings.output.redact
        try:
            spec = settings.spec()
            if spec.same_as(before):
                settings.output.redact = redact
                return
            profile = profile_of(settings, spec)
            known = settings.profile
            if known is not None and (profile.name, profile.target, profile.conf) != (
                known.name,
                known.target,
                known.conf,
            ):
                raise TableError(
                    "the spec now needs another Spark",
                    where=str(settings.config),
                    remedy="Start the loader again: this process goes on with the one it has",
                )
            fresh = Pipeline(spec, self.pipeline.spark)
        except LoaderError as error:
            settings.output.redact = redact
            if str(error) != self._wrong_spec:
                settings.output.error(error)
            self._wrong_spec = str(error)
            return
        self._wrong_spec = ""
        self.pipeline = fresh
        # An error may quote the spec before.
        latest = settings.output.redact
        settings.output.redact = lambda text: redact(latest(text))
        settings.output.event("spec", f"{settings.config} was read again: it has changed")

    def _rest(self, now: float) -> None:
        """Leaves out the sources that rest."""
        self.pipeline.resting = frozenset(n for n, down in self._down.items() if down.until > now)

    def _told(self, number: int, outcomes: list[Outcome], seconds: float) -> bool:
        """Reports a round to people; returns whether some table is failing."""
        output = self.settings.output
        failed = {o.table: o.error for o in outcomes if o.error is not None}
        for name, error in failed.items():
            self._tell(name, error)
        for outcome in outcomes:
            if outcome.error is None and self._errors.pop(outcome.table, None) is not None:
                output.event("recovered", f"{outcome.table}: syncs again", table=outcome.table)
        self._sources(outcomes)
        appended = {
            o.table: o.record.rows_appended
            for o in outcomes
            if o.record is not None and o.record.rows_appended
        }
        clock = dt.datetime.now().strftime("%H:%M:%S")
        rows = ", ".join(f"{table} +{count:,}" for table, count in sorted(appended.items()))
        output.event(
            "round",
            f"{clock} round {number}: {rows}, in {seconds:.1f} s" if appended else "",
            round=number,
            tables=len(outcomes),
            appended=sum(appended.values()),
            failed=sorted(failed),
            resting=sorted(self.pipeline.resting),
            seconds=round(seconds, 2),
        )
        return bool(failed or self._down)

    def _tell(self, name: str, error: LoaderError) -> None:
        """Reports an error when it is new, not in each round."""
        if self._errors.get(name) != str(error):
            if str(error) not in self._errors.values():
                self.settings.output.error(error)
            self._errors[name] = str(error)

    def _sources(self, outcomes: list[Outcome]) -> None:
        """Notes which sources are down, and until when they rest."""
        now = time.monotonic()
        by_source: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            name = outcome.record.source_name if outcome.record else None
            by_source.setdefault(name or outcome.table.removeprefix("source "), []).append(outcome)
        names = {source.name for source in self.pipeline.spec.sources}
        self._down = {name: down for name, down in self._down.items() if name in names}
        for name, ended in by_source.items():
            if name not in names:
                continue
            if any(outcome.error is None for outcome in ended):
                down = self._down.pop(name, None)
                if down is not None:
                    text = f"source {name} is back; it was down since {down.since:%H:%M:%S}"
                    self.settings.output.event("back", text, source=name, rounds=down.rounds)
                continue
            down = self._down.setdefault(name, _Down(dt.datetime.now()))
            down.rounds += 1
            rest = min(self.every * 2 ** (down.rounds - 1), max(self.every, _LONGEST_REST))
            down.until = now + rest - min(self.every, rest) / 2

    def _built(self, outcomes: list[Outcome]) -> None:
        """Builds if something has not been built yet."""
        if self.wanted.build is None:
            return
        if any(o.record is not None and o.record.rows_appended for o in outcomes):
            self._unbuilt = True
        if not self._unbuilt or self.stopped.is_set():
            return
        self._build_code = _built(self.settings, self.pipeline, self.wanted.build, self.stopped)
        self._unbuilt = self._build_code == 2

    def _alive(self) -> None:
        """Ends the loop if Spark is gone: no round could succeed.

        Raises:
            TableError: if Spark has stopped.
        """
        from py4j.protocol import Py4JError

        try:
            context = self.pipeline.spark.sparkContext._jsc
            ended = context is None or context.sc().isStopped()
        except (Py4JError, OSError):
            ended = True
        if ended:
            raise TableError(
                "Spark has stopped, and this process cannot go on without it",
                where="Spark",
                remedy="Start the loader again; give Spark more memory if it ran out of it "
                "(spark.driver.memory in the profile's target)",
            )
