"""``loader run``: the sync, the build after it, and both again and again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from loader.duration import seconds_of

if TYPE_CHECKING:
    from loader.cli.settings import Settings

_FORMS = "write it as '30s', '5 min' or '2h'"


def read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Reads an option that is a time, as a callback of click; in seconds."""
    if value is None:
        return None
    try:
        seconds = float(seconds_of(value.strip(), "a time", _FORMS))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None
    if seconds <= 0:
        raise click.BadParameter(f"{value!r} is not a positive time: {_FORMS}")
    return seconds


@click.command(short_help="Appends what changed since the last run.")
@click.option("-s", "--select", multiple=True, help="source.table or a wildcard; repeatable.")
@click.option(
    "--full-refresh",
    is_flag=True,
    help="Read everything again, as a new generation that outranks all earlier versions.",
)
@click.option("--concurrency", type=click.IntRange(1), help="How many tables to sync at once.")
@click.option("--dry-run", is_flag=True, help="Show what would be read, write nothing.")
@click.option(
    "--accept-key-change",
    is_flag=True,
    help="Let key and cursor columns in raw take the wider types that they have in the source.",
)
@click.option(
    "--from", "low", help="Read a range again, from this cursor on; the stored cursor stays."
)
@click.option(
    "--to", "high", help="With --from: where the range ends, inclusive; default: the stored cursor."
)
@click.option(
    "--chunk", help="With --from: how much one batch covers: '1 day', or 10000 for numbers."
)
@click.option("--build", is_flag=True, help="Then run `dbt build`, in the same warm Spark.")
@click.option(
    "--every",
    metavar="INTERVAL",
    callback=read_duration,
    help="Run again and again in one process: '30s', '5 min'. SIGINT or SIGTERM ends it.",
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
    dbt_arguments: tuple[str, ...],
) -> None:
    """Appends what changed since the last cursor, one batch per table, and records the cursor.

    With --build, what follows `--` goes to `dbt build`.
    """
    if low is None and (high or chunk):
        raise click.UsageError("--to and --chunk belong to a backfill: set its start with --from.")
    if low is not None and (full_refresh or dry_run):
        raise click.UsageError("--from reads a range again: remove --full-refresh and --dry-run.")
    if dry_run and build:
        raise click.UsageError("--dry-run writes nothing to build: remove --build.")
    if every is not None and (low is not None or full_refresh or dry_run):
        raise click.UsageError(
            "--every repeats an incremental sync: remove --full-refresh, --dry-run and --from."
        )
    if every is not None and accept_key_change:
        raise click.UsageError(
            "--accept-key-change accepts the change that you have looked at, and --every would "
            "accept all later ones, too: run once without --every."
        )
    if dbt_arguments and not build:
        first = dbt_arguments[0]
        raise click.UsageError(
            f"unexpected argument {first!r}. Choose tables with --select {first}; put arguments "
            "for dbt after `--build --`."
        )
    spec = settings.spec()
    from loader.cli.dbt_build import Build

    built = Build.of(spec.folder, dbt_arguments) if build else None
    from loader.cli.settings import open_pipeline

    with open_pipeline(settings, spec) as pipeline:
        from loader.cli.daemon import Daemon
        from loader.cli.run_once import Wanted, once, report_previews
        from loader.sync.backfill import Backfill
        from loader.sync.engine import sync_table
        from loader.sync.runner import preview_tables

        if dry_run:
            pipeline.accepts_key_change = accept_key_change
            previews = preview_tables(pipeline, select, full_refresh)
            sys.exit(report_previews(settings.output, previews))
        if built is not None and settings.profile is not None:
            built.check(settings.profile)
        work = Backfill(low, high, chunk) if low is not None else sync_table
        wanted = Wanted(select, full_refresh, concurrency, accept_key_change, work, built)
        if every is None:
            sys.exit(once(settings, pipeline, wanted))
        sys.exit(Daemon(settings, pipeline, wanted, every).run())
