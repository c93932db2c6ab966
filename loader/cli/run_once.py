"""Executes one run of ``loader run``, also if Spark's JVM exits or a connection is lost."""

from __future__ import annotations

import glob
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from loader.cli.console import Output, list_names
from loader.cli.progress import Progress
from loader.cli.results import BuildResult, RunResult, TableResult, list_errors, list_table_results
from loader.cli.settings import Settings, restart_pipeline
from loader.cli.signals import stop_on_signal
from loader.cli.system_table_upkeep import compact_system_tables
from loader.errors import JavaEndedError, LoaderError, TableError
from loader.formatting import format_count
from loader.spark.error_translation import (
    CatalogLostError,
    ConnectionLostError,
    DatabaseError,
    may_precede_java_end,
)
from loader.spark.jvm_exit import is_restart_wanted
from loader.spark.session import restore_settings, rows_written
from loader.sync.fault_injection import load_fault_injection
from loader.sync.pipeline import Pipeline
from loader.sync.protocol import sync_table
from loader.sync.run_context import Watch
from loader.sync.runner import (
    ChooseWork,
    Outcome,
    Preview,
    Work,
    record_failure,
    run_tables,
)

if TYPE_CHECKING:
    from loader.cli.dbt_build import Build
    from loader.cli.telemetry.run_reporter import RunReporter

Sync = Callable[[Pipeline, tuple[str, ...], Callable[[Outcome], None]], None]

RETRY_PAUSES = (2.0, 8.0, 30.0)
"""The pauses before the retries of tables whose connection was lost, in seconds."""

_REMEDY = (
    "No row of its batch is visible. Check the table for unusual data, such as a huge value; "
    "give Spark more memory (spark.driver.memory in the profile's target), or exclude the table "
    "with skip_tables"
)
_SOURCE_REMEDY = (
    "Check the response of the server: an endless response exhausts Java's memory. If the source "
    "has very many tables, give Spark more memory (spark.driver.memory in the profile's target)"
)


_COLUMNS = (
    *("table", "status", "batch", "read", "appended", "redelivered", "cursor", "seconds"),
    *("rows_below_cursor", "rows_at_cursor", "rows_cursor_unmoved", "complete_until", "error"),
)
"""The columns of the summary, which are the attributes of :class:`TableResult`."""
_TEXT_COLUMNS = 8
"""The number of columns in the summary of text output."""


@dataclass(frozen=True)
class _RunEnd:
    """The work that a run still has to do after its JVM has exited.

    Attributes:
        error: the error that stopped the tables in progress, or the run itself.
        in_progress: the tables that were being synced, one of which may have crashed the JVM.
        pending: the tables whose sync has not started, or whose progress is not yet recorded.
        source: the source whose list of tables was being read; empty if there is none.
    """

    error: LoaderError
    in_progress: list[str]
    pending: list[str]
    source: str = ""


