"""Executes one run of ``loader run``, and starts another JVM if Spark's has ended."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.cli.console import Output, Progress
from loader.cli.settings import Settings, restart_pipeline
from loader.cli.signals import stopping
from loader.cli.system_table_upkeep import compact_system_tables
from loader.errors import JavaEndedError, LoaderError, TableError
from loader.lake.ledger import SyncRecord
from loader.spark.error_translation import may_precede_java_end
from loader.spark.jvm_exit import is_restart_wanted
from loader.spark.session import restore_settings, rows_written
from loader.sync.engine import sync_table
from loader.sync.fault_injection import load_fault_injection
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, Preview, Work, record_failure, run_tables

if TYPE_CHECKING:
    from loader.cli.dbt_build import Build

Sync = Callable[[Pipeline, tuple[str, ...], Callable[[Outcome], None]], None]

_REMEDY = (
    "Nothing of its batch is visible. Look for what is unusual in the table, such as a huge value; "
    "give Spark more memory (spark.driver.memory in the profile's target), or leave the table out "
    "with skip_tables"
)
_SOURCE_REMEDY = (
    "Look at what the server sends: an endless answer ends Java. If the source has very many "
    "tables, give Spark more memory (spark.driver.memory in the profile's target)"
)


@dataclass(frozen=True)
class _RunEnd:
    """The remaining work of a run when the JVM ends.

    Attributes:
        why: the error of the tables that were in work, or of the run itself.
        in_work: the tables of which one may have ended it.
        others: the tables on which no work had begun, or whose rows are published already.
        source: the source that ended it when it was asked for its tables; empty if none did.
    """

    why: LoaderError
    in_work: list[str]
    others: list[str]
    source: str = ""


@dataclass
class RestartingRun:
    """Runs of a spec, each of which survives the end of Spark's JVM.

    Attributes:
        pipeline: the spec, on the JVM that runs now.
    """

    settings: Settings
    pipeline: Pipeline

    def run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> None:
        """Syncs the tables; calls `done` for each as it ends.

        Args:
            select: tables, by name or wildcard; empty means all.
            sync: syncs such tables in a JVM that may end.

        Raises:
            JavaEndedError: if the JVM ended while no table was in work, or was stopped.
        """
        runs = [select]
        while runs:
            chosen = runs.pop()
            ended = self._run(chosen, sync, watch, done)
            if ended is None:
                continue
            self._restart(ended)
            if ended.source:
                what = f"{ended.why.what}, while this source was asked for its tables"
                error = TableError(what, where=f"source {ended.source}", remedy=_SOURCE_REMEDY)
                done(Outcome(error.where, error=error, source=ended.source))
                self.pipeline.paused_sources |= {ended.source}
                runs.append(chosen)
                continue
            if len(ended.in_work) == 1:
                what = f"{ended.why.what}, while this table alone was in work"
                [table] = ended.in_work
                error = TableError(what, where=f"table {table}", remedy=_REMEDY)
                source, _, name = table.partition(".")
                spec = self.pipeline.spec.source(source)
                done(record_failure(self.pipeline, spec, name, error))
            else:
                runs += [(glob.escape(table),) for table in ended.in_work]
            if ended.others:
                runs.append(tuple(map(glob.escape, ended.others)))

    def cancel(self) -> None:
        """Cancels Spark's jobs."""
        self.pipeline.spark.sparkContext.cancelAllJobs()

    def _run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> _RunEnd | None:
        """Returns the remaining work if the JVM ended, and a new one may go on; otherwise None."""
        unfinished: dict[str, Outcome] = {}
        finished: set[str] = set()
        why: LoaderError | None = None

        def sort(outcome: Outcome) -> None:
            if outcome.error is not None and may_precede_java_end(outcome.error):
                unfinished[outcome.table] = outcome
            else:
                finished.add(outcome.table)
                done(outcome)

        pipeline = self.pipeline
        pipeline.planned_names.clear()
        pipeline.tables_in_progress.clear()
        pipeline.fatal_source = ""
        try:
            sync(pipeline, select, sort)
        except Exception as error:
            why = pipeline.redact_error(error, "")
            if not isinstance(why, JavaEndedError):
                raise
        errors = [outcome.error for outcome in unfinished.values()]
        ended = why or next((one for one in errors if isinstance(one, JavaEndedError)), None)
        left = (pipeline.planned_names | unfinished.keys()) - finished
        in_work = sorted(left & pipeline.tables_in_progress)
        stopped = watch.stopped.is_set() or watch.steps is not None
        known = in_work or pipeline.fatal_source
        if ended is not None and known and not stopped and is_restart_wanted():
            return _RunEnd(ended, in_work, sorted(left - set(in_work)), pipeline.fatal_source)
        for outcome in unfinished.values():
            done(outcome)
        if why is not None:
            raise why
        return None

    def _restart(self, ended: _RunEnd) -> None:
        if ended.source:
            self.settings.output.warning(
                f"{ended.why.what}: in a new one, the run goes on without source {ended.source}"
            )
            self.pipeline = restart_pipeline(self.settings, self.pipeline)
            return
        tables = ", ".join(ended.in_work)
        then = f"then each of these alone: {tables}" if ended.in_work[1:] else f"and {tables} fails"
        self.settings.output.warning(
            f"{ended.why.what}: in a new one, the run goes on with the other tables, {then}"
        )
        self.pipeline = restart_pipeline(self.settings, self.pipeline)


