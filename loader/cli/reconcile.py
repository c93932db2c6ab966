"""``loader reconcile``: finds and repairs changes that cursors miss."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from loader.cli.console import Output
from loader.cli.options import buckets_option, select_option
from loader.cli.results import list_errors
from loader.cli.settings import Settings, open_pipeline
from loader.errors import LoaderError

if TYPE_CHECKING:
    from loader.reconcile.reconciliation import Finding, Reconciliation
    from loader.sync.runner import Outcome

BUCKETS = 64


@click.command(short_help="Finds changes that cursors miss.")
@select_option
@click.option("--repair", is_flag=True, help="Append missed changes, as one batch per table.")
@click.option(
    "--allow-deletes",
    is_flag=True,
    help="Treat missing rows as deleted even if they are more than a tenth of a table.",
)
@buckets_option(BUCKETS, "Divide each table's keys into N buckets to compare.")
@click.option(
    "--per-run",
    type=click.IntRange(1),
    metavar="M",
    help="Compare only the M buckets whose last comparison is oldest; default: all.",
)
@click.option("--concurrency", type=click.IntRange(1), help="How many tables to reconcile at once.")
@click.pass_obj
def reconcile(
    settings: Settings,
    select: tuple[str, ...],
    repair: bool,
    allow_deletes: bool,
    buckets: int,
    per_run: int | None,
    concurrency: int | None,
) -> None:
    """Compares sources with the lake to find updates, rows and deletes that cursors miss.

    Each table is first synced, as by `loader run`. Exits with 1 if differences remain or a table
    failed. Tables that cannot be compared are skipped with a warning.
    """
    from loader.cli.run_once import RestartingRun, RunRequest, sync_until_signal
    from loader.reconcile.reconciliation import Reconciliation

    work = Reconciliation(repair, allow_deletes, buckets, per_run)
    request = RunRequest(select, concurrency=concurrency, work=work)
    with open_pipeline(settings) as pipeline:
        outcomes, ended, _ = sync_until_signal(RestartingRun(settings, pipeline), request)
        sys.exit(report_findings(settings.output, outcomes, work, ended))


def report_findings(
    output: Output,
    outcomes: Sequence[Outcome],
    work: Reconciliation,
    ended: LoaderError | None = None,
) -> int:
    """Prints the results. Returns 0 if the lake matches the source or was repaired, otherwise 1."""
    findings = work.findings
    columns = (
        "table",
        "status",
        "synced",
        "verified",
        "buckets",
        "rows",
        "missed_updates",
        "missed_rows",
        "missed_deletes",
        "repaired",
        "not_compared",
    )
    ordered = sorted(findings, key=lambda finding: finding.table)
    output.table("reconciled", columns, map(to_row, ordered))
    differing = [(finding.table, kind, key) for finding in ordered for kind, key in finding.sample]
    if differing:
        output.table("difference", ("table", "difference", "key"), differing)
    for finding in ordered:
        table = finding.table
        if finding.skipped:
            output.warning(f"{table}: not compared: {finding.skipped}", table=table)
        if finding.changed:
            output.warning(
                f"{table}: {finding.changed} keys were missing during the comparison, but are now "
                "back with different rows: the table was emptied and refilled in the meantime. "
                "They are reported neither as equal nor as missed; reconcile again",
                table=table,
            )
        if finding.distrusted:
            output.warning(
                f"{table}: {'no deletes were appended, because ' if work.repairs else ''}"
                f"{finding.total('missed_deletes')} of its {finding.total('rows_snapshot')} rows "
                "(more than a tenth) are missing from the source. Check the source; if the rows "
                f"were deleted, run `loader reconcile --repair --allow-deletes --select {table}`",
                table=table,
            )
        elif finding.has_unrepaired:
            output.say(
                f"{table}: to append the missing changes, run `loader reconcile --repair "
                f"--select {table}`."
            )
    errors = list_errors(outcomes, ended)
    for error in errors:
        output.error(error)
    if not outcomes:
        output.say("No table was selected.")
    return 1 if errors or any(f.has_unrepaired or f.changed for f in findings) else 0


def to_row(finding: Finding) -> tuple[Any, ...]:
    """Returns a table's row in the summary of `loader reconcile`."""
    if finding.skipped:
        return (finding.table, "skipped", *(None,) * 9)
    missed = finding.total("all_missed")
    status = "differs" if finding.has_unrepaired else "repaired" if missed else "equal"
    status = "changed" if finding.changed and status != "differs" else status
    return (
        finding.table,
        status,
        finding.synced,
        0 if finding.distrusted else len(finding.verified),
        finding.buckets,
        finding.total("rows_source"),
        finding.total("missed_updates"),
        finding.total("missed_rows"),
        finding.total("missed_deletes"),
        finding.total("all_repaired"),
        finding.left_out,
    )