@dataclass
class RestartingRun:
    """Runs a spec, and continues in a new JVM if Spark's JVM exits.

    Attributes:
        pipeline: the spec's pipeline in the current JVM.
        can_restart: whether this process may start another JVM.
    """

    settings: Settings
    pipeline: Pipeline
    can_restart: bool = True

    def run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> None:
        """Syncs tables, and calls `done` for each finished table.

        Args:
            select: tables, by name or wildcard; empty means all.

        Raises:
            JavaEndedError: if the JVM exited while no table was in progress, or after the run was
                stopped.
        """
        selections = [select]
        while selections:
            selected = selections.pop()
            ended = self._run(selected, sync, watch, done)
            if ended is None:
                continue
            self._restart(ended)
            if ended.source:
                what = f"{ended.error.what}, while the list of this source's tables was read"
                error = TableError(what, where=f"source {ended.source}", remedy=_SOURCE_REMEDY)
                done(Outcome(error.where, error=error, source=ended.source))
                self.pipeline.paused_sources |= {ended.source}
                selections.append(selected)
                continue
            if len(ended.in_progress) == 1:
                what = f"{ended.error.what}, while only this table was being synced"
                [table] = ended.in_progress
                error = TableError(what, where=f"table {table}", remedy=_REMEDY)
                source, _, name = table.partition(".")
                spec = self.pipeline.spec.source(source)
                done(record_failure(self.pipeline, spec, name, error))
            else:
                selections += [(glob.escape(table),) for table in ended.in_progress]
            if ended.pending:
                selections.append(tuple(map(glob.escape, ended.pending)))

    def cancel(self) -> None:
        self.pipeline.spark.sparkContext.cancelAllJobs()

    def _run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> _RunEnd | None:
        """Returns the remaining work if the JVM exited and the run can continue, otherwise None."""
        unfinished: dict[str, Outcome] = {}
        finished: set[str] = set()
        run_error: LoaderError | None = None

        def collect(outcome: Outcome) -> None:
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
            sync(pipeline, select, collect)
        except Exception as error:
            run_error = pipeline.redact_error(error, "")
            if not isinstance(run_error, JavaEndedError):
                raise
        errors = [outcome.error for outcome in unfinished.values()]
        ended = run_error or next((e for e in errors if isinstance(e, JavaEndedError)), None)
        remaining = (pipeline.planned_names | unfinished.keys()) - finished
        in_progress = sorted(remaining & pipeline.tables_in_progress)
        stopped = watch.stopped.is_set() or watch.steps is not None
        suspects = in_progress or pipeline.fatal_source
        can_continue = self.can_restart and not stopped
        if ended is not None and suspects and can_continue and is_restart_wanted():
            pending = sorted(remaining - set(in_progress))
            return _RunEnd(ended, in_progress, pending, pipeline.fatal_source)
        for outcome in unfinished.values():
            done(outcome)
        if run_error is not None:
            raise run_error
        return None

    def _restart(self, ended: _RunEnd) -> None:
        if ended.source:
            self.settings.output.warning(
                f"{ended.error.what}: the run continues in a new process without source "
                f"{ended.source}"
            )
            self.pipeline = restart_pipeline(self.settings, self.pipeline)
            return
        tables = ", ".join(ended.in_progress)
        several = ended.in_progress[1:]
        rest = (
            f"then with each of these tables alone: {tables}" if several else f"and {tables} fails"
        )
        self.settings.output.warning(
            f"{ended.error.what}: the run continues in a new process with the other tables, {rest}"
        )
        self.pipeline = restart_pipeline(self.settings, self.pipeline)


@dataclass(frozen=True)
class RunRequest:
    """The options of a run.

    Attributes:
        select: tables, by name or wildcard; empty means all.
        build: the dbt build after the sync; None means no build.
        choose_work: returns what to do with a table instead of a plain sync, or None for a plain
            sync. If it is None itself, every table is only synced.
        reporter: makes the reports about the run, such as metrics; None if there are none.
    """

    select: tuple[str, ...] = ()
    full_refresh: bool = False
    concurrency: int | None = None
    accept_key_change: bool = False
    work: Work = sync_table
    build: Build | None = None
    choose_work: ChooseWork | None = None
    reporter: RunReporter | None = None

    def run(
        self,
        runs: RestartingRun,
        watch: Watch,
        done: Callable[[Outcome], None],
        retried: tuple[str, ...] = (),
    ) -> None:
        """Syncs the tables, and calls `done` for each finished table.

        Args:
            retried: the tables to sync again; empty means all tables of the request.

        Raises a JavaEndedError if Spark's JVM has exited, and the run cannot continue in a new JVM.
        """

        def sync(
            pipeline: Pipeline, select: tuple[str, ...], done: Callable[[Outcome], None]
        ) -> None:
            pipeline.accepts_key_change = self.accept_key_change
            # After a restart or a lost connection, `select` contains tables that the user may not
            # have selected.
            pipeline.accepts_other_origins = bool(self.select)
            for outcome in run_tables(
                pipeline,
                watch,
                select,
                self.full_refresh,
                self.concurrency,
                self.work,
                self.choose_work,
            ):
                done(outcome)
            compact_system_tables(pipeline)

        if self.reporter is not None:
            done = self.reporter.follow(watch, done)
        runs.run(retried or self.select, sync, watch, done)


