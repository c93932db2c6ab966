"""``loader run --every``: rounds in one process, until a signal ends it."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from loader.cli.run_once import RestartingRun, Wanted, build_in_pipeline
from loader.cli.settings import Settings, profile_of, refuse_two_readers
from loader.cli.signals import stopping
from loader.errors import LoaderError, TableError
from loader.spec.spec import Spec, load_spec
from loader.sync.fault_injection import load_fault_injection
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome

_LONGEST_REST = 300.0
_REMEMBERED = 4
"""Specs whose secrets are still removed from all output: an error may quote an earlier one."""


def rest_after(failures: int, every: float) -> float:
    """Seconds to wait after so many failures in a row: one interval, then two, four and so on.

    Five minutes at most, or one interval if that is longer.
    """
    return float(min(every * 2 ** min(failures - 1, 30), max(every, _LONGEST_REST)))


class _Heard:
    """A loop's listener: reports warnings only, and each only when it is new."""

    def __init__(self, settings: Settings) -> None:
        self.output = settings.output
        self.reported: set[tuple[str, str]] = set()
        self.now: set[tuple[str, str]] = set()

    def report_phase(self, table: str, phase: str, rows: int | None) -> None: ...

    def warn(self, table: str, text: str) -> None:
        self.now.add((table, text))
        if (table, text) not in self.reported:
            self.output.warning(f"{table}: {text}", table=table)

    def next(self) -> None:
        """A round begins."""
        self.reported, self.now = self.now, set()


@dataclass
class _Failing:
    """Counts the failures in a row.

    Attributes:
        until: when it is tried again, by the monotonic clock.
    """

    since: dt.datetime = field(default_factory=dt.datetime.now)
    times: int = 0
    until: float = 0.0

    def again(self, every: float) -> None:
        """It failed once more. The round that is due when its rest ends may come a bit early."""
        self.times += 1
        self.until = time.monotonic() + rest_after(self.times, every) - every / 2


