"""Computes the report's contents from the history and dbt's results, in pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.formatting import format_count
from loader.lake.ledger import FAILED, NOTHING_NEW, RECOVERED, SYNCED
from loader.report.history import DAY, HOUR, ComparisonSum, SourceHistory, SyncSum
from loader.report.proofs import DbtResults, Proof

BAD, WARN, GOOD, NONE = "bad", "warn", "good", "none"
"""Levels of the verdict and of problems."""

_SECOND = 1_000_000
_SUCCESS = (SYNCED, NOTHING_NEW, RECOVERED)
_FEWEST_SYNCS = 3
"""With fewer syncs, the usual interval between two syncs is unknown."""
_MISSED_SYNCS = 3
_MOST_ERRORS = 8
_MOST_CHANGES = 20
_MOST_NODES = 10
_MOST_PAST = 6
_HOURLY_DAYS = 3
"""If the report covers at most this number of days, its periods are hours."""
_UNKNOWN_CLOCK = 366 * DAY


@dataclass(frozen=True)
class _Kind:
    """A kind of problem.

    Attributes:
        state: a word for a table with this problem.
        one, several: the words that follow the number of such problems in the verdict.
    """

    level: str
    state: str
    one: str
    several: str


_KINDS = {
    "failing": _Kind(BAD, "failing", "table fails", "tables fail"),
    "stale": _Kind(BAD, "stale", "table is stale", "tables are stale"),
    "differs": _Kind(BAD, "differs", "table differs from its source", "tables differ from theirs"),
    "proof fails": _Kind(BAD, "fails", "proof does not hold", "proofs do not hold"),
    "proof breaks": _Kind(BAD, "error", "proof could not run", "proofs could not run"),
    "not built": _Kind(BAD, "not built", "model was not built", "models were not built"),
    "never": _Kind(WARN, "never synced", "table was never synced", "tables were never synced"),
    "behind": _Kind(WARN, "behind", "table is far behind", "tables are far behind"),
    "unclear": _Kind(WARN, "unclear", "table may lack rows", "tables may lack rows"),
    "proof warns": _Kind(WARN, "warns", "proof warns", "proofs warn"),
    "unproved": _Kind(WARN, "unproved", "the proofs are missing or old", ""),
}
"""The kinds of problems, in the order in which the verdict counts them."""


@dataclass(frozen=True)
class Problem:
    """A line of the list at the top of the report.

    Attributes:
        kind: a key of `_KINDS`.
        subjects: the tables or the proof, each with the id of the section that has the details.
        text: the sentence about the subjects, without the subjects themselves.
        detail: an error or the keys of failing rows.
        seconds: the age of the last successful sync; None if unknown.
    """

    kind: str
    subjects: Sequence[tuple[str, str]]
    text: str
    detail: str = ""
    seconds: float | None = None

    @property
    def level(self) -> str:
        """The level, ``bad`` or ``warn``."""
        return _KINDS[self.kind].level


@dataclass(frozen=True)
class PastFailure:
    """Earlier failures with the same error, in one or several tables, which no longer occur.

    Attributes:
        tables: the names of the tables.
        first, last: the start of the first and the end of the last failed sync, in microseconds.
    """

    text: str
    tables: Sequence[str]
    count: int
    first: int
    last: int


@dataclass(frozen=True)
class ErrorSum:
    """Failed syncs of a table with the same error. Times are in microseconds."""

    text: str
    count: int
    first: int
    last: int
    is_current: bool


@dataclass(frozen=True)
class TableReport:
    """The section of a table. Times are in microseconds since 1970.

    Attributes:
        level: ``good``, ``warn`` or ``bad``.
        state: a word for the level.
        strip: runs of periods with the same result: ``(result, first period, periods)``.
        series: the values of each chart, keyed by name, with one value for each period in `at`.
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
    compared: int | None
    unrepaired: int
    errors: Sequence[ErrorSum] = ()
    more_errors: int = 0
    changes: Sequence[tuple[int, str]] = ()
    strip: Sequence[tuple[str, int, int]] = ()
    comparisons: Sequence[ComparisonSum] = ()
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def late(self) -> int:
        """The number of rows that a plain cursor would have lost."""
        return self.below + self.at

    @property
    def share(self) -> float | None:
        """The share of redelivered rows among all rows that the source returned."""
        read = self.rows + self.redelivered
        return self.redelivered / read if read else None