def run_once(settings: Settings, pipeline: Pipeline, request: RunRequest) -> int:
    """Syncs a request's tables, then runs its dbt build. Returns the higher exit code."""
    began = time.monotonic()
    runs = RestartingRun(settings, pipeline)
    outcomes, ended, watch = sync_until_signal(runs, request)
    code = report_outcomes(settings.output, outcomes, ended)
    built = None
    if request.build is not None and not watch.stopped.is_set() and ended is None:
        with stop_on_signal(watch.stopped.set, runs.cancel, interrupt=lambda: True):
            built = build_in_pipeline(settings, runs.pipeline, request.build)
        code = max(code, built.exit_code)
    if request.reporter is not None and not watch.stopped.is_set():
        tables, errors = list_table_results(outcomes), list_errors(outcomes, ended)
        result = RunResult(tuple(tables), tuple(errors), built)
        with stop_on_signal(watch.stopped.set, runs.cancel, interrupt=lambda: True):
            request.reporter.report(runs.pipeline, result, time.monotonic() - began)
    return code


def sync_until_signal(
    runs: RestartingRun, request: RunRequest
) -> tuple[list[Outcome], LoaderError | None, Watch]:
    """Syncs a request's tables until all are synced or a signal stops the run.

    Returns the outcomes, the error if Spark's JVM has exited, and the run's :class:`Watch`, whose
    flag `stopped` is set after a signal.
    """
    output = runs.settings.output
    progress = Progress(output, lambda table: rows_written(runs.pipeline.spark, table))
    watch = Watch(progress, load_fault_injection(os.environ, runs.pipeline.spark))
    with progress, stop_on_signal(watch.stopped.set, runs.cancel):
        outcomes, ended = sync_tables(runs, request, watch, progress)
    return outcomes, ended, watch


def sync_tables(
    runs: RestartingRun, request: RunRequest, watch: Watch, progress: Progress
) -> tuple[list[Outcome], LoaderError | None]:
    """Syncs a request's tables, and retries tables whose connection was lost.

    Returns the outcomes, and the error if Spark's JVM exited and the run could not continue.
    """
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        progress.done(outcome.table, describe_end(outcome), outcome.error is not None)
        outcomes.append(outcome)

    def run_again(tables: Sequence[str]) -> None:
        request.run(runs, watch, done, tuple(map(glob.escape, tables)))

    ended: LoaderError | None = None
    try:
        request.run(runs, watch, done)
        retry_lost_connections(runs.settings.output, watch, outcomes, run_again)
    except JavaEndedError as error:
        ended = error
    reported = (o.error for o in outcomes if isinstance(o.error, JavaEndedError))
    return outcomes, next(reported, ended)


def retry_lost_connections(
    output: Output,
    watch: Watch,
    outcomes: list[Outcome],
    run_again: Callable[[Sequence[str]], None],
) -> None:
    """Retries the tables whose connection was lost, after each of :data:`RETRY_PAUSES`.

    Does not retry if the first connection failed, for example because of a wrong host.

    Args:
        outcomes: the outcomes so far. The outcome of a retry replaces the table's earlier outcome.
        run_again: syncs the tables with these names, and appends their outcomes to `outcomes`.
    """
    # An outcome without a record is an error for a whole source, whose tables are unknown.
    errors = {
        o.table: o.error for o in outcomes if isinstance(o.error, ConnectionLostError) and o.record
    }
    lost = list(errors)
    if not lost or watch.stopped.is_set():
        return
    is_catalog = any(isinstance(error, CatalogLostError) for error in errors.values())
    output.warning(
        f"the connection to the {'catalog' if is_catalog else 'database'} was lost: "
        f"{list_names(lost)}. "
        f"Syncing again, up to {len(RETRY_PAUSES)} times",
        tables=lost,
    )
    others = [outcome for outcome in outcomes if outcome.table not in lost]
    latest = {outcome.table: outcome for outcome in outcomes if outcome.table in lost}
    outcomes.clear()
    try:
        for pause in RETRY_PAUSES:
            if not lost or watch.stopped.wait(pause):
                break
            outcomes.clear()
            run_again(lost)
            latest |= {outcome.table: outcome for outcome in outcomes if outcome.table in lost}
            lost = [name for name in lost if isinstance(latest[name].error, DatabaseError)]
    finally:
        # The last retry may also have returned errors for whole sources, for example if a source's
        # tables could not be listed.
        others += [outcome for outcome in outcomes if outcome.table not in latest]
        outcomes[:] = [*others, *latest.values()]


