"""Converts JSON values to a column's type, exactly or not at all.

Numbers that a float would round are read as decimals. The spool holds values in forms that Spark
reads without guessing: times as microseconds, dates as days, decimals as text. Values of a key must
also stay different from each other."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation, Overflow
from functools import lru_cache
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f
from pyspark.sql import types as t

_MOST_DIGITS = 4000

_encode_plain = json.JSONEncoder().encode
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?)?"
    r"\s*(Z|z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
_canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_SURROGATES = re.compile("[\ud800-\udfff]")  # no text that can be stored has them
_EPOCH = dt.datetime(1970, 1, 1)
_NONE = dt.timedelta()
_DAY = 86_400_000_000
_LONGEST_TIME = 100
"""The most characters of a time, with all its digits; those that were read are remembered."""
_FIRST_DAY = dt.date(1970, 1, 1).toordinal()
_DIGITS = Context(prec=80)
_EXACT = 1 << 53  # above it, a float skips integers
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # than a microsecond
_PADDED = re.compile(r"\s|\+|-?0[0-9]|.*\s$", re.DOTALL)


def _parse_number(text: str) -> float | Decimal:
    value = float(text)
    if repr(value) == text:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return value
    return value if Decimal(repr(value)) == exact else exact


def _parse_integer(text: str) -> int | Decimal:
    # Python refuses to make an int of more digits, as that takes quadratic time.
    return int(text) if len(text) <= _MOST_DIGITS else Decimal(text)


_decoder = json.JSONDecoder(parse_float=_parse_number, parse_int=_parse_integer)
decode: Callable[[str], Any] = _decoder.decode
"""Parses JSON."""


def encode(
    value: Any, encode_plain: Callable[[Any], str] = _encode_plain, in_order: bool = False
) -> str:
    """Encodes a result of :data:`decode` as JSON.

    Args:
        encode_plain: encodes values without decimals; raises TypeError for a decimal.
        in_order: whether that sorts an object's keys.
    """
    try:
        return encode_plain(value)
    except TypeError:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, list):
            return "[" + ",".join(encode(each, encode_plain, in_order) for each in value) + "]"
        if not isinstance(value, dict):
            raise
    items = sorted(value.items()) if in_order else value.items()
    inner = (f"{encode_plain(name)}:{encode(v, encode_plain, in_order)}" for name, v in items)
    return "{" + ",".join(inner) + "}"


class Misfit(ValueError):
    """A value that its column cannot hold as it is."""


def make_converter(data_type: t.DataType) -> Callable[[Any], Any]:
    """Returns a function that turns a JSON value, not null, into the spool's form.

    The function raises :class:`Misfit` if the value is not one of the column's type.
    """
    if isinstance(data_type, t.DecimalType):
        return _decimal(data_type.precision, data_type.scale)
    if isinstance(data_type, (t.ByteType, t.ShortType, t.IntegerType, t.LongType)):
        bits = {"byte": 8, "short": 16, "integer": 32, "long": 64}[data_type.typeName()]
        return _integer(1 << (bits - 1))
    of_type: dict[type[t.DataType], Callable[[Any], Any]] = {
        t.DoubleType: _double,
        t.FloatType: _float,
        t.BooleanType: _boolean,
        t.DateType: _date,
        t.TimestampType: _instant,
        t.TimestampNTZType: _instant,
        t.StringType: _text,
    }
    return of_type[type(data_type)]


def spool_type(data_type: t.DataType) -> t.DataType:
    """Returns the type in which Spark reads a column from the spool."""
    if isinstance(data_type, t.DateType):
        return t.IntegerType()
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        return t.LongType()
    return t.StringType() if isinstance(data_type, t.DecimalType) else data_type


def read_as(column: SparkColumn, data_type: t.DataType) -> SparkColumn:
    """Returns a column of the spool in its own type."""
    if isinstance(data_type, t.DateType):
        return f.date_from_unix_date(column)
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        return f.timestamp_micros(column).cast(data_type)
    return column.cast(data_type) if isinstance(data_type, t.DecimalType) else column


def format_value(value: Any, data_type: t.DataType) -> str:
    """Returns the text of a value that the spool holds, as a cursor is written."""
    if isinstance(data_type, t.DateType):
        return dt.date.fromordinal(value + _FIRST_DAY).isoformat()
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        moment = _EPOCH + dt.timedelta(microseconds=value)
        return moment.isoformat(sep=" ")
    return str(value) if not isinstance(value, float) else repr(value)


def get_sort_key(value: Any, data_type: t.DataType) -> Any:
    """Returns the sort key of a value in the spool; None if it has no order (NaN)."""
    if isinstance(data_type, t.DecimalType):
        return Decimal(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_text(value: Any) -> str:
    """Returns a text as it is, and any other value as JSON that is equal for equal values."""
    if isinstance(value, str):
        return value
    found = encode(value, _canonical, in_order=True)
    if found.isascii():
        return found
    return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", found)


def _text(value: Any) -> str:
    found = to_text(value)
    if not found.isascii() and _SURROGATES.search(found):
        raise Misfit
    return found


def _integer(limit: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
            value = int(value)
        if isinstance(value, Decimal) and value.adjusted() < 20 and _is_whole(value):
            value = int(value)
        if type(value) is not int or not -limit <= value < limit:
            raise Misfit
        return value

    return convert


def _decimal(precision: int, scale: int) -> Callable[[Any], str]:
    largest = Decimal(10) ** (precision - scale)
    step = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise Misfit
        if isinstance(value, str) and ("_" in value or not value.isascii()):
            raise Misfit  # Python takes these digits for a number
        try:
            number = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
            if not number.is_finite() or abs(number) >= largest:
                raise Misfit
            exact = number.quantize(step, context=_DIGITS)
        except (InvalidOperation, Overflow):
            raise Misfit from None
        if exact != number:
            raise Misfit
        return format(exact, "f")

    return convert


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= _EXACT:
        return float(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if type(value) is int or isinstance(value, Decimal):
        return _nearest(Decimal(value))
    raise Misfit


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()


def _nearest(number: Decimal) -> float:
    """Returns a number as a float, which rounds fractions only."""
    found = float(number)
    if not math.isfinite(found) or (found == 0 and number != 0):
        raise Misfit
    if Decimal(found) != number and _is_whole(number):
        raise Misfit
    return found


def _float(value: Any) -> float:
    found = _double(value)
    try:
        struct.pack("<f", found)
    except OverflowError:
        raise Misfit from None
    return found


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if value in ("true", "false"):
        return bool(value == "true")
    raise Misfit


def _date(value: Any) -> int:
    days, micros = divmod(_instant(value), _DAY)
    if micros or has_leap_second(value):
        raise Misfit
    return days


def _instant(value: Any) -> int:
    """Returns a time as microseconds; finer digits are cut off. Without an offset it is UTC."""
    if type(value) is not str or len(value) > _LONGEST_TIME:
        raise Misfit
    return _micros(value)


@lru_cache(maxsize=8192)  # many records share their times
def _micros(text: str) -> int:
    try:
        # The usual form, which every Python parses in the same way.
        moment = dt.datetime.fromisoformat(text) if text[10:11] == "T" else _parse_time(text)
    except ValueError:
        moment = _parse_time(text)
    try:
        since = moment.replace(tzinfo=None) - (moment.utcoffset() or _NONE) - _EPOCH
    except OverflowError:
        raise Misfit from None
    return since.days * _DAY + since.seconds * 1_000_000 + since.microseconds


def has_leap_second(text: str) -> bool:
    """Returns whether a time is one that is stored as the second after it."""
    found = _TIME.fullmatch(text)
    return found is not None and (found[2] or "").endswith(":60")


def _parse_time(text: str) -> dt.datetime:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Misfit
    day, time, fraction, zone = found.groups()
    if time is None:
        time = "00:00:00"
    elif len(time) == 5:
        time += ":00"
    leap = time.endswith(":60")
    try:
        moment = dt.datetime.fromisoformat(f"{day}T{time[:-2]}59" if leap else f"{day}T{time}")
        moment += dt.timedelta(seconds=leap, microseconds=int((fraction or "0")[:6].ljust(6, "0")))
        if zone and zone[0] in "+-":
            digits = zone[1:].replace(":", "").ljust(4, "0")
            offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
            moment = moment.replace(tzinfo=dt.timezone(offset if zone[0] == "+" else -offset))
    except (ValueError, OverflowError):
        raise Misfit from None
    return moment


def make_key_converter(
    data_type: t.DataType, convert: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Returns a converter that raises :class:`Misfit` for a value that would not come back.

    Args:
        convert: of the same type.
    """

    def convert_distinct(value: Any) -> Any:
        found = convert(value)
        if not _comes_back(value, found, data_type):
            raise Misfit
        return found

    return convert_distinct


def _comes_back(value: Any, found: Any, data_type: t.DataType) -> bool:
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType | t.DateType):
        return not (_FINER.search(value) or has_leap_second(value))
    if isinstance(data_type, t.StringType | t.BooleanType):
        return True
    if isinstance(value, str) and _PADDED.match(value):
        return False
    if isinstance(data_type, t.FloatType):
        return bool(struct.unpack("<f", struct.pack("<f", found))[0] == found)
    if isinstance(data_type, t.DoubleType) and not isinstance(value, float):
        number = Decimal(value)
        return Decimal(found) == number or Decimal(repr(found)) == number
    return True
