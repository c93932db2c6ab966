"""The result of an audit: how many rows differ, since when, and in which columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.formatting import format_count, format_duration

LOST = "lost"
"""The source has the row, and the copy does not."""

STALE = "stale"
"""The copy's row has different values from the source's row."""

EXTRA = "extra"
"""The copy has the row, and the source does not: a delete was missed."""

DOUBLED = "doubled"
"""The copy has several rows for a key, but should have one."""

KINDS = (LOST, STALE, EXTRA, DOUBLED)

_DAY, _MONTH, _YEAR = 10, 7, 4
"""The lengths of a day, a month and a year in a date such as 2025-01-31."""

LAG = "lag"
"""The copy need not contain the change yet."""


@dataclass(frozen=True)
class Example:
    """A row that differs.

    Attributes:
        key: the key as text, such as `id=7`.
        at: the row's cursor as text; None if there is none.
        columns: the columns that differ, for a stale row.
    """

    kind: str
    key: str
    at: str | None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The comparison of a table with a copy of it.

    Attributes:
        source, copy: the names of the two tables.
        tool: the tool that loaded the copy; empty if unknown.
        key: the columns by which rows were compared.
        cursor: the column that dates the differences; None if there is none.
        rows_source, rows_copy: how many rows were compared in each table.
        share: the share of the keys that was compared, from 0 to 1.
        counts: the number of rows for each kind of difference.
        lag: the number of differences that lag explains.
        days: the number of rows per kind of difference, for each day of the cursor.
        columns: the number of stale rows for each column that differs.
        rewritten: the columns that differ in almost all rows, each with the number of rows in which
            it differs. The copy probably stores them in a different form. Their differences are not
            counted.
        compared: the number of columns that were compared.
        examples: a few rows of each kind.
        not_compared: the columns that were not compared, each with the reason.
        additional: columns of the copy that the source does not have.
        highest: the copy's highest cursor; None if unknown.
        behind: the number of rows whose cursor is above the copy's highest, and which the copy
            lacks or has with older values.
        oldest: the lowest cursor of these rows; None if there are none.
        age: the age of the row with this cursor, in seconds; None if the cursor is not a time.
        max_lag: the age in seconds at which the copy counts as stopped.
        seconds: how long the two comparisons took, without the pause between them.
    """

    source: str
    copy: str
    tool: str
    key: tuple[str, ...]
    cursor: str | None
    rows_source: int
    rows_copy: int
    share: float = 1.0
    counts: Mapping[str, int] = field(default_factory=dict)
    lag: int = 0
    days: tuple[tuple[str, Mapping[str, int]], ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    rewritten: tuple[tuple[str, int], ...] = ()
    compared: int = 0
    examples: tuple[Example, ...] = ()
    not_compared: Mapping[str, str] = field(default_factory=dict)
    additional: tuple[str, ...] = ()
    highest: str | None = None
    behind: int = 0
    oldest: str | None = None
    age: float | None = None
    max_lag: float = 0.0
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """The number of rows that differ and that lag does not explain."""
        return sum(self.counts.values())

    @property
    def is_equal(self) -> bool:
        """Returns whether nothing differs except what lag explains."""
        return not self.differences and not self.rewritten and not self.has_stopped

    @property
    def has_stopped(self) -> bool:
        """Returns whether the copy lacks a row that is older than the lag allows."""
        return self.age is not None and self.age > self.max_lag

    @property
    def sentence(self) -> str:
        """The result as one sentence."""
        scope = []
        if self.not_compared and self.compared:
            scope.append(f"{self.compared} of {self.compared + len(self.not_compared)} columns")
        if self.share < 1:
            scope.append(f"{self.share:.1%} of the keys")
        within = f" ({' and '.join(scope)} were compared)" if scope else ""
        if not self.rows_copy and self.rows_source:
            return f"{self.copy} is empty."
        found = [(kind, self.counts[kind]) for kind in KINDS if self.counts.get(kind)]
        newer = ""
        if self.behind:
            end = f"It has not been loaded since {self.highest}"
            if self.age is None:
                end = f"Its newest {self.cursor} is {self.highest}"
            newer = f" {end}, and it is {format_count(self.behind, 'row')} behind."
        if not found:
            rest = " except in the columns named above" if self.rewritten else ""
            same = "the older rows of" if self.behind else "the same rows as"
            return f"{self.copy} has {same} {self.source}{rest}{within}.{newer}"
        (kind, count), *others = found
        listed = [
            f"{format_count(count, 'row')} {kind}",
            *(f"{n:,} {other}" for other, n in others),
        ]
        return f"{self.copy} differs from {self.source}: {', '.join(listed)}{within}.{newer}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the result does not count, and about what to try."""
        notes = []
        if self.lag > self.behind:
            notes.append(f"{format_count(self.lag - self.behind, 'difference')} may be lag.")
        if self.has_stopped:
            notes.append(
                f"The oldest row that {self.copy} has not loaded is from {self.oldest}, "
                f"{format_duration(self.age or 0)} ago: more than --max-lag, "
                f"{format_duration(self.max_lag)}."
            )
        for name, rows in self.rewritten:
            notes.append(
                f"Column {name} differs in {format_count(rows, 'row')}, which is almost all: "
                f"{self.copy} probably stores it in another form. These differences are not "
                f"counted. To exclude the column, add --ignore {name}."
            )
        if self.counts.get(DOUBLED):
            notes.append(
                f"If {self.copy} keeps old versions of rows on purpose, repeat the audit with "
                "--versions."
            )
        return tuple(notes)

    def group_days(self, most: int) -> tuple[tuple[str, Mapping[str, int]], ...]:
        """Returns :attr:`days`, or sums for months or years if there are more periods than `most`.

        Example:
            >>> days = (("2025-01-30", {"lost": 1}), ("2025-01-31", {"lost": 2}))
            >>> Audit("s", "c", "", (), None, 0, 0, days=days).group_days(1)
            (('2025-01', {'lost': 3}),)
        """
        grouped: dict[str, dict[str, int]] = {}
        for length in (_DAY, _MONTH, _YEAR):
            grouped = {}
            for day, counts in self.days:
                sums = grouped.setdefault(day[:length], dict.fromkeys(counts, 0))
                for kind, count in counts.items():
                    sums[kind] += count
            if len(grouped) <= most:
                break
        return tuple(grouped.items())

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the JSON line that `loader --log-format json audit` prints."""
        return {
            "source": self.source,
            "copy": self.copy,
            "loaded_by": self.tool or None,
            "equal": self.is_equal,
            "rows_source": self.rows_source,
            "rows_copy": self.rows_copy,
            "share": self.share,
            **{kind: self.counts.get(kind, 0) for kind in KINDS},
            "lag": self.lag,
            "key": list(self.key),
            "cursor": self.cursor,
            "highest_cursor": self.highest,
            "behind": self.behind,
            "behind_since": self.oldest,
            "days": [{"day": day, **counts} for day, counts in self.days],
            "columns": dict(self.columns),
            "rewritten": dict(self.rewritten),
            "examples": [
                {"kind": e.kind, "key": e.key, "cursor": e.at, "columns": list(e.columns)}
                for e in self.examples
            ],
            "not_compared": dict(self.not_compared),
            "seconds": round(self.seconds, 1),
        }
