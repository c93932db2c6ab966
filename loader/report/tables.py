"""Builds a table's section, and finds problems with its syncs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.formatting import format_count
from loader.lake.ledger import FAILED, NOTHING_NEW, RECOVERED, SYNCED
from loader.report.history import DAY, ComparisonSum, SourceHistory, SyncSum
from loader.report.problems import GOOD, KINDS, Problem, format_age

_SECOND = 1_000_000
_SUCCESS = (SYNCED, NOTHING_NEW, RECOVERED)
_FEWEST_SYNCS = 3
"""With fewer syncs than this, the usual interval between two syncs is unknown."""
_MISSED_SYNCS = 3
_MOST_ERRORS = 8
_MOST_CHANGES = 20
_UNKNOWN_CLOCK = 366 * DAY


@dataclass(frozen=True)
class ErrorSum:
    """Failed syncs of a table with the same error. Times are in microseconds since 1970."""

    text: str
    count: int
    first: int
    last: int
    is_current: bool


@dataclass(frozen=True)
class TableReport:
    """A table's section in the report. Times are in microseconds since 1970.

    Attributes:
        level: ``good``, ``warn`` or ``bad``.
        state: a word for the level.
        strip: runs of periods with the same result: ``(result, first period, periods)``.
        series: the values of the charts, keyed by name, with one value for each period in `at`.
        usual: the usual interval between two syncs in seconds; None if unknown.
    """

    id: str
    name: str
    level: str
    state: str
    synced: int | None
    complete: int | None
    cursor: str | None
    rows: int
    redelivered: int
    below: int
    at: int
    unmoved: int
    syncs: int
    failures: int
    seconds: float | None
    longest: float | None
    usual: float | None
    log_bytes: int | None
    verified_until: int | None
    unrepaired: int
    errors: Sequence[ErrorSum] = ()
    more_errors: int = 0
    changes: Sequence[tuple[int, str]] = ()
    strip: Sequence[tuple[str, int, int]] = ()
    comparisons: Sequence[ComparisonSum] = ()
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def late(self) -> int:
        """The number of rows that a plain cursor query would have missed."""
        return self.below + self.at

    @property
    def share(self) -> float | None:
        """The redelivered rows as a share of all rows that the source returned."""
        read = self.rows + self.redelivered
        return self.redelivered / read if read else None


def build_table(
    name: str,
    id_: str,
    row: Mapping[str, Any],
    history: SourceHistory,
    now: int,
    since: int,
    length: int,
    stale_after: float | None,
) -> tuple[TableReport, list[Problem]]:
    syncs = [each for each in history.syncs if each.table_name == row["table_name"]]
    good = [each for each in syncs if each.status in _SUCCESS]
    failed = [each for each in syncs if each.status == FAILED]
    counted = sum(each.syncs for each in good)
    synced, complete = row["synced_micros"], row["complete_micros"]
    usual = _find_rhythm(good, counted)
    compared = history.compared.get((row["source_name"], row["table_name"]))
    errors = _sum_errors(failed, synced, row)
    problems = _find_problems(name, id_, row, failed, usual, now, since, stale_after)
    if compared is not None and compared.unrepaired:
        rows = format_count(compared.unrepaired, "row differs", "rows differ")
        text = f"is not equal to its source: {rows}, and this is not repaired"
        problems.append(Problem("differs", [(name, id_)], text))
    worst = min(problems, key=lambda each: list(KINDS).index(each.kind), default=None)
    return (
        TableReport(
            id_,
            name,
            worst.level if worst is not None else GOOD,
            KINDS[worst.kind].state if worst is not None else "up to date",
            synced,
            complete if complete is not None and complete > _UNKNOWN_CLOCK else None,
            row["cursor"],
            sum(each.rows_appended for each in syncs),
            sum(each.rows_redelivered for each in syncs),
            sum(each.rows_below_cursor for each in syncs),
            sum(each.rows_at_cursor for each in syncs),
            sum(each.rows_cursor_unmoved for each in syncs),
            counted,
            sum(each.syncs for each in failed),
            sum(each.micros for each in good) / _SECOND / counted if counted else None,
            max((each.longest for each in good), default=0) / _SECOND if counted else None,
            usual,
            row["log_bytes"],
            compared.verified_until if compared is not None else None,
            compared.unrepaired if compared is not None else 0,
            errors[:_MOST_ERRORS],
            len(errors[_MOST_ERRORS:]),
            _list_changes(syncs),
            _build_strip(syncs, since // length, now // length),
            [each for each in history.comparisons if each.table_name == row["table_name"]],
            _build_series(syncs, length),
        ),
        problems,
    )


def _find_problems(
    name: str,
    id_: str,
    row: Mapping[str, Any],
    failed: Sequence[SyncSum],
    usual: float | None,
    now: int,
    since: int,
    stale_after: float | None,
) -> list[Problem]:
    synced, complete = row["synced_micros"], row["complete_micros"]
    age = (now - synced) / _SECOND if synced is not None else None
    subjects = [(name, id_)]
    if row["status"] == FAILED:
        times = sum(each.syncs for each in failed if synced is None or each.last > synced)
        tries = f", {format_count(times, 'attempt')} failed since" if times > 1 else ""
        text = (
            "has never been synced successfully"
            if age is None
            else f"fails: it was last synced {format_age(age)} ago{tries}"
        )
        return [Problem("failing", subjects, text, row["error"] or "", age)]
    if age is None:
        return [Problem("never", subjects, "has never been synced successfully")]
    if age > (stale_after or _longest_age(usual)):
        often = f", but usually every {format_age(usual)}" if usual is not None else ""
        text = f"is stale: it was last synced {format_age(age)} ago{often}"
        return [Problem("stale", subjects, text, seconds=age)]
    if complete is not None and complete <= _UNKNOWN_CLOCK:
        text = "may lack rows since a failover or restore of its database, until it is swept"
        return [Problem("unclear", subjects, text)]
    if complete is not None and synced - complete > DAY:
        behind = format_age((synced - complete) / _SECOND)
        text = f"is complete only up to {behind} before its last sync"
        return [Problem("behind", subjects, text)]
    return []


def _find_rhythm(good: Sequence[SyncSum], counted: int) -> float | None:
    """Returns the mean interval between two successful syncs in seconds, or None if unknown."""
    if counted < _FEWEST_SYNCS:
        return None
    span = max(each.last for each in good) - min(each.first for each in good)
    return span / (counted - 1) / _SECOND if span >= DAY else None


def _longest_age(usual: float | None) -> float:
    """Returns the age in seconds at which a table becomes stale."""
    if usual is None:
        return 2 * 86400.0
    return max(_MISSED_SYNCS * usual, 3600.0)


def _sum_errors(
    failed: Sequence[SyncSum], synced: int | None, row: Mapping[str, Any]
) -> list[ErrorSum]:
    by_text: dict[str, list[SyncSum]] = {}
    for each in failed:
        by_text.setdefault(each.error or "unknown error", []).append(each)
    errors = [
        ErrorSum(
            text,
            sum(each.syncs for each in group),
            min(each.first for each in group),
            max(each.last for each in group),
            row["status"] == FAILED
            and (synced is None or max(each.last for each in group) > synced),
        )
        for text, group in by_text.items()
    ]
    return sorted(errors, key=lambda error: -error.last)


def _list_changes(syncs: Sequence[SyncSum]) -> list[tuple[int, str]]:
    changes = [(each.first, each.schema_changes) for each in syncs if each.schema_changes]
    return sorted(changes, reverse=True)[:_MOST_CHANGES]


def _build_strip(syncs: Sequence[SyncSum], first: int, last: int) -> list[tuple[str, int, int]]:
    """Returns runs of periods with the same result, which get the same colour in a strip."""
    results: dict[int, set[str]] = {}
    for each in syncs:
        kind = "ok" if each.status in _SUCCESS else "failed" if each.status == FAILED else "none"
        results.setdefault(each.period - first, set()).add(kind)
    strip: list[tuple[str, int, int]] = []
    for period in range(last - first + 1):
        kinds = results.get(period, set()) - {"none"}
        result = "mixed" if len(kinds) > 1 else next(iter(kinds), "none")
        if strip and strip[-1][0] == result:
            strip[-1] = (result, strip[-1][1], strip[-1][2] + 1)
        else:
            strip.append((result, period, 1))
    return strip


def _build_series(syncs: Sequence[SyncSum], length: int) -> dict[str, list[Any]]:
    names = ("at", "rows", "redelivered", "below", "ties", "failed", "seconds", "lag")
    series: dict[str, list[Any]] = {name: [] for name in names}
    by_period: dict[int, list[SyncSum]] = {}
    for each in syncs:
        by_period.setdefault(each.period, []).append(each)
    for period, group in sorted(by_period.items()):
        good = [each for each in group if each.status in _SUCCESS]
        counted = sum(each.syncs for each in good)
        lags = [each.lag for each in group if each.lag is not None]
        values = (
            period * length // _SECOND,
            sum(each.rows_appended for each in group),
            sum(each.rows_redelivered for each in group),
            sum(each.rows_below_cursor for each in group),
            sum(each.rows_at_cursor for each in group),
            sum(each.syncs for each in group if each.status == FAILED),
            round(sum(each.micros for each in good) / _SECOND / counted, 2) if counted else None,
            round(max(lags) / _SECOND, 1) if lags else None,
        )
        for name, value in zip(names, values, strict=True):
            series[name].append(value)
    return series
