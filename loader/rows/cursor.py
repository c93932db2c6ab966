"""Cursor values, which are exact strings with a type and an order.

A cursor is passed as a string from the database to the state and back, so it is never rounded. Only
digits beyond the microsecond are truncated, so the next window starts at or before the row's actual
cursor.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from enum import Enum
from typing import TYPE_CHECKING, Any

from loader.errors import StateError, TableError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from loader.duration import Lookback


EXACT = Context(prec=200)
"""The context for decimal arithmetic. Python's default context would round to 28 digits."""


class CursorType(str, Enum):
    """Determines how cursor values are parsed, compared and put into SQL."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"  # without a time zone
    TIMESTAMPTZ = "timestamptz"  # with a time zone; the text is in UTC
    STRING = "string"

    @property
    def is_time(self) -> bool:
        """Whether values of this type can be compared with the database's clock."""
        return self in (CursorType.DATE, CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ)

    @property
    def is_number(self) -> bool:
        """Whether a lookback for this type is a number."""
        return self in (CursorType.INTEGER, CursorType.DECIMAL, CursorType.DOUBLE)

    @classmethod
    def of(cls, data_type: DataType) -> CursorType | None:
        """Returns the cursor type for a Spark type, or None if the type is unsuitable."""
        return _SPARK_TYPES.get(data_type.typeName())


_SPARK_TYPES = {
    "byte": CursorType.INTEGER,
    "short": CursorType.INTEGER,
    "integer": CursorType.INTEGER,
    "long": CursorType.INTEGER,
    "decimal": CursorType.DECIMAL,
    "float": CursorType.DOUBLE,
    "double": CursorType.DOUBLE,
    "date": CursorType.DATE,
    "timestamp": CursorType.TIMESTAMPTZ,
    "timestamp_ntz": CursorType.TIMESTAMP,
    "string": CursorType.STRING,
    "varchar": CursorType.STRING,
    "char": CursorType.STRING,
}

_MOST_DIGITS = 1000
"""The maximum number of digits. A string as short as 1e1000000000 would have a billion."""

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d|[+-]\d\d)?"
)


