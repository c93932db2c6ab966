"""Computes the window of rows that a sync reads.

The lower bound is inclusive, because rows that have the stored cursor may have been added after the
last sync. Redelivered rows are dropped later (:mod:`loader.rows.redelivery`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader.duration import Lookback
from loader.rows.cursor import Cursor, CursorType, choose_later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BY_HAND = "set_by_hand"
"""Flags a checkpoint whose cursor a user set. The cursor stays valid if the source is replaced."""


@dataclass(frozen=True)
class CursorField:
    """A table's cursor column and its type.

    Attributes:
        collated: whether the column is a string that the source does not order by bytes. Spark
            always orders strings by bytes.
    """

    name: str
    type: CursorType
    collated: bool = False


@dataclass(frozen=True)
class Window:
    """A request to a source for the rows at or above `low` and the rows without a cursor.

    The source answers with :class:`Bounds`.

    Attributes:
        cursor: the cursor column; None reads the whole table.
        low: the inclusive lower bound, after subtracting the lookback; None reads from the start.
        high: the inclusive upper bound; None means the highest cursor at the time of the request.
        open_ended: whether the window has no upper bound if `high` is None, so that rows that are
            added during the read are included.
        nulls: whether rows without a cursor are read.
        mark: the connector's opaque checkpoint from the last sync.
        whole_microsecond: whether the window includes all rows within the microsecond of `high`.
        has_lookback: whether the user set a lookback, which limits the delay of late rows.
        slack: how many seconds an application's clock may be behind the source's clock
            (:mod:`loader.rows.clock_slack`). None if the cursor is not a time, or if rows that are
            read again would be appended again.
        is_exhaustive: whether all rows at or above the floor are read, including rows below `low`
            that are not late. This is necessary for tables without a key, where the loader compares
            how often each row occurs in the same range of the source and the raw table.
        has_key: whether rows have a key, so that a row that is read again replaces its older
            version.
        above: an exclusive lower bound, in addition to `low`; None if there is none.
        initial: the lowest cursor to load according to the spec; None loads all rows.
        stored_cursor: the cursor in the table's state; None if this sync reads all rows.
        read_raw: reads the given columns of the raw table's rows since the last full read, so that
            connectors can find rows that were never loaded. Columns that the raw table lacks are
            null.
    """

    cursor: CursorField | None = None
    low: Cursor | None = None
    high: Cursor | None = None
    open_ended: bool = False
    nulls: bool = True
    mark: Mapping[str, Any] | None = None
    has_lookback: bool = False
    slack: int | None = None
    is_exhaustive: bool = False
    has_key: bool = True
    above: Cursor | None = None
    initial: Cursor | None = None
    stored_cursor: Cursor | None = None
    whole_microsecond: bool = False
    read_raw: Callable[[Sequence[str]], DataFrame] | None = field(
        default=None, compare=False, repr=False
    )

    def end(self, bounds: Bounds) -> Cursor | None:
        if self.high is not None or self.open_ended:
            return self.high
        return bounds.high

    def floor(self, bounds: Bounds) -> Cursor | None:
        """Returns the lower bound of a read, including late rows, or None if there is none."""
        if self.low is None or bounds.reach is None:
            return self.low
        return self.low if self.low.order <= bounds.reach.order else bounds.reach


@dataclass(frozen=True)
class LogRange:
    """The part of a source's log that a window reads (`sync_mode: cdc`).

    The log contains row versions in order. Their last column is ``_cq_deleted``. No row is
    redelivered, and a later row is the newer version regardless of its cursor.

    Attributes:
        low: the log position at which reading starts; None reads all rows of the table into a new
            generation.
        high: the log position up to which the raw table is complete after the batch.
        retained_bytes: the size of the log that the source retains for the loader; None if unknown.
        is_first_load_chunk: whether a later chunk of the first load is read instead of the log.
    """

    low: str | None
    high: str
    retained_bytes: int | None = None
    is_first_load_chunk: bool = False


@dataclass(frozen=True)
class Bounds:
    """A source's answer to a window, before its rows are read. It describes one snapshot.

    Attributes:
        rows: the number of rows that are at or above the lower bound or have no cursor; None if
            there are rows but they cannot be counted.
        nulls: how many of the rows have no cursor.
        rows_up_to_cursor: how many of the rows are at or below the window's `stored_cursor`; None
            if they were not counted.
        low, high: the lowest and the highest cursor in the rows.
        is_finer: whether the highest cursor has digits beyond the microsecond, which `high` omits.
        clock: the source's clock, as a value of the cursor's type; None if unknown.
        future: the number of rows whose cursor is later than the clock.
        reach: a lower bound for the cursors of late rows; None if there are no late rows.
        mark: the connector's opaque checkpoint, which is stored with the cursor.
        is_rewound: whether the source was rewound and may reuse cursors, so that a lower cursor may
            be stored.
        must_store_mark: whether the checkpoint must be stored even if nothing else has changed, for
            example because late rows are no longer expected.
        notes: warnings for the user, which do not stop the sync.
        log: the part of the source's log to read; None unless `sync_mode` is `cdc`.
        deletions: the number of deletions that the source reports; see :meth:`Snapshot.deletions`.
        complete_until: a time on the source's clock. All rows that were committed by then are in
            this window or already in the raw table. None if unknown.
    """

    rows: int | None
    nulls: int = 0
    low: Cursor | None = None
    high: Cursor | None = None
    clock: Cursor | None = None
    future: int = 0
    reach: Cursor | None = None
    mark: Mapping[str, Any] | None = None
    must_store_mark: bool = False
    is_rewound: bool = False
    is_finer: bool = False
    notes: tuple[str, ...] = ()
    log: LogRange | None = None
    deletions: int = 0
    rows_up_to_cursor: int | None = None
    complete_until: dt.datetime | None = None


def lower_bound(
    stored: Cursor | None, initial: Cursor | None, lookback: Lookback | None
) -> Cursor | None:
    """Returns the inclusive lower bound of the next window: the stored cursor minus the lookback.

    The first sync starts at the initial cursor, below which a lookback never lowers the bound.
    """
    if stored is None:
        return initial
    low = stored.minus(lookback)
    if initial is not None and initial.type is not CursorType.STRING and low.order < initial.order:
        return initial if initial.order <= stored.order else stored
    return low


def next_cursor(stored: Cursor | None, bounds: Bounds) -> Cursor | None:
    """Returns the cursor to store once the rows of `bounds` have been published.

    Unless the source was rewound, the result is not lower than the stored cursor. It is limited to
    the source's clock, because a row dated in the future would make later syncs skip rows.
    """
    high = bounds.high
    if high is not None and bounds.clock is not None and high.order > bounds.clock.order:
        high = bounds.clock
    return high if bounds.is_rewound and high is not None else choose_later(stored, high)
