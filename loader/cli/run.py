"""``loader run``: syncs tables. With ``--build``, it also runs dbt."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from loader.cli.options import read_duration, select_option
from loader.cli.settings import Settings, open_pipeline


@click.command(short_help="Appends changes since the last run.")
@select_option
@click.option(
    "--full-refresh",
    is_flag=True,
    help="Reload all rows as a new generation that replaces all earlier versions.",
)
@click.option("--concurrency", type=click.IntRange(1), help="How many tables to sync at once.")
@click.option("--dry-run", is_flag=True, help="Show the planned reads, write nothing.")
@click.option(
    "--accept-key-change",
    is_flag=True,
    help="Widen key and cursor columns of raw tables to their types in the source.",
)
@click.option(
    "--from",
    "low",
    help="Reread a range of rows, starting at this cursor. The stored cursor stays unchanged.",
)
@click.option(
    "--to", "high", help="With --from: the end of the range, inclusive; default: the stored cursor."
)
@click.option("--chunk", help="With --from: the range of one batch: '1 day', or 10000 for numbers.")
@click.option(
    "--build", is_flag=True, help="After the sync, run `dbt build` in the same Spark session."
)
@click.option(
    "--every",
    metavar="INTERVAL",
    callback=read_duration,
    help="Repeat the run in one process: '30s', '5 min'. Stop it with SIGINT or SIGTERM.",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write metrics to this file after each run, in the text format of Prometheus.",
)
@click.option(
    "--report",
    "report_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="After the run, write the page of `loader report` to this file; with --every, after each "
    "round.",
)
@click.argument("dbt_arguments", nargs=-1, metavar="[-- DBT_ARGUMENTS]...")
@click.pass_obj
def run(
    settings: Settings,
    select: tuple[str, ...],
    full_refresh: bool,
    concurrency: int | None,
    dry_run: bool,
    accept_key_change: bool,
    low: str | None,
    high: str | None,
    chunk: str | None,
    build: bool,
    every: float | None,
    metrics_file: Path | None,
    report_path: Path | None,
    dbt_arguments: tuple[str, ...],
) -> None:
    """Appends rows changed since the last cursor, one batch per table, and stores the new cursor.

    With --build, arguments after `--` are passed to `dbt build`.
    """
    if low is None and (high or chunk):
        raise click.UsageError("--to and --chunk need --from, the start of the range.")
    if low is not None and (full_refresh or dry_run):
        raise click.UsageError("--from rereads a range: remove --full-refresh and --dry-run.")
    if dry_run and build:
        raise click.UsageError("--dry-run writes nothing to build: remove --build.")
    if dry_run and report_path is not None:
        raise click.UsageError("--dry-run syncs nothing to report: remove --report.")
    if dry_run and metrics_file is not None:
        raise click.UsageError("--dry-run syncs nothing to measure: remove --metrics-file.")
    if every is not None and (low is not None or full_refresh or dry_run):
        raise click.UsageError(
            "--every only repeats incremental syncs: remove --full-refresh, --dry-run and --from."
        )
    if every is not None and accept_key_change:
        raise click.UsageError(
            "--accept-key-change is for a change that you have checked, and --every would also "
            "accept all later changes: run once without --every."
        )
    if dbt_arguments and not build:
        first = dbt_arguments[0]
        raise click.UsageError(
            f"unexpected argument {first!r}. To select tables, use --select {first}; put arguments "
            "for dbt after `--build --`."
        )
    spec = settings.spec()
    from loader.cli.dbt_build import Build
    from loader.cli.telemetry.run_reporter import RunReporter

    reporter = RunReporter(settings, metrics_file, report_path, os.environ)
    dbt_build = Build.create(spec.folder, dbt_arguments) if build else None

    with open_pipeline(settings, spec) as pipeline:
        from loader.cli.daemon import Daemon
        from loader.cli.run_once import RunRequest, report_previews, run_once
        from loader.reconcile.rotation import Rotation
        from loader.sync.backfill import Backfill
        from loader.sync.protocol import sync_table
        from loader.sync.runner import preview_tables

        if dry_run:
            pipeline.accepts_key_change = accept_key_change
            previews = preview_tables(pipeline, select, full_refresh)
            sys.exit(report_previews(settings.output, previews))
        if dbt_build is not None and settings.profile is not None:
            dbt_build.check(settings.profile)
        work = Backfill(low, high, chunk) if low is not None else sync_table
        rotation = Rotation() if low is None else None
        request = RunRequest(
            select,
            full_refresh,
            concurrency,
            accept_key_change,
            work,
            dbt_build,
            rotation,
            reporter,
        )
        if dbt_build is not None:
            reporter.use_target(dbt_build)
        if every is None:
            sys.exit(run_once(settings, pipeline, request))
        sys.exit(Daemon(settings, pipeline, request, every).run())
