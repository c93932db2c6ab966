"""Computes how far the times of late rows may be below the stored cursor.

Many applications compute a row's time themselves, before the transaction starts. Their clocks may
be behind the database's, and they may truncate the time to a second, an hour or a day. If the
database does not show which rows are new, the loader finds such rows only if the next window starts
lower. Its start is lowered by the sum of two durations:

- The allowance for clocks that are behind (slack): the table's `lookback`, or else
  :data:`DEFAULT_SLACK`.
- The unit to which the column's values are truncated. A value that is truncated to whole hours may
  be up to an hour too low.

Each sync derives the unit from the lowest and the highest cursor of its window. In a truncated
column, both cursors are truncated. If the cursors only happen to look truncated, the next window is
larger than necessary, but never too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loader.duration import Lookback
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Window

DEFAULT_SLACK = 300
"""How many seconds an application's clock may be behind the database's if there is no `lookback`.

Kerberos tolerates the same clock skew by default.
"""

SECOND, MINUTE, HOUR, DAY = 1, 60, 3600, 86400
UNITS = {MINUTE: "minute", HOUR: "hour", DAY: "day"}
"""The names of units that make the next window noticeably larger, keyed by length in seconds."""

_UNIT = "unit"
"""The checkpoint's entry for the unit to which the cursor column is truncated."""
_FLOOR = "floor"
"""The checkpoint's entry for a cursor that a user set to skip the rows below it."""


def measure_unit(*cursors: Cursor | None) -> int | None:
    """Returns the unit in seconds to which all of these times are truncated.

    Returns 0 if a time has a fraction of a second, and None if there are no times. Times on a
    quarter of an hour count as whole hours, because some time zones differ from UTC by quarters of
    an hour.
    """
    return min((_measure(cursor) for cursor in cursors if cursor is not None), default=None)


def _measure(cursor: Cursor) -> int:
    if cursor.type is CursorType.DATE:
        return DAY
    moment = cursor.order
    if moment.microsecond:
        return 0
    if moment.second:
        return SECOND
    if moment.minute % 15:
        return MINUTE
    return HOUR if moment.hour or moment.minute else DAY


def find_slack(window: Window) -> int:
    """Returns how many seconds to lower a window by if an application computes the times."""
    if window.slack is None or window.cursor is None:
        return 0
    unit = int((window.mark or {}).get(_UNIT, DAY))  # an unknown unit may be the largest one
    if window.cursor.type is CursorType.DATE:
        unit = 0  # the bound is rounded down to a date
    elif window.cursor.type is CursorType.TIMESTAMPTZ and unit == HOUR:
        # A day in another time zone may start at any whole hour in UTC, and may have 25 hours.
        unit = DAY + HOUR
    return window.slack + unit


def limit_reach(reach: Cursor, window: Window) -> Cursor:
    """Returns `reach`, or the lowest cursor that the user wants to load if that is higher."""
    floor = (window.mark or {}).get(_FLOOR)
    limits = [window.initial, Cursor.parse(str(floor), reach.type) if floor else None]
    return max(
        (cursor for cursor in (reach, *limits) if cursor is not None),
        key=lambda cursor: cursor.order,
    )


def lower_window(window: Window) -> Window:
    """Returns the window for a source that shows neither new rows nor open transactions.

    The window starts at the stored cursor minus the slack. If there is no checkpoint, the user set
    the cursor, so the window starts exactly there.
    """
    stored = window.stored_cursor
    if window.slack is None or window.mark is None or stored is None or window.low is None:
        return window
    slack = find_slack(window)
    low = limit_reach(stored.minus(Lookback(slack, None, f"{slack} s")), window)
    return replace(window, low=low) if low.order < window.low.order else window


def describe_times(window: Window, low: Cursor | None, high: Cursor | None) -> dict[str, Any]:
    """Returns the checkpoint entries that the next sync needs to compute the slack."""
    before: Mapping[str, Any] = window.mark or {}
    unit, floor = measure_unit(low, high), before.get(_FLOOR)
    if unit is None:
        unit = before.get(_UNIT)
    if window.mark is None and window.stored_cursor is not None:
        floor = window.stored_cursor.text
    entries = {_UNIT: unit, _FLOOR: floor}
    return {name: value for name, value in entries.items() if value is not None}
