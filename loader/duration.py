"""Parses how far back a window reaches: a time for time cursors, a number of steps for numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_UNITS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hr": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_CENTURY = 36525 * 86400
_FORMS = "write a time such as '10 minutes', '2 days' or '1h', or a whole number for number cursors"


@dataclass(frozen=True)
class Lookback:
    """The distance of the next window's lower bound from the stored cursor.

    Attributes:
        seconds: for time cursors; None if `steps` is set.
        steps: for number cursors; None if `seconds` is set.
        text: as written in the spec, for messages and the ledger.
    """

    seconds: int | None
    steps: int | None
    text: str

    @classmethod
    def parse(cls, text: str) -> Lookback:
        """Reads '10 minutes', '1h 30m', '2 days' or a bare whole number.

        Raises:
            ValueError: if it is negative, not whole seconds, longer than a century or neither
                form; the text says what to write. Months and years are refused because they have
                no fixed length.
        """
        text = text.strip()
        if text.startswith("-"):
            raise ValueError(f"a lookback already reaches back, so it cannot be negative: {text!r}")
        if re.fullmatch(r"\d+", text, re.ASCII):
            return cls(None, int(text), text)
        seconds = seconds_of(text, "a lookback", _FORMS)
        if seconds.denominator != 1:
            raise ValueError(f"a lookback is a whole number of seconds, {text!r} is not")
        if seconds > _CENTURY:
            raise ValueError(f"{text!r} is more than a century: use sync_mode full_refresh")
        return cls(int(seconds), None, text)

    def __str__(self) -> str:
        return self.text


def seconds_of(text: str, what: str, forms: str) -> Fraction:
    """Reads '10 minutes' or '1h 30m'.

    Args:
        what: a description of valid text, for the error.
        forms: how to write it.

    Raises:
        ValueError: explains the mistake, and the valid form.
    """
    total, position = Fraction(0), 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(f"{text!r} is not {what}: {forms}")
        unit = part[2].lower()
        if unit not in _UNITS and unit.endswith("s") and len(unit) > 2:  # "ms" is no plural
            unit = unit[:-1]
        if unit not in _UNITS:
            raise ValueError(f"{part[2]!r} is not a unit of time: {forms}")
        total += Fraction(part[1]) * _UNITS[unit]
        position = part.end()
    if position == 0:
        raise ValueError(f"{what} cannot be empty: {forms}")
    return total
