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
    """The rows of one sync: ``low <= cursor <= high``, and the rows without a cursor.

    Attributes:
        cursor: the cursor column; None reads the whole table.
        low: inclusive lower bound, lookback applied; None reads from the beginning.
        high: inclusive upper bound, fixed before reading; None where no row has a cursor, and
            where everything is read (:func:`loader.sync.protocol.look`).
        nulls: whether rows without a cursor are read.
        mark: what the connector remembered at the last sync that stored a cursor.
        reach: how far below `low` the connector reads late rows, by its mark.
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
    nulls: bool = True
    mark: Mapping[str, Any] | None = None
    reach: Cursor | None = None
    bounded: bool = False
    whole: bool = False
    initial: Cursor | None = None
    whole_microsecond: bool = False
    held: Callable[[Sequence[str]], DataFrame] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def floor(self) -> Cursor | None:
        """The lowest cursor that the window can deliver; None where it has no lower bound."""
        if self.low is None or self.reach is None:
            return self.low
        return self.low if self.low.order <= self.reach.order else self.reach


@dataclass(frozen=True)
class Bounds:
    """What a source sees between a lower bound and now, in one snapshot.

    Attributes:
        rows: rows at or above the lower bound, and rows without a cursor; None where there are
            some, but only reading them would tell how many.
        nulls: of these, rows without a cursor.
        low, high: lowest and highest cursor among them.
        finer: the highest cursor has digits beyond the microsecond, which `high` lacks.
        clock: the source's own clock, in the cursor's type; None where it has none.
        future: rows whose cursor lies beyond that clock.
        reach: the lowest cursor of late rows that the connector reads besides.
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
