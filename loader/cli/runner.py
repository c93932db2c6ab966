"""Executes one run of ``loader run``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.cli import report
from loader.cli.jvm_restart import RestartingRun
from loader.cli.output import Progress
from loader.cli.own_tables import keep_small
from loader.cli.settings import Settings
from loader.cli.stopping import stopping
from loader.errors import JavaEndedError, LoaderError
from loader.spark.session import restore_settings, rows_written
from loader.sync.engine import sync_table
from loader.sync.fault_injection import drill
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, Work, run_tables

if TYPE_CHECKING:
    from loader.cli.building import Build


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
            keep_small(pipeline)

        runs.run(self.select, sync, watch, done)


def once(settings: Settings, pipeline: Pipeline, wanted: Wanted) -> int:
    """Runs once, and builds after it; returns the higher of both exit codes."""
    output = settings.output
    runs = RestartingRun(settings, pipeline)
    progress = Progress(output, lambda table: rows_written(runs.pipeline.spark, table))
    watch = Watch(progress, drill(os.environ, pipeline.spark))
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        progress.done(outcome.table, report.describe_end(outcome))
        outcomes.append(outcome)

    stop = watch.stopped.set
    ended: LoaderError | None = None
    with progress, stopping(stop, runs.cancel):
        try:
            wanted.run(runs, watch, done)
        except JavaEndedError as error:
            ended = error
    is_reported = any(isinstance(outcome.error, JavaEndedError) for outcome in outcomes)
    code = report.report_outcomes(output, outcomes)
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