@dataclass(frozen=True)
class Cursor:
    """A cursor value with its exact text and type.

    Created by :meth:`parse`, which normalizes timestamps to ``2025-01-01 00:00:00``, or to
    ``2025-01-01 00:00:00.123456`` if there is a fraction.
    """

    text: str
    type: CursorType

    @classmethod
    def parse(cls, text: str, type_: CursorType) -> Cursor:
        """Parses a cursor from a database, a spec or the state.

        Truncates digits beyond the microsecond, and converts times that have an offset to UTC.

        Raises:
            ValueError: if the text is not a value of the type.
        """
        text = text if type_ is CursorType.STRING else text.strip()
        if type_ is CursorType.INTEGER:
            if not re.fullmatch(r"[+-]?[0-9]+", text):
                raise ValueError(f"{text!r} is not an integer")
            return cls(str(int(text)), type_)
        if type_ is CursorType.DECIMAL:
            try:
                number = Decimal(text)
            except InvalidOperation:
                raise ValueError(f"{text!r} is not a number") from None
            exponent = number.as_tuple().exponent
            if not isinstance(exponent, int):
                raise ValueError(f"{text!r} is not a finite number")
            if max(abs(exponent), abs(number.adjusted())) > _MOST_DIGITS:
                raise ValueError(f"{text[:80]!r} has more than {_MOST_DIGITS:,} digits")
            return cls(format(number, "f"), type_)
        if type_ is CursorType.DOUBLE:
            if not math.isfinite(float(text)):
                # If NaN or infinity were stored, all later rows would be skipped.
                raise ValueError(f"{text!r} is not a finite number")
            return cls(repr(float(text)), type_)
        if type_ is CursorType.DATE:
            if not re.fullmatch(r"\d{4}-\d\d-\d\d([ T].*)?", text):
                raise ValueError(f"{text!r} is not a date in the years 1 to 9999")
            return cls(dt.date.fromisoformat(text[:10]).isoformat(), type_)
        if type_ in (CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ):
            return cls(_normalize_timestamp(text, type_), type_)
        return cls(text, type_)

    @staticmethod
    def is_finer(text: str | None, type_: CursorType) -> bool:
        """Returns whether :meth:`parse` truncates a digit other than 0."""
        times = (CursorType.TIMESTAMP, CursorType.TIMESTAMPTZ)
        return type_ in times and re.search(r"\.\d{6}\d*[1-9]", text or "") is not None

    @property
    def next_microsecond(self) -> Cursor | None:
        """The time one microsecond later, or None after the year 9999."""
        try:
            return Cursor(_format_datetime(self.order + dt.timedelta(microseconds=1)), self.type)
        except OverflowError:
            return None

    @property
    def order(self) -> Any:
        """A value that sorts as in the source, except for strings, which may have a collation."""
        if self.type is CursorType.INTEGER:
            return int(self.text)
        if self.type is CursorType.DECIMAL:
            return Decimal(self.text)
        if self.type is CursorType.DOUBLE:
            return float(self.text)
        if self.type is CursorType.DATE:
            return dt.date.fromisoformat(self.text)
        if self.type.is_time:
            return dt.datetime.fromisoformat(self.text)
        return self.text

    def minus(self, lookback: Lookback | None) -> Cursor:
        """Subtracts a lookback, which is rounded up to whole days for a date.

        Raises:
            TableError: if the lookback does not fit the cursor's type.
        """
        if lookback is None:
            return self
        if self.type.is_time and lookback.seconds is not None:
            span = dt.timedelta(seconds=lookback.seconds)
            if self.type is CursorType.DATE:
                span = dt.timedelta(days=-(-span // dt.timedelta(days=1)))
            # The result must not be before the year 1. Dates in that year are common default
            # values.
            first = dt.date.min if self.type is CursorType.DATE else dt.datetime.min
            lower = self.order - min(span, self.order - first)
            text = lower.isoformat() if self.type is CursorType.DATE else _format_datetime(lower)
            return Cursor(text, self.type)
        if self.type is CursorType.DECIMAL and lookback.steps is not None:
            return Cursor.parse(str(EXACT.subtract(self.order, lookback.steps)), self.type)
        if self.type.is_number and lookback.steps is not None:
            return Cursor.parse(str(self.order - lookback.steps), self.type)
        raise TableError(
            f"the lookback {lookback.text!r} does not fit a cursor of type {self.type.value}",
            where="lookback",
            remedy="Use a duration such as '10 minutes' for dates and timestamps, "
            "an integer for numbers, no lookback for strings",
        )


def read_clock(type_: CursorType) -> Cursor | None:
    """Returns the machine's current time in UTC as a cursor; None if the type is not a time."""
    if not type_.is_time:
        return None
    now = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)


def choose_later(left: Cursor | None, right: Cursor | None) -> Cursor | None:
    """Returns the later of two cursors of the same type. None is earlier than any cursor.

    For strings, which only the source can order, returns `right`.
    """
    if left is None or right is None:
        return right or left
    if right.type is CursorType.STRING:
        return right
    return right if right.order >= left.order else left


def parse_stored(text: str, type_: str, where: str) -> Cursor:
    """Parses a stored cursor.

    Raises:
        StateError: if the text is not a value of the type.
    """
    try:
        return Cursor.parse(text, CursorType(type_))
    except ValueError as problem:
        raise StateError(
            f"the stored cursor cannot be read: {problem}",
            where=where,
            remedy="`loader state show` shows it; correct it with `loader state set`",
        ) from None


def _normalize_timestamp(text: str, type_: CursorType) -> str:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        text += " 00:00:00"
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp in the years 1 to 9999")
    day, time, fraction, zone = match.groups()
    if len(time) == 5:
        time += ":00"
    micros = (fraction or "")[:6].ljust(6, "0")
    moment = dt.datetime.fromisoformat(f"{day} {time}.{micros}")
    if zone and type_ is CursorType.TIMESTAMPTZ and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        try:
            moment -= sign * offset
        except OverflowError:
            raise ValueError(f"{text!r} is not a timestamp in the years 1 to 9999") from None
    return _format_datetime(moment)


def _format_datetime(moment: dt.datetime) -> str:
    return moment.isoformat(sep=" ", timespec="microseconds" if moment.microsecond else "seconds")
