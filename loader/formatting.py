"""Formats counts and durations for messages."""

from __future__ import annotations

_UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SHOWN_UNITS = 2


def format_count(count: int, one: str, several: str | None = None) -> str:
    """Formats a count and its noun, in the singular or plural.

    >>> format_count(1, "row"), format_count(2000, "row"), format_count(2, "row is", "rows are")
    ('1 row', '2,000 rows', '2 rows are')
    """
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def format_duration(seconds: float) -> str:
    """Formats a duration in its two largest units, in the notation that the spec uses.

    >>> format_duration(246), format_duration(86400), format_duration(0.2)
    ('4 minutes 6 seconds', '1 day', '0 seconds')
    """
    rest, parts = round(seconds), list[str]()
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, length)
        if count and len(parts) < _SHOWN_UNITS:
            parts.append(format_count(count, unit))
    return " ".join(parts) or "0 seconds"
