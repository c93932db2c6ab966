"""A window starts low enough to include late times: slow clocks, truncation, any time zone."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.rows.clock_slack import (
    DEFAULT_SLACK,
    describe_times,
    find_slack,
    limit_reach,
    lower_window,
    measure_unit,
)
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import CursorField, Window
from loader.sources.jdbc.mysql.open_transactions import OpenWork

UNITS = {0: 0, 1: 1, 60: 60, 3600: 3600, 86400: 86400}
EPOCH = dt.datetime(2026, 3, 1)
instants = st.integers(0, 400 * 86400 * 1_000_000).map(
    lambda micros: EPOCH + dt.timedelta(microseconds=micros)
)
# time zone offsets in multiples of 15 minutes
zones = st.integers(-48, 56).map(lambda quarters: dt.timedelta(minutes=15 * quarters))


def _truncate(moment: dt.datetime, unit: int) -> dt.datetime:
    if not unit:
        return moment
    seconds = (moment - dt.datetime.min) // dt.timedelta(seconds=unit) * unit
    return dt.datetime.min + dt.timedelta(seconds=seconds)


def _cursor(moment: dt.datetime, type_: CursorType) -> Cursor:
    return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), type_)


def _window(type_: CursorType, stored: Cursor | None = None, **more: object) -> Window:
    field = CursorField("at", type_)
    window = Window(field, stored, stored_cursor=stored, slack=DEFAULT_SLACK, mark={})
    return Window(**{**vars(window), **more})


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("2026-03-01 12:34:56.000001", 0),
        ("2026-03-01 12:34:56", 1),
        ("2026-03-01 12:34:00", 60),
        ("2026-03-01 12:30:00", 3600),  # a whole hour at UTC+5:30
        ("2026-03-01 12:00:00", 3600),
        ("2026-03-01 00:00:00", 86400),
    ],
)
def test_a_unit_is_derived_from_trailing_zeros(text: str, unit: int) -> None:
    assert measure_unit(Cursor.parse(text, CursorType.TIMESTAMP)) == unit
    day = Cursor.parse("2026-03-01", CursorType.TIMESTAMP)
    assert measure_unit(None, day, Cursor.parse(text, CursorType.TIMESTAMP)) == unit


def test_without_a_time_the_last_unit_is_kept() -> None:
    assert measure_unit(None, None) is None
    assert describe_times(_window(CursorType.TIMESTAMP, mark={"unit": 60}), None, None) == {
        "unit": 60
    }
    assert find_slack(_window(CursorType.TIMESTAMP, mark={})) == DEFAULT_SLACK + 86400


@given(
    committed=instants,
    behind=st.integers(0, DEFAULT_SLACK * 1_000_000),
    others=st.lists(instants, max_size=3),
    unit=st.sampled_from(sorted(UNITS)),
    zone=zones,
    type_=st.sampled_from([CursorType.TIMESTAMPTZ, CursorType.TIMESTAMP, CursorType.DATE]),
)
def test_a_late_and_truncated_time_is_in_the_window(
    committed: dt.datetime,
    behind: int,
    others: list[dt.datetime],
    unit: int,
    zone: dt.timedelta,
    type_: CursorType,
) -> None:
    """Simulates an application in any time zone that writes a row right after the last sync."""

    def write(moment: dt.datetime) -> Cursor:
        local = _truncate(moment + zone, unit)
        return _cursor(local - zone if type_ is CursorType.TIMESTAMPTZ else local, type_)

    last = [write(min(moment, committed)) for moment in [*others, committed]]
    newest = max(last, key=lambda cursor: cursor.order)
    mark = describe_times(_window(type_), min(last, key=lambda cursor: cursor.order), newest)
    window = _window(type_, newest, mark=mark)
    late = write(committed - dt.timedelta(microseconds=behind))
    work = OpenWork(clock=committed, base=committed, until=committed)
    slack = dt.timedelta(seconds=find_slack(window))
    # the database's time zone differs from the application's
    assert work.reach(newest, 3600, slack).order <= late.order
    lowered = lower_window(window).low
    assert lowered is not None
    assert lowered.order <= late.order
    # once the mark is that much later than the newest row, the row is not read again
    later = committed + slack + dt.timedelta(days=2)
    idle = OpenWork(clock=later, base=later, until=committed)
    offset = round(zone.total_seconds()) if type_ is not CursorType.TIMESTAMPTZ else 0
    if newest == write(committed):
        assert idle.reach(newest, offset, slack).order >= newest.order
        assert idle.reach(newest, offset, slack).order <= write(later).order


def test_rows_that_a_user_excluded_stay_excluded() -> None:
    low, stored, initial = (
        Cursor.parse(f"2026-03-01 {time}", CursorType.TIMESTAMP)
        for time in ("11:00", "12:00", "11:59")
    )
    window = _window(CursorType.TIMESTAMP, stored, mark={"unit": 3600})
    assert lower_window(window).low == Cursor.parse("2026-03-01 10:55", CursorType.TIMESTAMP)
    from_initial = _window(CursorType.TIMESTAMP, stored, mark={"unit": 3600}, initial=initial)
    assert lower_window(from_initial).low == initial
    assert limit_reach(low, from_initial) == initial
    # `loader state set` to a later cursor removes the mark
    by_hand = _window(CursorType.TIMESTAMP, stored, mark=None)
    assert lower_window(by_hand).low == stored
    mark = describe_times(by_hand, stored, stored)
    assert mark == {"unit": 3600, "floor": "2026-03-01 12:00:00"}
    later = Cursor.parse("2026-03-01 12:01", CursorType.TIMESTAMP)
    after = _window(CursorType.TIMESTAMP, later, mark=mark)
    assert lower_window(after).low == stored
    assert describe_times(after, later, later)["floor"] == "2026-03-01 12:00:00"


def test_without_a_slack_no_window_is_lowered() -> None:
    stored = Cursor.parse("2026-03-01 12:00", CursorType.TIMESTAMP)
    window = _window(CursorType.TIMESTAMP, stored, slack=None)
    assert lower_window(window) is window
    assert find_slack(window) == 0
