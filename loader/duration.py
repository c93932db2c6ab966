"""Parses durations and lookbacks."""

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
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
DURATION_PATTERN = r"^\s*([0-9]+(\.[0-9]+)?\s*[A-Za-z]+\s*)+$"
"""A regular expression for editors, which matches all strings that :func:`seconds_of` accepts."""
_CENTURY_SECONDS = 36525 * 86400
_EXAMPLES = (
    "write a duration such as '10 minutes', '2 days' or '1h', or a whole number for number cursors"
)


@dataclass(frozen=True)
class Lookback:
    """The distance below the stored cursor at which the next sync starts to read.

    Attributes:
        seconds: the distance in seconds, for time cursors; None if `steps` is set.
        steps: the distance in cursor values, for number cursors; None if `seconds` is set.
        text: the lookback as written in the spec; shown in messages and in the ledger.
    """

    seconds: int | None
    steps: int | None
    text: str

    @classmethod
    def parse(cls, text: str) -> Lookback:
        """Parses '10 minutes', '1h 30m', '2 days' or a whole number.

        Raises:
            ValueError: if the string is not a duration, or if the duration is negative, longer than
                a century or not a whole number of seconds. Months and years are rejected, because
                their lengths vary.
        """
        text = text.strip()
        if text.startswith("-"):
            raise ValueError(f"a lookback cannot be negative: {text!r}")
        if re.fullmatch(r"\d+", text, re.ASCII):
            return cls(None, int(text), text)
        seconds = seconds_of(text, "a lookback", _EXAMPLES)
        if seconds.denominator != 1:
            raise ValueError(f"a lookback must be a whole number of seconds, unlike {text!r}")
        if seconds > _CENTURY_SECONDS:
            raise ValueError(f"{text!r} is more than a century: use sync_mode full_refresh")
        return cls(int(seconds), None, text)

    def __str__(self) -> str:
        return self.text


def seconds_of(text: str, what: str, examples: str) -> Fraction:
    """Parses a duration such as '10 minutes' or '1h 30m'. Returns the number of seconds.

    Args:
        what: the kind of value, such as "a lookback", for errors.
        examples: examples of valid durations, for errors.

    Raises:
        ValueError: if the string is not a duration.
    """
    total, position = Fraction(0), 0
    while position < len(text):
        part = _NUMBER_AND_UNIT.match(text, position)
        if part is None:
            raise ValueError(f"{text!r} is not {what}: {examples}")
        unit = part[2].lower()
        if unit not in _UNITS and unit.endswith("s") and len(unit) > 2:  # excludes "ms"
            unit = unit[:-1]
        if unit not in _UNITS:
            raise ValueError(f"{part[2]!r} is not a unit of time: {examples}")
        total += Fraction(part[1]) * _UNITS[unit]
        position = part.end()
    if position == 0:
        raise ValueError(f"{what} cannot be empty: {examples}")
    return total