@dataclass(frozen=True)
class Wanted:
    """The work of each round.

    Attributes:
        select: tables, by name or wildcard; empty means all.
        build: the dbt build afterwards; None means none.
    """

    select: tuple[str, ...] = ()
    full_refresh: bool = False
    concurrency: int | None = None
    accept_key_change: bool = False
    work: Work = sync_table
    build: Build | None = None

    def run(self, runs: RestartingRun, watch: Watch, done: Callable[[Outcome], None]) -> None:
        """Syncs the tables; calls `done` for each as it ends.

        Raises:
            JavaEndedError: if Spark's JVM has ended, and the run cannot go on in a new one.
        """

        def sync(
            pipeline: Pipeline, select: tuple[str, ...], done: Callable[[Outcome], None]
        ) -> None:
            pipeline.accepts_key_change = self.accept_key_change
            for outcome in run_tables(
                pipeline, watch, select, self.full_refresh, self.concurrency, self.work
            ):
                done(outcome)
            compact_system_tables(pipeline)

        runs.run(self.select, sync, watch, done)


def once(settings: Settings, pipeline: Pipeline, wanted: Wanted) -> int:
    """Runs once, and builds after it; returns the higher of both exit codes."""
    output = settings.output
    runs = RestartingRun(settings, pipeline)
    progress = Progress(output, lambda table: rows_written(runs.pipeline.spark, table))
    watch = Watch(progress, load_fault_injection(os.environ, pipeline.spark))
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        progress.done(outcome.table, describe_end(outcome))
        outcomes.append(outcome)

    stop = watch.stopped.set
    ended: LoaderError | None = None
    with progress, stopping(stop, runs.cancel):
        try:
            wanted.run(runs, watch, done)
        except JavaEndedError as error:
            ended = error
    is_reported = any(isinstance(outcome.error, JavaEndedError) for outcome in outcomes)
    code = report_outcomes(output, outcomes)
    if ended is not None and not is_reported:
        output.error(ended)
        code = ended.exit_code
    if wanted.build is None or watch.stopped.is_set() or is_reported or ended is not None:
        return code
    with stopping(stop, runs.cancel, interrupt=lambda: True):
        return max(code, build_in_pipeline(settings, runs.pipeline, wanted.build))


def build_in_pipeline(settings: Settings, pipeline: Pipeline, build: Build) -> int:
    """Builds in the loader's Spark, whose settings are afterwards as they were; the exit code."""
    assert settings.profile is not None
    with restore_settings(pipeline.spark):
        return build.run(settings.output, settings.profile, pipeline.spec.folder)


def report_outcomes(output: Output, outcomes: Sequence[Outcome]) -> int:
    """Prints the table at the end of `loader run`; returns 0 if all tables synced, otherwise 1."""
    columns = ("table", "status", "batch", "read", "appended", "redelivered", "cursor", "seconds")
    rows = [
        (
            outcome.table,
            outcome.record.status,
            outcome.record.batch,
            outcome.record.rows_read,
            outcome.record.rows_appended,
            outcome.record.rows_redelivered,
            outcome.record.cursor_high,
            _seconds(outcome.record),
        )
        for outcome in sorted(outcomes, key=lambda o: o.table)
        if outcome.record is not None
    ]
    output.table("table", columns, rows)
    # If a source is down, its tables share one error.
    failed = {str(o.error): o.error for o in outcomes if o.error is not None}
    for error in failed.values():
        output.error(error)
    if not outcomes:
        output.say("No table was selected.")
    return 1 if failed else 0


def describe_end(outcome: Outcome) -> str:
    """Returns a line for people on how a table ended; the table at the end has the details."""
    record = outcome.record
    if record is None:
        return ""
    rows = f", {record.rows_appended:,} rows appended" if record.rows_appended else ""
    return f"{outcome.table}: {record.status}{rows}"


def report_previews(output: Output, previews: Iterable[Preview | Outcome]) -> int:
    """Prints the table of `loader run --dry-run`; returns 0 if all tables could be read, else 1."""
    rows = []
    errors: list[LoaderError] = []
    for found in previews:
        if isinstance(found, Outcome):
            if found.error is not None:
                errors.append(found.error)
            continue
        low, high = found.window.low, found.bounds.high  # known even if the window has no end
        rows.append(
            (
                found.plan.name,
                found.plan.mode,
                found.window.cursor.name if found.window.cursor else None,
                low.text if low else None,
                high.text if high else None,
                found.bounds.rows,
            )
        )
    output.table(
        "preview", ("table", "mode", "cursor", "from_inclusive", "to_inclusive", "rows"), rows
    )
    for error in errors:
        output.error(error)
    return 1 if errors else 0


def _seconds(record: SyncRecord) -> float | None:
    if record.started_at is None or record.finished_at is None:
        return None
    return round((record.finished_at - record.started_at).total_seconds(), 1)
