"""``loader status``: shows each table's cursor, age and last error."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from loader.cli.console import Output, list_names
from loader.cli.options import read_duration
from loader.cli.settings import Settings, read_progress

if TYPE_CHECKING:
    from loader.sync.status_readers import StatusReaders
    from loader.sync.table_comparisons import TableComparison


@click.command(short_help="Shows cursors, ages and last errors.")
@click.option(
    "--fail-if-failing", is_flag=True, help="Exit with 1 if the last sync of a table failed."
)
@click.option(
    "--fail-if-stale",
    metavar="AGE",
    callback=read_duration,
    help="Exit with 1 if a table's last successful sync is older than this: '30 min', '2h'.",
)
@click.pass_obj
def status(settings: Settings, fail_if_failing: bool, fail_if_stale: float | None) -> None:
    """Shows each table's cursor, last batch, total number of appended rows, age and last error."""
    rows = read_progress(settings, list_last_attempts)
    has_failed = print_status(settings.output, rows, fail_if_failing, fail_if_stale)
    sys.exit(1 if has_failed else 0)


def list_last_attempts(progress: Iterable[StatusReaders]) -> list[tuple[Any, ...]]:
    """Returns the latest ledger row of each table, as `loader status` shows it."""
    rows: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    # Maps the schema to its rows, which are read once.
    ledgers: dict[str, list[dict[str, Any]]] = {}
    comparisons: dict[str, dict[tuple[str, str], TableComparison]] = {}
    for readers in progress:
        if readers.schema not in ledgers:
            ledgers[readers.schema] = readers.ledger.newest()
            comparisons[readers.schema] = readers.comparisons.by_table()
        names = readers.names
        attempts = [row for row in ledgers[readers.schema] if row["source_name"] in names]
        for attempt in sorted(attempts, key=lambda row: names.index(row["source_name"])):
            name = f"{readers.source.name}.{attempt['table_name']}"
            if name in seen:
                continue
            seen.add(name)
            key = attempt["source_name"], attempt["table_name"]
            compared = comparisons[readers.schema].get(key)
            rows.append(
                (
                    name,
                    attempt["status"],
                    attempt["cursor"],
                    attempt["batch"],
                    attempt["rows"],
                    attempt["rows_below_cursor"],
                    attempt["rows_at_cursor"],
                    attempt["rows_cursor_unmoved"],
                    _to_time(attempt["synced_micros"]),
                    attempt["log_bytes"],
                    _to_time(attempt["complete_micros"]),
                    _to_time(compared.verified_until) if compared else None,
                    compared.unrepaired if compared else None,
                    attempt["error"],
                )
            )
    return rows


def print_status(
    output: Output,
    rows: Sequence[tuple[Any, ...]],
    fail_if_failing: bool,
    fail_if_stale: float | None,
) -> bool:
    """Prints the rows of :func:`list_last_attempts`.

    Returns whether a table is failing or stale, if the options ask for this check.
    """
    from loader.lake.ledger import FAILED

    columns = (
        "table",
        "last_attempt",
        "cursor",
        "batch",
        "rows_appended",
        "rows_below_cursor",
        "rows_at_cursor",
        "rows_cursor_unmoved",
        "synced",
        "log_kept",
        "complete",
        "verified",
        "unrepaired",
        "error",
    )
    failing = [row[0] for row in rows if fail_if_failing and row[1] == FAILED]
    stale = [row[0] for row in rows if fail_if_stale and _seconds_since(row[8]) > fail_if_stale]
    # Without any sync, the lake is stale.
    has_failed = bool(failing or stale or (fail_if_stale and not rows))
    if output.json:
        times = ("synced_at", "log_bytes", "complete_until", "verified_until")
        output.table("status", (*columns[:8], *times, *columns[-2:]), rows)
        return has_failed
    if not rows:
        output.say("Nothing has been synced yet: run `loader run`.")
        return has_failed
    # Hides these columns if they are empty or zero in all rows. Errors are printed below the table.
    hidden = [i for i in (5, 6, 7, 9, 11, 12) if not any(row[i] for row in rows)]
    hidden.append(columns.index("complete"))  # too wide
    shown = [i for i in range(len(columns) - 1) if i not in hidden]
    shown_rows = [
        (*row[:8], _format_age(row[8]), _format_size(row[9]), None, _format_age(row[11]), row[12])
        for row in rows
    ]
    output.table(
        "status", [columns[i] for i in shown], [[row[i] for i in shown] for row in shown_rows]
    )
    failed: dict[str, list[str]] = {}  # groups the tables by error
    for row in rows:
        if row[-1]:
            failed.setdefault(row[-1], []).append(row[0])
    for error, tables in failed.items():
        output.say(f"{list_names(tables)}: {error}")
    for names, what in ((failing, "Failing"), (stale, "Stale")):
        if names:
            output.say(f"{what}: {', '.join(names)}")
    return has_failed


def _format_size(count: int | None) -> str | None:
    return None if count is None else f"{count / 2**20:,.1f} MB"


def _to_time(micros: int | None) -> dt.datetime | None:
    return None if micros is None else dt.datetime.fromtimestamp(micros / 1e6, dt.timezone.utc)


def _seconds_since(time: dt.datetime | None) -> float:
    if time is None:
        return math.inf
    return (dt.datetime.now(dt.timezone.utc) - time).total_seconds()


def _format_age(time: dt.datetime | None) -> str | None:
    if time is None:
        return None
    seconds = int(_seconds_since(time))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"