def build_in_pipeline(settings: Settings, pipeline: Pipeline, build: Build) -> BuildResult:
    """Runs a build in the loader's Spark session, and then restores the session's settings."""
    assert settings.profile is not None
    with restore_settings(pipeline.spark):
        return build.run(settings.output, settings.profile, pipeline.spec.folder)


def report_outcomes(
    output: Output, outcomes: Sequence[Outcome], ended: LoaderError | None = None
) -> int:
    """Prints the summary of `loader run`. Returns 0 if all tables were synced, otherwise 1."""
    shown = _COLUMNS if output.json else _COLUMNS[:_TEXT_COLUMNS]
    names = [field.name for field in fields(TableResult)][: len(shown)]
    rows = [[getattr(each, name) for name in names] for each in list_table_results(outcomes)]
    output.table("table", shown, rows)
    if len(rows) > 1:
        output.say(_summarize(outcomes))
    lost = _describe_lost_rows(outcomes)
    if lost:
        output.say(lost)
    errors = list_errors(outcomes, ended)
    for error in errors:
        output.error(error)
    if not outcomes:
        output.say("No table was selected.")
    return 1 if errors else 0


def describe_end(outcome: Outcome) -> str:
    record = outcome.record
    if record is None:
        return ""
    appended = record.rows_appended
    rows = f", {format_count(appended, 'row')} appended" if appended else ""
    return f"{outcome.table}: {record.status}{rows}"


def _summarize(outcomes: Sequence[Outcome]) -> str:
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    statuses = Counter(record.status for record in records)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    appended = sum(record.rows_appended or 0 for record in records)
    tables, rows = format_count(len(records), "table"), format_count(appended, "row")
    return f"{tables}: {counts}; {rows} appended."


def _describe_lost_rows(outcomes: Sequence[Outcome]) -> str:
    lost = {
        outcome.table: (record.rows_below_cursor or 0) + (record.rows_at_cursor or 0)
        for outcome in outcomes
        if (record := outcome.record) is not None
    }
    total = sum(lost.values())
    if not total:
        return ""
    tables = [name for name, count in sorted(lost.items()) if count]
    return (
        f"{total:,} of the appended rows ({list_names(tables)}) are not above the "
        "stored cursor: a query for higher cursors would have missed them."
    )


def report_previews(output: Output, previews: Iterable[Preview | Outcome]) -> int:
    """Prints the summary of a dry run. Returns 0 if all tables could be read, otherwise 1."""
    rows = []
    errors: list[LoaderError] = []
    for preview in previews:
        if isinstance(preview, Outcome):
            if preview.error is not None:
                errors.append(preview.error)
            continue
        # `high` is None if the window has no upper bound.
        low, high = preview.window.low, preview.bounds.high
        rows.append(
            (
                preview.plan.name,
                preview.plan.mode,
                preview.window.cursor.name if preview.window.cursor else None,
                low.text if low else None,
                high.text if high else None,
                preview.bounds.rows,
            )
        )
    output.table(
        "preview", ("table", "mode", "cursor", "from_inclusive", "to_inclusive", "rows"), rows
    )
    for error in errors:
        output.error(error)
    return 1 if errors else 0
