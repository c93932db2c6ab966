"""Builds the report's contents from the history and dbt's results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.report.history import DAY, HOUR, SourceHistory
from loader.report.problems import (
    GOOD,
    NONE,
    WARN,
    Problem,
    describe_proof,
    format_age,
    merge_problems,
    summarize,
)
from loader.report.proofs import DbtResults, Proof
from loader.report.tables import ErrorSum, TableReport, build_table

_SECOND = 1_000_000
_MOST_NODES = 10
_MOST_PAST = 6
_HOURLY_DAYS = 3
"""Up to this number of days, the report's periods are hours."""


@dataclass(frozen=True)
class PastFailure:
    """Past failures with the same error, in one or more tables, that no longer occur.

    Attributes:
        first, last: the start of the first and the end of the last failed sync, in microseconds.
    """

    text: str
    tables: Sequence[str]
    count: int
    first: int
    last: int


@dataclass(frozen=True)
class Report:
    """The contents of the page.

    Attributes:
        level: the level of the verdict: ``good``, ``warn``, ``bad``, or ``none`` if nothing was
            synced.
        sentence: the verdict.
        since, until: the start and end of the time that the report covers, in microseconds since
            1970.
        length: the length of a period in microseconds.
        nodes: the slowest models and tests, with their times in seconds.
    """

    level: str
    sentence: str
    problems: Sequence[Problem]
    tables: Sequence[TableReport]
    since: int
    until: int
    length: int
    totals: Mapping[str, Sequence[Any]]
    proofs: Sequence[Proof] = ()
    results: DbtResults | None = None
    proved_at: int | None = None
    nodes: Sequence[tuple[str, float]] = ()
    past: Sequence[PastFailure] = ()

    @property
    def periods(self) -> int:
        return self.until // self.length - self.since // self.length + 1

    @property
    def holding(self) -> int:
        """The number of proofs that hold."""
        return sum(proof.status == "pass" for proof in self.tests)

    @property
    def stored(self) -> Sequence[Proof]:
        """The proofs that builds stored in their tables."""
        return [proof for proof in self.proofs if proof.stored_on]

    @property
    def tests(self) -> Sequence[Proof]:
        return [proof for proof in self.proofs if proof.is_test]


def choose_periods(now: int, days: int) -> tuple[int, int]:
    """Returns the start of the first period and the length of a period, in microseconds."""
    length = HOUR if days <= _HOURLY_DAYS else DAY
    return (now - days * DAY) // length * length + length, length


def build_report(
    histories: Sequence[SourceHistory],
    results: DbtResults | None,
    now: int,
    since: int,
    length: int,
    stale_after: float | None = None,
) -> Report:
    """Builds the contents of the page.

    Args:
        now: the current time in microseconds since 1970.
        since: the start of the first period.
        length: the length of a period.
        stale_after: the maximum age of a table's last successful sync in seconds. The default is
            derived from the usual interval between the table's syncs.
    """
    tables: list[TableReport] = []
    problems: list[Problem] = []
    for history in histories:
        seen = set()
        for row in sorted(history.newest, key=lambda row: history.names.index(row["source_name"])):
            if row["table_name"] in seen:  # this row has a former name of the source
                continue
            seen.add(row["table_name"])
            name = f"{history.name}.{row['table_name']}"
            table, found = build_table(
                name, f"t{len(tables)}", row, history, now, since, length, stale_after
            )
            tables.append(table)
            problems += found
    proofs = sorted(
        results.proofs if results is not None else (),
        key=lambda proof: (not proof.has_failed, not proof.has_warned, proof.subject, proof.name),
    )
    problems += [describe_proof(proof, f"p{i}") for i, proof in enumerate(proofs) if _is_off(proof)]
    proved_at = _parse_time(results.at) if results is not None else None
    if tables:
        problems += _check_proofs(tables, results, proved_at)
    problems = merge_problems(problems)
    level = next((problem.level for problem in problems), GOOD) if tables or problems else NONE
    slowest = sorted((results.node_seconds if results else {}).items(), key=lambda item: -item[1])
    return Report(
        level,
        summarize(level, problems, [table.level for table in tables], proofs),
        problems,
        sorted(tables, key=lambda table: (table.level == GOOD, table.level == WARN)),
        since,
        now,
        length,
        _sum_series([table.series for table in tables]),
        proofs,
        results,
        proved_at,
        slowest[:_MOST_NODES],
        _list_past_failures(tables),
    )


def _list_past_failures(tables: Sequence[TableReport]) -> list[PastFailure]:
    by_text: dict[str, list[tuple[str, ErrorSum]]] = {}
    for table in tables:
        for error in table.errors:
            if not error.is_current:
                by_text.setdefault(error.text, []).append((table.name, error))
    past = [
        PastFailure(
            text,
            [name for name, _ in group],
            sum(error.count for _, error in group),
            min(error.first for _, error in group),
            max(error.last for _, error in group),
        )
        for text, group in by_text.items()
    ]
    return sorted(past, key=lambda each: -each.last)[:_MOST_PAST]


def _sum_series(each_series: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    names = ("rows", "redelivered", "below", "ties", "failed")
    sums: dict[int, list[int]] = {}
    for series in each_series:
        for i, at in enumerate(series["at"]):
            total = sums.setdefault(at, [0] * len(names))
            for j, name in enumerate(names):
                total[j] += series[name][i]
    ordered = sorted(sums.items())
    totals = {name: [total[j] for _, total in ordered] for j, name in enumerate(names)}
    return {"at": [at for at, _ in ordered], **totals}


def _is_off(proof: Proof) -> bool:
    return proof.has_failed or proof.has_warned


def _check_proofs(
    tables: Sequence[TableReport], results: DbtResults | None, proved_at: int | None
) -> list[Problem]:
    """Returns a problem if the proofs are missing or much older than the loaded rows."""
    if results is None or not any(proof.is_test for proof in results.proofs):
        text = "have not run, so nothing here is proved: run `dbt build`"
        return [Problem("unproved", [("The proofs", "proofs")], text)]
    loaded = max((t.synced for t in tables if t.synced is not None and t.rows), default=None)
    if loaded is not None and proved_at is not None and loaded - proved_at > DAY:
        age = format_age((loaded - proved_at) / _SECOND)
        text = f"are {age} older than the last loaded rows: run `dbt build`"
        return [Problem("unproved", [("The proofs", "proofs")], text)]
    return []


def _parse_time(text: str) -> int | None:
    try:
        time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return round(time.timestamp() * _SECOND)
