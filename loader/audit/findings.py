"""The result of an audit: how many rows differ, since when, and in which columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOST = "lost"
"""The source has the row, and the copy does not."""

STALE = "stale"
"""The copy's row has other values than the source's row."""

EXTRA = "extra"
"""The copy has the row, and the source does not: a delete was missed."""

DOUBLED = "doubled"
"""The copy has several rows for a key, but should have one."""

KINDS = (LOST, STALE, EXTRA, DOUBLED)

LAG = "lag"
"""The copy may not have been due to contain the change yet."""


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
        tool: the tool that has loaded the copy; empty if unknown.
        key: the columns by which rows were compared.
        cursor: the column that dates the differences; None if there is none.
        rows_source, rows_copy: the numbers of compared rows.
        share: the share of the keys that was compared, from 0 to 1.
        counts: the number of rows by kind of difference.
        lag: the number of differences that lag explains.
        days: the number of rows by day of the cursor and kind.
        columns: the number of stale rows by column that differs.
        examples: a few rows of each kind.
        not_compared: the columns that were not compared, each with the reason.
        additional: columns of the copy that the source does not have.
        highest: the copy's highest cursor; None if unknown.
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
    examples: tuple[Example, ...] = ()
    not_compared: Mapping[str, str] = field(default_factory=dict)
    additional: tuple[str, ...] = ()
    highest: str | None = None
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """The number of rows that differ and that lag does not explain."""
        return sum(self.counts.values())

    @property
    def is_equal(self) -> bool:
        """Returns whether nothing differs except what lag explains."""
        return not self.differences

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
            "days": [{"day": day, **counts} for day, counts in self.days],
            "columns": dict(self.columns),
            "examples": [
                {"kind": e.kind, "key": e.key, "cursor": e.at, "columns": list(e.columns)}
                for e in self.examples
            ],
            "not_compared": dict(self.not_compared),
            "seconds": round(self.seconds, 1),
        }