@dataclass
class Daemon:
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
        self._down: dict[str, _Failing] = {}
        self._errors: dict[str, tuple[str, str]] = {}  # by table: its source, and the text
        self._wrong_spec = ""
        self._unbuilt = True
        self._building = False
        self._build_code = 0
        self._build_failing = _Failing()
        self._redacts = [self.settings.output.redact]
        self.settings.output.redact = self._redact

    def run(self) -> int:
        """Runs the rounds; returns 0, or 1 if tables or the build failed in the last one."""
        steps = load_fault_injection(os.environ, self.pipeline.spark)
        number, failing = 0, False
        runs = RestartingRun(self.settings, self.pipeline)
        with stopping(self.stopped.set, runs.cancel, interrupt=lambda: self._building):
            while not self.stopped.is_set():
                number += 1
                began = time.monotonic()
                self._read_spec()
                if self.stopped.is_set():
                    break
                self._heard.next()
                watch = Watch(self._heard, steps)
                watch.stopped = self.stopped
                outcomes: list[Outcome] = []
                resting = (name for name, down in self._down.items() if down.until > began)
                self.pipeline.paused_sources = frozenset(resting)
                broken = None
                runs.pipeline = self.pipeline
                try:
                    self.wanted.run(runs, watch, outcomes.append)
                except Exception as error:
                    if number == 1:
                        raise
                    broken = self.pipeline.redact_error(error, "run")
                self.pipeline = runs.pipeline
                if self.stopped.is_set():
                    break
                self._alive()
                failing = self._report_round(number, outcomes, broken, time.monotonic() - began)
                self._build(outcomes)
                self.stopped.wait(max(0.0, began + self.every - time.monotonic()))
        self.settings.output.event("stopped", "stopped", rounds=number)
        return 1 if failing or self._build_code else 0

    def _redact(self, text: str) -> str:
        for redact in (self.pipeline.spec.redactor.redact, *self._redacts):
            text = redact(text)
        return text

    def _read_spec(self) -> None:
        output, config = self.settings.output, self.settings.config
        try:
            spec = load_spec(config)
            if not spec.same_as(self.pipeline.spec):
                self._redacts = [spec.redactor.redact, *self._redacts][:_REMEMBERED]
                self.pipeline = self._rebuild_pipeline(spec)
                output.event("spec", f"{config} was read again: it has changed")
            self._wrong_spec = ""
        except LoaderError as error:
            if str(error) != self._wrong_spec:
                output.error(error)
            self._wrong_spec = str(error)

    def _rebuild_pipeline(self, spec: Spec) -> Pipeline:
        """The pipeline of a spec that has changed, on the Spark that there is.

        Raises:
            SpecError, TableError: if it is wrong, or needs another Spark.
        """
        profile, known = profile_of(self.settings, spec), self.settings.profile
        if known is not None and (profile.name, profile.target, profile.conf) != (
            known.name,
            known.target,
            known.conf,
        ):
            raise TableError(
                "the spec now needs another Spark",
                where=str(self.settings.config),
                remedy="Start the loader again: this process goes on with the one it has",
            )
        refuse_two_readers(spec)
        return Pipeline(spec, self.pipeline.spark)

    def _report_round(
        self, number: int, outcomes: list[Outcome], broken: LoaderError | None, seconds: float
    ) -> bool:
        """Reports a round to people; returns whether something is failing."""
        output = self.settings.output
        failed: dict[str, Outcome] = {}
        for one in outcomes:
            if one.error is not None:  # several of a source's own may have the same place
                again = one.table in failed
                failed[f"{one.table}: {one.error.what}" if again else one.table] = one
        if broken is not None:
            failed["run"] = Outcome("run", error=broken)
        self._tell(failed, outcomes, broken is None)
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
            resting=sorted(self.pipeline.paused_sources),
            seconds=round(seconds, 2),
        )
        return bool(failed or self._down)

    def _tell(self, failed: dict[str, Outcome], outcomes: list[Outcome], whole: bool) -> None:
        """Reports an error when it is new, not in each round, and when it is over."""
        output = self.settings.output
        tried = {outcome.source for outcome in outcomes} | ({""} if whole else set())
        names = {source.name for source in self.pipeline.spec.sources} | {""}
        well = {outcome.table for outcome in outcomes if outcome.error is None}
        for name, (source, _) in list(self._errors.items()):
            if name not in failed and (source in tried or source not in names):
                del self._errors[name]
                if name in well:
                    output.event("recovered", f"{name}: syncs again", table=name)
                    self._unbuilt = True  # rows that were published, and not recorded
        for name, outcome in failed.items():
            text = str(outcome.error)
            if self._errors.get(name, ("", ""))[1] != text:
                # Tables of one source that is down share its error.
                if outcome.error and text not in {known for _, known in self._errors.values()}:
                    output.error(outcome.error)
                self._errors[name] = outcome.source, text

    def _sources(self, outcomes: list[Outcome]) -> None:
        """Notes which sources are down, and until when they rest."""
        names = {source.name for source in self.pipeline.spec.sources}
        self._down = {name: down for name, down in self._down.items() if name in names}
        for name in {outcome.source for outcome in outcomes} & names:
            if all(outcome.error is not None for outcome in outcomes if outcome.source == name):
                self._down.setdefault(name, _Failing()).again(self.every)
                continue
            down = self._down.pop(name, None)
            if down is not None:
                text = f"source {name} is back; it was down since {down.since:%H:%M:%S}"
                self.settings.output.event("back", text, source=name, rounds=down.times)

    def _build(self, outcomes: list[Outcome]) -> None:
        """Builds if there is news, or if the last build failed and has rested."""
        if self.wanted.build is None or self.stopped.is_set():
            return
        if any(o.record is not None and o.record.rows_appended for o in outcomes):
            self._unbuilt = True
        failing = self._build_failing
        if not self._unbuilt and not (failing.times and failing.until <= time.monotonic()):
            return
        self._building = True
        code = 0
        with suppress(KeyboardInterrupt):  # a signal: see run()
            code = build_in_pipeline(self.settings, self.pipeline, self.wanted.build)
        self._building = False
        if self.stopped.is_set():
            return  # it was interrupted, which is no failure
        self._build_code, self._unbuilt = code, False
        if code:
            failing.again(self.every)
        else:
            self._build_failing = _Failing()

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
