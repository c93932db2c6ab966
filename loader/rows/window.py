"""Computes the window of rows that one sync reads: pure functions over cursors.

The lower bound is inclusive: a row with the same cursor as the last row read may have arrived
since. Redelivered rows are dropped later, by comparing contents (:mod:`loader.rows.redelivery`).
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
"""In a mark: the cursor was set by hand since, so it holds even if the source is another one."""


@dataclass(frozen=True)
class CursorField:
    """A table's cursor column and its type.

    Attributes:
        collated: it is a text that the source does not order by bytes, as Spark does.
    """

    name: str
    type: CursorType
    collated: bool = False


@dataclass(frozen=True)
class Window:
    """A request to a source: the rows from `low` on, and rows without a cursor.

    The source answers with :class:`Bounds`; :meth:`end` and :meth:`floor` combine the two.

    Attributes:
        cursor: the cursor column; None reads the whole table.
        low: inclusive lower bound, lookback applied; None reads from the beginning.
        high: inclusive upper bound; None means the highest cursor at the time of the request.
        open_ended: if `high` is None, there is no upper bound: rows that arrive during the read
            are read, too.
        nulls: whether rows without a cursor are read.
        mark: the connector's state as of the last sync that stored a cursor.
        whole_microsecond: includes all rows within the microsecond that begins at `high`.
        bounded: the user has set a lookback, so late rows lie no further below the cursor.
        whole: reads all rows from the floor on, not only the late ones among those below `low`.
            Without a key, rows are compared by how often they occur, so the source must deliver
            the same range that is read from raw.
        above: of all these rows, only those above this cursor are read.
        initial: the lowest cursor that the spec asks for; None means all.
        known: the cursor of the last sync; None if this one reads everything.
        read_raw: reads columns of the rows that raw holds since its newest complete read, null in
            those that raw lacks. Connectors may compare with them to find rows that were never
            loaded.
    """

    cursor: CursorField | None = None
    low: Cursor | None = None
    high: Cursor | None = None
    open_ended: bool = False
    nulls: bool = True
    mark: Mapping[str, Any] | None = None
    bounded: bool = False
    whole: bool = False
    above: Cursor | None = None
    initial: Cursor | None = None
    known: Cursor | None = None
    whole_microsecond: bool = False
    read_raw: Callable[[Sequence[str]], DataFrame] | None = field(
        default=None, compare=False, repr=False
    )

    def end(self, bounds: Bounds) -> Cursor | None:
        """Returns the highest cursor that a read delivers; None if it has no upper bound."""
        if self.high is not None or self.open_ended:
            return self.high
        return bounds.high

    def floor(self, bounds: Bounds) -> Cursor | None:
        """Returns the lowest cursor that a read delivers; None if it has no lower bound."""
        if self.low is None or bounds.reach is None:
            return self.low
        return self.low if self.low.order <= bounds.reach.order else bounds.reach


@dataclass(frozen=True)
class Logged:
    """The rows of a window if the source follows its log (`sync_mode: cdc`): versions, in order.

    The rows have a last column ``_cq_deleted``. Nothing among them is redelivered, and whatever
    their cursors say, a later row is the newer version.

    Attributes:
        low: the position from which the log is read; None reads the table's rows instead, all of
            them, which overrule what raw has.
        high: the position up to which everything is in raw afterwards.
        kept: how many bytes of log the source keeps for the loader; None if it does not say.
        continued: a further piece of the table's rows is read, not the log: rows that raw lacks.
    """

    low: str | None
    high: str
    kept: int | None = None
    continued: bool = False


@dataclass(frozen=True)
class Bounds:
    """A source's answer about a window, at one moment, before the rows are read.

    Attributes:
        rows: rows at or above the lower bound, and rows without a cursor; None if there are
            some, but only reading them would tell how many.
        nulls: how many of these have no cursor.
        before: how many of these lie at or below the window's `known`; None if that was not
            counted.
        low, high: lowest and highest cursor among them.
        finer: the highest cursor has digits beyond the microsecond, which `high` lacks.
        clock: the source's own clock, in the cursor's type; None if it has none.
        future: rows whose cursor lies beyond that clock.
        reach: the cursor from which the connector reads late rows, by its mark.
        mark: the connector's state for the next sync, stored with the cursor.
        rewound: the source may reuse cursors: store its highest, even if it is below the stored
            one.
        settled: the stored mark expects late rows, this one does not: store it, even if there is
            nothing else to store.
        notes: warnings for the user; the sync goes on.
        log: the part of the source's log that the window covers; None if it does not follow one.
        deletions: how often the source has deleted rows; see :meth:`Snapshot.deletions`.
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
    log: Logged | None = None
    deletions: int = 0
    before: int | None = None


def lower_bound(
    stored: Cursor | None, initial: Cursor | None, lookback: Lookback | None
) -> Cursor | None:
    """Returns the next window's inclusive lower bound: the stored cursor minus the lookback.

    The first sync begins at the configured initial cursor, without a lookback. A lookback never
    reaches below the initial cursor.
    """
    if stored is None:
        return initial
    low = stored.minus(lookback)
    if initial is not None and initial.type is not CursorType.STRING and low.order < initial.order:
        return initial if initial.order <= stored.order else stored
    return low


def next_cursor(stored: Cursor | None, bounds: Bounds) -> Cursor | None:
    """Returns the cursor to store once the rows of `bounds` are safe.

    It never moves back unless the source has, and it never exceeds the source's clock: a row dated
    in the future is loaded, but does not hide later rows from the next syncs.
    """
    high = bounds.high
    if high is not None and bounds.clock is not None and high.order > bounds.clock.order:
        high = bounds.clock
    return high if bounds.rewound and high is not None else later(stored, high)