@dataclass(frozen=True)
class Report:
    """The contents of the page.

    Attributes:
        level: the level of the verdict: ``good``, ``warn``, ``bad``, or ``none`` if nothing has
            been synced.
        sentence: the verdict.
        since, until: the time that the report covers, in microseconds since 1970.
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
        """The number of periods."""
        return self.until // self.length - self.since // self.length + 1

    @property
    def holding(self) -> int:
        """The number of proofs that hold."""
        return sum(proof.status == "pass" for proof in self.tests)

    @property
    def tests(self) -> Sequence[Proof]:
        """The proofs that are tests."""
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
    """Computes the contents of the page.

    Args:
        now: the current time in microseconds since 1970.
        since: the start of the first period.
        length: the length of a period.
        stale_after: the maximum age of a table's last successful sync in seconds. None derives it
            from the usual interval between the table's syncs.
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
            table, found = _build_table(
                name, f"t{len(tables)}", row, history, now, since, length, stale_after
            )
            tables.append(table)
            problems += found
    proofs = sorted(
        results.proofs if results is not None else (),
        key=lambda proof: (not proof.has_failed, not proof.has_warned, proof.subject, proof.name),
    )
    problems += [
        _describe_proof(proof, f"p{i}") for i, proof in enumerate(proofs) if _is_off(proof)
    ]
    proved_at = _parse_time(results.at) if results is not None else None
    if tables:
        problems += _check_proofs(tables, results, proved_at)
    problems = _merge_problems(problems)
    level = next((problem.level for problem in problems), GOOD) if tables or problems else NONE
    slowest = sorted((results.node_seconds if results else {}).items(), key=lambda item: -item[1])
    return Report(
        level,
        _summarize(level, problems, tables, proofs),
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


def format_age(seconds: float) -> str:
    """Formats an age in one unit, such as `3 days`."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return format_count(round(seconds / size), unit)
    return format_count(max(round(seconds), 0), "second")


def _build_table(
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
    worst = min(problems, key=lambda each: list(_KINDS).index(each.kind), default=None)
    return (
        TableReport(
            id_,
            name,
            worst.level if worst is not None else GOOD,
            _KINDS[worst.kind].state if worst is not None else "up to date",
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
    """Returns the problem with a table's syncs, if there is one."""
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


def _merge_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Merges the problems that several tables share, and sorts the problems, the worst first.

    If a database or the loader is down, all tables have the same problem.
    """
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for each in problems:
        is_shared = each.kind in ("failing", "stale")
        key = each.kind, each.detail, "" if is_shared else each.text + str(each.subjects)
        groups.setdefault(key, []).append(each)
    merged = []
    for (kind, detail, _), group in groups.items():
        if len(group) == 1:
            merged += group
            continue
        ages = [each.seconds for each in group if each.seconds is not None]
        oldest = f": the oldest sync was {format_age(max(ages))} ago" if ages else ""
        verb = "fail" if kind == "failing" else "are stale"
        subjects = [subject for each in group for subject in each.subjects]
        merged.append(Problem(kind, subjects, verb + oldest, detail, max(ages, default=None)))
    return sorted(merged, key=lambda each: list(_KINDS).index(each.kind))


def _list_past_failures(tables: Sequence[TableReport]) -> list[PastFailure]:
    """Returns the failures that no longer occur, the newest first."""
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


def _find_rhythm(good: Sequence[SyncSum], counted: int) -> float | None:
    """Returns the mean interval between two successful syncs in seconds; None if unknown."""
    if counted < _FEWEST_SYNCS:
        return None
    span = max(each.last for each in good) - min(each.first for each in good)
    return span / (counted - 1) / _SECOND if span >= DAY else None


def _longest_age(usual: float | None) -> float:
    """Returns the age in seconds from which a table is stale."""
    if usual is None:
        return 2 * 86400.0
    return max(_MISSED_SYNCS * usual, 3600.0)


def _sum_errors(
    failed: Sequence[SyncSum], synced: int | None, row: Mapping[str, Any]
) -> list[ErrorSum]:
    """Returns the distinct errors, the newest first."""
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
    """Returns the newest schema changes, each with its time."""
    changes = [(each.first, each.schema_changes) for each in syncs if each.schema_changes]
    return sorted(changes, reverse=True)[:_MOST_CHANGES]


def _build_strip(syncs: Sequence[SyncSum], first: int, last: int) -> list[tuple[str, int, int]]:
    """Returns runs of adjacent periods with the same result. Each result has its own colour."""
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
    """Returns the values of a table's charts for each period with a sync."""
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


def _sum_series(each_series: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """Returns, for each period, the sums over all tables."""
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


def _describe_proof(proof: Proof, target: str) -> Problem:
    if not proof.is_test:
        return Problem("not built", [(proof.name, target)], "was not built", proof.message)
    subjects = [(f"{proof.name} on {proof.subject}" if proof.subject else proof.name, target)]
    if proof.status not in ("fail", "warn"):
        return Problem("proof breaks", subjects, "could not run", proof.message)
    rows = f" for {format_count(proof.failures, 'row')}" if proof.failures else ""
    kind, verb = ("proof warns", "warns") if proof.has_warned else ("proof fails", "does not hold")
    return Problem(kind, subjects, verb + rows, _list_keys(proof))


def _list_keys(proof: Proof) -> str:
    """Returns the keys of the first failing rows as one line."""
    key = {name.lower() for name in proof.key}
    places = [i for i, name in enumerate(proof.rows.columns) if name.lower() in key]
    if not places:
        return ""
    columns = ", ".join(proof.rows.columns[i] for i in places)
    keys = list(dict.fromkeys(", ".join(row[i] for i in places) for row in proof.rows.rows))
    shown = [f"({each})" if len(places) > 1 else each for each in keys[:5]]
    more = ", …" if len(keys) > len(shown) or proof.rows.has_more else ""
    return f"{columns}: {', '.join(shown)}{more}"


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


def _summarize(
    level: str, problems: Sequence[Problem], tables: Sequence[TableReport], proofs: Sequence[Proof]
) -> str:
    """Returns the sentence at the top of the page."""
    if level == NONE:
        return "Nothing has been synced yet: run `loader run`."
    tests = [proof for proof in proofs if proof.is_test]
    fine = sum(table.level == GOOD for table in tables)
    good = f"{_all_of(fine, len(tables), 'table')} up to date"
    if level == GOOD:
        holding = sum(proof.status == "pass" for proof in tests)
        return f"All is well: {good}, and {_all_of(holding, len(tests), 'proof', 'hold')}."
    counts = _count_problems(problems, level)
    if level == BAD:
        return f"Something is wrong: {counts}."
    return f"Nothing has failed, but {counts}."


def _count_problems(problems: Sequence[Problem], level: str) -> str:
    parts = []
    for kind, words in _KINDS.items():
        count = sum(len(each.subjects) for each in problems if each.kind == kind)
        if count and words.level == level:
            parts.append(
                format_count(count, words.one, words.several) if words.several else words.one
            )
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if parts[1:] else parts[0]


def _all_of(count: int, total: int, one: str, verb: str = "") -> str:
    several = f"{one}s"
    if total == 1:
        return f"the {one} {'holds' if verb else 'is'}"
    if count == total:
        return f"all {total:,} {several} {verb or 'are'}"
    return f"{count:,} of {total:,} {several} {verb or 'are'}"


def _parse_time(text: str) -> int | None:
    try:
        time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return round(time.timestamp() * _SECOND)
