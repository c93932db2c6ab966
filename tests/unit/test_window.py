"""Windows and stored cursors leave no gap between two syncs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loader.duration import Lookback
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds, Window, lower_bound, next_cursor

numbers = st.integers(-50, 50)
steps = st.none() | st.integers(0, 20)


def _at(number: int) -> Cursor:
    return Cursor(str(number), CursorType.INTEGER)


def _back(number: int | None) -> Lookback | None:
    return None if number is None else Lookback.parse(str(number))


@given(stored=numbers, initial=st.none() | numbers, back=steps)
def test_a_window_begins_at_or_below_the_stored_cursor(
    stored: int, initial: int | None, back: int | None
) -> None:
    low = lower_bound(_at(stored), None if initial is None else _at(initial), _back(back))
    assert low is not None
    assert low.order <= stored
    if initial is None:
        assert low.order == stored - (back or 0)
    else:
        assert low.order >= min(initial, stored), "a lookback reaches below what is to be loaded"


@given(initial=st.none() | numbers, back=steps)
def test_before_the_first_sync_the_window_begins_where_the_spec_says(
    initial: int | None, back: int | None
) -> None:
    first = None if initial is None else _at(initial)
    assert lower_bound(None, first, _back(back)) == first


@given(stored=st.none() | numbers, high=st.none() | numbers, clock=st.none() | numbers)
def test_a_cursor_goes_back_only_if_its_source_was_rewound(
    stored: int | None, high: int | None, clock: int | None
) -> None:
    before = None if stored is None else _at(stored)
    bounds = Bounds(
        1,
        high=None if high is None else _at(high),
        clock=None if clock is None else _at(clock),
    )
    after = next_cursor(before, bounds)
    if stored is not None:
        assert after is not None
        assert after.order >= stored
    if after is not None and clock is not None and (stored is None or stored <= clock):
        assert after.order <= clock, "a row that is dated in the future blinds later syncs"
    rewound = next_cursor(before, replace(bounds, is_rewound=True))
    if high is not None:
        assert rewound == _at(high if clock is None else min(high, clock))


@given(low=st.none() | numbers, reach=st.none() | numbers)
def test_the_floor_is_the_lower_of_window_and_reach(low: int | None, reach: int | None) -> None:
    window = Window(low=None if low is None else _at(low))
    bounds = Bounds(None, reach=None if reach is None else _at(reach))
    known = [low] if reach is None else [low, reach]
    assert window.floor(bounds) == (
        None if low is None else _at(min(n for n in known if n is not None))
    )


@given(asked=st.none() | numbers, seen=st.none() | numbers, open_ended=st.booleans())
def test_a_read_ends_at_the_requested_or_the_highest_cursor(
    asked: int | None, seen: int | None, open_ended: bool
) -> None:
    high, found = (None if n is None else _at(n) for n in (asked, seen))
    window = Window(high=high, open_ended=open_ended)
    expected = high if asked is not None else None if open_ended else found
    assert window.end(Bounds(None, high=found)) == expected


@given(
    arrivals=st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8),
    clock_lag=st.integers(0, 3),
    back=steps,
)
def test_every_row_is_read_if_cursors_never_go_back(
    arrivals: list[list[int]], clock_lag: int, back: int | None
) -> None:
    """No row has a lower cursor than an earlier one. Many are equal, some are in the future."""
    there: list[tuple[int, int]] = []
    read: set[tuple[int, int]] = set()
    stored, highest = None, 0
    for arriving in [*arrivals, []]:
        for further in arriving:
            highest += further
            there.append((len(there), highest))
        low = lower_bound(stored, None, _back(back))
        seen = [row for row in there if low is None or row[1] >= low.order]
        read |= set(seen)
        bounds = Bounds(
            len(seen),
            high=_at(max(row[1] for row in seen)) if seen else None,
            clock=_at(highest - clock_lag),
        )
        stored = next_cursor(stored, bounds)
    assert read == set(there)
