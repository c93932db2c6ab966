"""Which rows one sync reads: pure functions over cursors.

The lower bound is inclusive: a row that shares its cursor with the last one read may have come
since. What it re-reads is dropped later, by comparing contents (:mod:`loader.rows.delta`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader.duration import Lookback
from loader.rows.cursor import Cursor, CursorType, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BY_HAND = "set_by_hand"
"""In a mark: a person has set the cursor since; should the source be another one, it is theirs."""


@dataclass(frozen=True)
class CursorField:
    """The column that a table's cursor lives in, and its type.

    Attributes:
        collated: it is a text, and the source does not order it by its bytes, as Spark does.
    """

    name: str
    type: CursorType
    collated: bool = False


@dataclass(frozen=True)
class Window:
    """What is asked of a source: the rows from `low` on, and those without a cursor.

    :class:`Bounds` is the answer, and :meth:`end` and :meth:`floor` what both make of it.

    Attributes:
        cursor: the cursor column; None reads the whole table.
        low: inclusive lower bound, lookback applied; None reads from the beginning.
        high: inclusive upper bound; None is the highest cursor there is when it is asked.
        open_ended: nor does that bound it: rows that come while others are read are read, too.
        nulls: whether rows without a cursor are read.
        mark: what the connector remembered at the last sync that stored a cursor.
        whole_microsecond: rows within the microsecond that begins at `high` belong to it, too.
        bounded: the user has said, by a lookback, how far below the cursor late rows may lie.
        whole: all rows from the floor on are read, not only the late ones among those below
            `low`. Without a key, rows are compared by their number, so the source has to be asked
            for as many as raw is.
        initial: the lowest cursor that the spec means to load; None is all.
        held: reads columns of the rows that raw holds since its newest complete read. For
            connectors that recognise by them what was never loaded.
    """

    cursor: CursorField | None = None
    low: Cursor | None = None
    high: Cursor | None = None
    open_ended: bool = False
    nulls: bool = True
    mark: Mapping[str, Any] | None = None
    bounded: bool = False
    whole: bool = False
    initial: Cursor | None = None
    whole_microsecond: bool = False
    held: Callable[[Sequence[str]], DataFrame] | None = field(
        default=None, compare=False, repr=False
    )

    def end(self, bounds: Bounds) -> Cursor | None:
        """The highest cursor that a read delivers; None where it reads whatever is there."""
        if self.high is not None or self.open_ended:
            return self.high
        return bounds.high

    def floor(self, bounds: Bounds) -> Cursor | None:
        """The lowest cursor that a read delivers; None where it has no lower bound."""
        if self.low is None or bounds.reach is None:
            return self.low
        return self.low if self.low.order <= bounds.reach.order else bounds.reach


@dataclass(frozen=True)
class Bounds:
    """What a source sees in a window, at one moment: its answer, before the rows are read.

    Attributes:
        rows: rows at or above the lower bound, and rows without a cursor; None where there are
            some, but only reading them would tell how many.
        nulls: of these, rows without a cursor.
        low, high: lowest and highest cursor among them.
        finer: the highest cursor has digits beyond the microsecond, which `high` lacks.
        clock: the source's own clock, in the cursor's type; None where it has none.
        future: rows whose cursor lies beyond that clock.
        reach: how far below the window the connector reads late rows, by its mark.
        mark: what the connector wants to be given back at the next sync, stored with the cursor.
        rewound: the source may give out cursors again: its highest counts, even where it is
            below the stored one.
        settled: the stored mark expects late rows, this one does not: worth storing by itself.
        notes: what a user should know, though the sync goes on.
    """

    rows: int | None
    nulls: int = 0
    low: Cursor | None = None
    high: Cursor | None = None
    clock: Cursor | None = None
    future: int = 0
    reach: Cursor | None = None
    mark: Mapping[str, Any] | None = None
    settled: bool = False
    rewound: bool = False
    finer: bool = False
    notes: tuple[str, ...] = ()


def lower_bound(
    stored: Cursor | None, initial: Cursor | None, lookback: Lookback | None
) -> Cursor | None:
    """Where the next window begins, inclusive: the stored cursor minus the lookback.

    Before the first sync it is the configured initial cursor, to which no lookback applies; a
    lookback never reaches below the initial cursor.
    """
    if stored is None:
        return initial
    low = stored.minus(lookback)
    if initial is not None and initial.type is not CursorType.STRING and low.order < initial.order:
        return initial if initial.order <= stored.order else stored
    return low


def next_cursor(stored: Cursor | None, bounds: Bounds) -> Cursor | None:
    """The cursor to store after the rows of `bounds` are safe.

    It never moves back unless the source has, and never exceeds the source's clock: a row dated
    in the future is loaded, but does not blind later syncs.
    """
    high = bounds.high
    if high is not None and bounds.clock is not None and high.order > bounds.clock.order:
        high = bounds.clock
    return high if bounds.rewound and high is not None else later(stored, high)
