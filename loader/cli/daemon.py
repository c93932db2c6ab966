"""``loader run --every``: repeats the run in one process, until a signal stops it."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from loader.cli.console import list_names
from loader.cli.overruns import OverrunReporter, RoundTimes
from loader.cli.results import BuildResult, RunResult, list_errors, list_table_results
from loader.cli.run_once import RestartingRun, RunRequest, build_in_pipeline
from loader.cli.settings import Settings, profile_of, refuse_two_readers
from loader.cli.signals import stop_on_signal
from loader.errors import LoaderError, TableError
from loader.spec.spec import Spec, load_spec
from loader.sync.fault_injection import load_fault_injection
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import RECORDING, Steps, Watch
from loader.sync.runner import Outcome

_LONGEST_PAUSE = 300.0
_REDACTED_SPECS = 4
"""The number of spec versions whose secrets are redacted, because errors may quote old secrets."""


def backoff_seconds(failures: int, every: float) -> float:
    """Returns the pause after consecutive failures: one interval, then two, four and so on.

    The maximum is five minutes, or one interval if that is longer.
    """
    return float(min(every * 2 ** min(failures - 1, 30), max(every, _LONGEST_PAUSE)))


class _NewWarnings:
    """A listener that prints only warnings that the previous round did not report."""

    def __init__(self, settings: Settings) -> None:
        self.output = settings.output
        self.last_round: set[tuple[str, str]] = set()
        self.this_round: set[tuple[str, str]] = set()
        self.phases: dict[str, str] = {}

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        self.phases[table] = phase

    def warn(self, table: str, text: str) -> None:
        self.this_round.add((table, text))
        if (table, text) not in self.last_round:
            self.output.warning(f"{table}: {text}", table=table)

    def start_round(self) -> None:
        self.last_round, self.this_round = self.this_round, set()
        self.phases = {}


@dataclass
class _Backoff:
    """The consecutive failures of a source or of the build.

    Attributes:
        until: the monotonic time of the next retry.
    """

    since: dt.datetime = field(default_factory=dt.datetime.now)
    times: int = 0
    until: float = 0.0

    def add_failure(self, every: float) -> None:
        """Counts a failure, and sets the time of the next retry.

        The pause ends half an interval early, because rounds may start early.
        """
        self.times += 1
        self.until = time.monotonic() + backoff_seconds(self.times, every) - every / 2


@dataclass
class Daemon:
    """Repeats a run in one process, until a signal stops it.

    If all tables of a source fail, the source is paused for one interval, then two, four and so on,
    up to five minutes. Other sources are not paused. The spec is read before each round. If it is
    invalid, the error is reported, and the last valid spec stays in use.

    Args:
        every: the number of seconds from the start of one round to the start of the next.
    """

    settings: Settings
    pipeline: Pipeline
    request: RunRequest
    every: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._warnings = _NewWarnings(self.settings)
        self._down: dict[str, _Backoff] = {}  # maps the source's name to its failures
        self._errors: dict[str, tuple[str, str]] = {}  # maps the table to its source and error text
        self._spec_error = ""
        self._is_build_due = True
        self._building = False
        self._newest_build: BuildResult | None = None
        self._build_code = 0
        self._build_backoff = _Backoff()
        self._failing = False
        self._outcomes: list[Outcome] = []
        self._overruns = OverrunReporter(self.settings.output, self.every, self._describe)
        self._redacts = [self.settings.output.redact]
        self.settings.output.redact = self._redact

    def run(self) -> int:
        """Runs all rounds. Returns 1 if a table or the build failed in the last round, else 0."""
        steps = load_fault_injection(os.environ, self.pipeline.spark)
        number = 0
        runs = RestartingRun(self.settings, self.pipeline)
        with stop_on_signal(self.stopped.set, runs.cancel, interrupt=lambda: self._building):
            while not self.stopped.is_set():
                number += 1
                began = time.monotonic()
                with self._overruns.watch(number) as times:
                    self._run_round(number, runs, steps, times)
                self.stopped.wait(max(0.0, began + self.every - time.monotonic()))
        self.settings.output.event("stopped", "stopped", rounds=number)
        return 1 if self._failing or self._build_code else 0

    def _run_round(
        self, number: int, runs: RestartingRun, steps: Steps | None, times: RoundTimes
    ) -> None:
        """Runs a round. Fills in `times` at the end, unless a signal has stopped the round."""
        began = time.monotonic()
        self._read_spec()
        if self.stopped.is_set():
            return
        self._warnings.start_round()
        self.settings.output.slow_steps.seconds.clear()
        watch = Watch(self._warnings, steps)
        watch.stopped = self.stopped
        outcomes: list[Outcome] = []
        self._outcomes = outcomes
        paused = (name for name, down in self._down.items() if down.until > began)
        self.pipeline.paused_sources = frozenset(paused)
        run_error = None
        runs.pipeline = self.pipeline
        try:
            self.request.run(runs, watch, outcomes.append)
        except Exception as error:
            if number == 1:
                raise
            run_error = self.pipeline.redact_error(error, "run")
        self.pipeline = runs.pipeline
        if self.stopped.is_set():
            return
        self._require_spark()
        load = time.monotonic() - began
        self._failing = self._report_round(number, outcomes, run_error, load)
        times.build = self._build(outcomes)
        self._report_elsewhere(outcomes, run_error, times.build, time.monotonic() - began)
        if not self.stopped.is_set():
            times.load, times.tables = load, len(outcomes)
            tables = {each.table: each.seconds or 0.0 for each in list_table_results(outcomes)}
            times.longest = {**self.settings.output.slow_steps.seconds, **tables}

    def _report_elsewhere(
        self,
        outcomes: list[Outcome],
        run_error: LoaderError | None,
        build: BuildResult | None,
        seconds: float,
    ) -> None:
        self._newest_build = build or self._newest_build
        if self.request.reporter is not None and not self.stopped.is_set():
            tables, errors = list_table_results(outcomes), list_errors(outcomes, run_error)
            result = RunResult(tuple(tables), tuple(errors), self._newest_build)
            self.request.reporter.report(self.pipeline, result, seconds)

    def _describe(self) -> str:
        if self._building:
            return "dbt build"
        finished = {outcome.table for outcome in self._outcomes}
        phases = {t: p for t, p in self._warnings.phases.copy().items() if t not in finished}
        tables = [f"{table}: {phase}" for table, phase in phases.items() if phase != RECORDING]
        if tables:
            return list_names(tables)
        step = self.settings.output.slow_steps.find_oldest()
        if step is not None:
            return step[0]
        return "writing state and ledger" if phases else "preparing the sync"

    def _redact(self, text: str) -> str:
        for redact in (self.pipeline.spec.redactor.redact, *self._redacts):
            text = redact(text)
        return text

    def _read_spec(self) -> None:
        output, config = self.settings.output, self.settings.config
        try:
            spec = load_spec(config)
            if not spec.same_as(self.pipeline.spec):
                self._redacts = [spec.redactor.redact, *self._redacts][:_REDACTED_SPECS]
                self.pipeline = self._rebuild_pipeline(spec)
                output.event("spec", f"{config} changed and was reloaded")
            self._spec_error = ""
        except LoaderError as error:
            if str(error) != self._spec_error:
                output.error(error)
            self._spec_error = str(error)

    def _rebuild_pipeline(self, spec: Spec) -> Pipeline:
        profile, known = profile_of(self.settings, spec), self.settings.profile
        if known is not None and (profile.name, profile.target, profile.conf) != (
            known.name,
            known.target,
            known.conf,
        ):
            raise TableError(
                "the spec now needs other Spark settings",
                where=str(self.settings.config),
                remedy="Restart the loader: this process keeps its current Spark session",
            )
        refuse_two_readers(spec)
        return Pipeline(spec, self.pipeline.spark)

    def _report_round(
        self, number: int, outcomes: list[Outcome], run_error: LoaderError | None, seconds: float
    ) -> bool:
        """Reports a round. Returns whether an error occurred or a source is paused."""
        output = self.settings.output
        failed: dict[str, Outcome] = {}
        for outcome in outcomes:
            if outcome.error is not None:  # a source may report two errors for the same table
                name = outcome.table
                failed[f"{name}: {outcome.error.what}" if name in failed else name] = outcome
        if run_error is not None:
            failed["run"] = Outcome("run", error=run_error)
        self._report_changes(failed, outcomes, run_error is None)
        self._update_backoff(outcomes)
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
            resting=sorted(self.pipeline.paused_sources),
            seconds=round(seconds, 2),
        )
        return bool(failed or self._down)

    def _report_changes(
        self, failed: dict[str, Outcome], outcomes: list[Outcome], is_complete: bool
    ) -> None:
        """Reports recoveries, and errors that have not yet been reported."""
        output = self.settings.output
        tried = {outcome.source for outcome in outcomes} | ({""} if is_complete else set())
        names = {source.name for source in self.pipeline.spec.sources} | {""}
        succeeded = {outcome.table for outcome in outcomes if outcome.error is None}
        for name, (source, _) in list(self._errors.items()):
            if name not in failed and (source in tried or source not in names):
                del self._errors[name]
                if name in succeeded:
                    output.event("recovered", f"{name}: syncing again", table=name)
                    # The sync that succeeded may have recorded rows from an earlier run.
                    self._is_build_due = True
        for name, outcome in failed.items():
            text = str(outcome.error)
            if self._errors.get(name, ("", ""))[1] != text:
                # If a source is down, all its tables have the same error.
                if outcome.error and text not in {known for _, known in self._errors.values()}:
                    output.error(outcome.error)
                self._errors[name] = outcome.source, text

    def _update_backoff(self, outcomes: list[Outcome]) -> None:
        names = {source.name for source in self.pipeline.spec.sources}
        self._down = {name: down for name, down in self._down.items() if name in names}
        for name in {outcome.source for outcome in outcomes} & names:
            if all(outcome.error is not None for outcome in outcomes if outcome.source == name):
                self._down.setdefault(name, _Backoff()).add_failure(self.every)
                continue
            down = self._down.pop(name, None)
            if down is not None:
                text = f"source {name} is back; it had been down since {down.since:%H:%M:%S}"
                self.settings.output.event("back", text, source=name, rounds=down.times)

    def _build(self, outcomes: list[Outcome]) -> BuildResult | None:
        """Runs the build if rows were appended, or if it is time to retry a failed build.

        Returns None if no build was due, or if a signal interrupted the build.
        """
        if self.request.build is None or self.stopped.is_set():
            return None
        if any(o.record is not None and o.record.rows_appended for o in outcomes):
            self._is_build_due = True
        backoff = self._build_backoff
        if not self._is_build_due and not (backoff.times and backoff.until <= time.monotonic()):
            return None
        self._building = True
        result = None
        with suppress(KeyboardInterrupt):  # a signal raises KeyboardInterrupt in run()
            result = build_in_pipeline(self.settings, self.pipeline, self.request.build)
        self._building = False
        if result is None or self.stopped.is_set():
            return None  # an interrupted build is not a failed build
        self._build_code, self._is_build_due = result.exit_code, False
        if result.exit_code:
            backoff.add_failure(self.every)
        else:
            self._build_backoff = _Backoff()
        return result

    def _require_spark(self) -> None:
        """Raises a TableError if Spark has stopped, because no later round could succeed."""
        from py4j.protocol import Py4JError

        try:
            context = self.pipeline.spark.sparkContext._jsc
            ended = context is None or context.sc().isStopped()
        except (Py4JError, OSError):
            ended = True
        if ended:
            raise TableError(
                "Spark has stopped, and this process cannot continue without it",
                where="Spark",
                remedy="Restart the loader; give Spark more memory if it ran out of memory "
                "(spark.driver.memory in the profile's target)",
            )
