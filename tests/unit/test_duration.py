"""Lookbacks: which texts are valid, and how many seconds or steps each stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.duration import Lookback
from loader.formatting import format_count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 minutes", 600),
        ("1 minute", 60),
        ("2 days", 172800),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1 day 2 hours", 93600),
        ("1.5 hours", 5400),
        ("90s", 90),
        ("2 WEEKS", 1209600),
        ("0 minutes", 0),
        (" 5 min ", 300),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    lookback = Lookback.parse(text)
    assert (lookback.seconds, lookback.steps) == (seconds, None)


@pytest.mark.parametrize(("text", "steps"), [("0", 0), ("100", 100), ("9" * 30, int("9" * 30))])
def test_a_bare_whole_number_is_steps(text: str, steps: int) -> None:
    lookback = Lookback.parse(text)
    assert (lookback.seconds, lookback.steps) == (None, steps)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-10 minutes", "negative"),
        ("-5", "negative"),
        ("", "empty"),
        ("soon", "is not a lookback"),
        ("10 fortnights", "is not a unit of time"),
        ("1 month", "is not a unit of time"),
        ("500ms", "is not a unit of time"),
        ("1.5", "is not a lookback"),
        ("0.5 seconds", "whole number of seconds"),
        ("10 minutes ago", "is not a lookback"),
        ("10, minutes", "is not a lookback"),
        ("200 years", "is not a unit of time"),
        ("99999999 days", "century"),
        ("٣ days", "is not a lookback"),
    ],
)
def test_an_invalid_lookback_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Lookback.parse(text)


@given(
    st.integers(0, 30),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["", " "]),
)
def test_parts_add_up(days: int, hours: int, minutes: int, gap: str) -> None:
    lookback = Lookback.parse(f"{days}{gap}days {hours}{gap}h{gap}{minutes}{gap}min")
    assert lookback.seconds == days * 86400 + hours * 3600 + minutes * 60


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        lookback = Lookback.parse(text)
    except ValueError:
        return
    assert (lookback.seconds is None) != (lookback.steps is None)
    assert Lookback.parse(lookback.text) == lookback


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 rows are"), (1, "1 row is"), (2000, "2,000 rows are")]
)
def test_a_count_agrees_with_its_unit(count: int, shown: str) -> None:
    assert format_count(count, "row is", "rows are") == shown
    assert format_count(count, "row") == shown.rpartition(" ")[0]
