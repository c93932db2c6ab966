"""Cursor values round-trip through text and are never rounded above the source's value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.duration import Lookback
from loader.errors import TableError
from loader.rows.cursor import EXACT, Cursor, CursorType, choose_later

moments = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
zones = st.integers(-14 * 60, 14 * 60)
VALUES = {
    CursorType.INTEGER: st.integers().map(str),
    CursorType.DECIMAL: st.decimals(allow_nan=False, allow_infinity=False).map(str),
    CursorType.DOUBLE: st.floats(allow_nan=False, allow_infinity=False).map(repr),
    CursorType.DATE: st.dates().map(str),
    CursorType.TIMESTAMP: moments.map(str),
    CursorType.TIMESTAMPTZ: moments.map(str),
    CursorType.STRING: st.text(),
}
texts = st.sampled_from(list(VALUES)).flatmap(lambda t: st.tuples(VALUES[t], st.just(t)))


@given(texts)
def test_a_stored_cursor_is_read_back_unchanged(given: tuple[str, CursorType]) -> None:
    once = Cursor.parse(*given)
    assert Cursor.parse(once.text, once.type) == once


@given(st.sampled_from(list(VALUES)).flatmap(lambda t: st.tuples(st.just(t), VALUES[t], VALUES[t])))
def test_the_later_of_two_has_the_higher_order(
    given: tuple[CursorType, str, str],
) -> None:
    type_, left, right = given
    a, b = Cursor.parse(left, type_), Cursor.parse(right, type_)
    found = choose_later(a, b)
    assert found == b if type_ is CursorType.STRING else found in (a, b)
    if type_ is not CursorType.STRING:
        assert found is not None
        assert found.order == max(a.order, b.order)
    assert choose_later(a, None) == choose_later(None, a) == a


@given(moments, st.integers(0, 999), zones)
def test_a_time_is_floored_and_converted_to_utc(
    moment: dt.datetime, nanos: int, minutes: int
) -> None:
    """If a cursor were above its row, the next window would begin above rows that were not read."""
    sign = "-" if minutes < 0 else "+"
    zone = f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    text = moment.isoformat(sep=" ", timespec="microseconds")
    cursor = Cursor.parse(f"{text}{nanos:03}{zone}", CursorType.TIMESTAMPTZ)
    assert cursor.order == moment - dt.timedelta(minutes=minutes)
    assert Cursor.is_finer(f"{text}{nanos:03}", CursorType.TIMESTAMPTZ) == (nanos > 0)
    wall = Cursor.parse(f"{text}{nanos:03}", CursorType.TIMESTAMP)
    assert wall.order == moment
    assert wall.next_microsecond is not None
    assert wall.next_microsecond.order > moment


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30))
def test_a_decimal_is_never_rounded(value: Decimal) -> None:
    assert Cursor.parse(str(value), CursorType.DECIMAL).order == value


@given(moments | st.datetimes(max_value=dt.datetime(9, 1, 1)), st.integers(0, 10_000 * 86_400))
def test_a_lookback_ends_at_the_first_date(moment: dt.datetime, seconds: int) -> None:
    back = Lookback.parse(f"{seconds} seconds")
    for type_, value in (
        (CursorType.TIMESTAMP, moment),
        (CursorType.TIMESTAMPTZ, moment),
        (CursorType.DATE, moment.date()),
    ):
        cursor = Cursor.parse(str(value), type_)
        lower = cursor.minus(back)
        assert lower.order <= cursor.order
        first = dt.date.min if type_ is CursorType.DATE else dt.datetime.min
        whole = -(-seconds // 86_400) * 86_400 if type_ is CursorType.DATE else seconds
        room = (cursor.order - first) // dt.timedelta(seconds=1)
        assert lower.order == (first if whole > room else value - dt.timedelta(seconds=whole))


@given(st.integers(0, 10**38 - 1), st.integers(0, 10**6), st.sampled_from((0, 10, 38)))
def test_a_lookback_on_a_long_decimal_is_exact(number: int, steps: int, scale: int) -> None:
    """With Python's default precision of 28 digits, a window could begin above its cursor."""
    cursor = Cursor.parse(str(Decimal(f"{number}E-{scale}")), CursorType.DECIMAL)
    lower = cursor.minus(Lookback.parse(str(steps)))
    assert int(lower.order.scaleb(scale, EXACT)) == number - steps * 10**scale


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (CursorType.INTEGER, "1.0"),
        (CursorType.INTEGER, "١"),
        (CursorType.DECIMAL, "NaN"),
        (CursorType.DECIMAL, "one"),
        (CursorType.DOUBLE, "inf"),
        (CursorType.DATE, "2025-13-01"),
        (CursorType.TIMESTAMP, "now"),
    ],
)
def test_an_invalid_value_is_refused(type_: CursorType, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Cursor.parse(text, type_)


@pytest.mark.parametrize(
    ("type_", "text"),
    [(CursorType.DATE, "20240-01-01"), (CursorType.TIMESTAMP, "20240-01-01 00:00:00")],
)
def test_a_year_outside_pythons_range_is_refused(type_: CursorType, text: str) -> None:
    with pytest.raises(ValueError, match="in the years 1 to 9999"):
        Cursor.parse(text, type_)


@pytest.mark.parametrize(
    ("type_", "text", "back"),
    [
        (CursorType.STRING, "a", "1"),
        (CursorType.INTEGER, "1", "1 day"),
        (CursorType.DATE, "2025-01-01", "1"),
    ],
)
def test_a_lookback_that_does_not_fit_the_type_is_refused(
    type_: CursorType, text: str, back: str
) -> None:
    with pytest.raises(TableError, match="does not fit a cursor of type"):
        Cursor.parse(text, type_).minus(Lookback.parse(back))
