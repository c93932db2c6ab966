"""Summaries at the end of a command, and the exit code for each."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from loader.cli.output import Output
from loader.errors import LoaderError
from loader.lake.ledger import FAILED, SyncRecord

if TYPE_CHECKING:
    from loader.sync.runner import Outcome, Preview
    from loader.sync.status_readers import StatusReaders

_FEW_NAMES = 3
"""So many tables are named before an error that they share."""


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
    from loader.sync.runner import Outcome

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


def list_last_attempts(progress: Iterable[StatusReaders]) -> list[tuple[Any, ...]]:
    """Returns the lines of `loader status`: the ledger's newest row for each table."""
    rows: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    ledgers: dict[str, list[dict[str, Any]]] = {}  # each is read only once
    for one in progress:
        if one.schema not in ledgers:
            ledgers[one.schema] = one.ledger.newest()
        own = [known for known in ledgers[one.schema] if known["source_name"] in one.names]
        for known in sorted(own, key=lambda known: one.names.index(known["source_name"])):
            name = f"{one.source.name}.{known['table_name']}"
            if name in seen:
                continue
            seen.add(name)
            rows.append(
                (
                    name,
                    known["status"],
                    known["cursor"],
                    known["batch"],
                    known["rows"],
                    _time(known["synced_micros"]),
                    known["log_bytes"],
                    known["error"],
                )
            )
    return rows


def status(
    output: Output,
    rows: Sequence[tuple[Any, ...]],
    fail_if_failing: bool,
    fail_if_stale: float | None,
) -> bool:
    """Prints the table of `loader status`.

    Args:
        rows: as :func:`list_last_attempts` returns them.
        fail_if_stale: the longest time since a table's last success, in seconds.

    Returns:
        Whether a table is failing or stale, as far as that was asked.
    """
    columns = (
        "table",
        "last_attempt",
        "cursor",
        "batch",
        "rows_appended",
        "synced",
        "log_kept",
        "error",
    )
    failing = [row[0] for row in rows if fail_if_failing and row[1] == FAILED]
    stale = [row[0] for row in rows if fail_if_stale and _seconds_since(row[5]) > fail_if_stale]
    if output.json:
        output.table("status", (*columns[:5], "synced_at", "log_bytes", "error"), rows)
        return bool(failing or stale)
    if not rows:
        output.say("Nothing has been synced yet: run `loader run`.")
        return bool(fail_if_stale)
    shown = -1 if any(row[-2] for row in rows) else -2  # the log only if some table follows it
    shown_rows = [(*row[:5], _age(row[5]), _size(row[6]), row[7]) for row in rows]
    output.table("status", columns[:shown], [row[:shown] for row in shown_rows])
    failed: dict[str, list[str]] = {}  # the tables of a source that is down share one error
    for row in rows:
        if row[-1]:
            failed.setdefault(row[-1], []).append(row[0])
    for error, tables in failed.items():
        more = f" and {len(tables) - _FEW_NAMES} more" if len(tables) > _FEW_NAMES else ""
        output.say(f"{', '.join(tables[:_FEW_NAMES])}{more}: {error}")
    for names, what in ((failing, "Failing"), (stale, "Stale")):
        if names:
            output.say(f"{what}: {', '.join(names)}")
    return bool(failing or stale)


def _seconds(record: SyncRecord) -> float | None:
    if record.started_at is None or record.finished_at is None:
        return None
    return round((record.finished_at - record.started_at).total_seconds(), 1)


def _size(count: int | None) -> str | None:
    return None if count is None else f"{count / 2**20:,.1f} MB"


def _time(micros: int | None) -> dt.datetime | None:
    return None if micros is None else dt.datetime.fromtimestamp(micros / 1e6, dt.timezone.utc)


def _seconds_since(then: dt.datetime | None) -> float:
    if then is None:
        return math.inf
    return (dt.datetime.now(dt.timezone.utc) - then).total_seconds()


def _age(then: dt.datetime | None) -> str | None:
    if then is None:
        return None
    seconds = int(_seconds_since(then))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"
