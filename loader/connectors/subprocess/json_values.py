"""Converts JSON values to the types of columns, and rejects values that would lose precision.

Numbers that a float would round are parsed as decimals. The spool (the files that Spark reads)
stores times as microseconds, dates as days, and decimals as strings, because Spark parses these
unambiguously. Different values of a key stay different after the conversion.
"""

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
_SURROGATES = re.compile("[\ud800-\udfff]")  # UTF-8 cannot encode lone surrogates
EPOCH = dt.datetime(1970, 1, 1)
_ZERO_OFFSET = dt.timedelta()
_DAY = 86_400_000_000
_LONGEST_TIME = 100
"""The maximum length of a time. It bounds the cache of parsed times."""
FIRST_DAY = dt.date(1970, 1, 1).toordinal()
_DIGITS = Context(prec=80)
_MAX_EXACT_INTEGER = 1 << 53  # above this limit, floats cannot represent all integers
_INTEGER_TEXT = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NANOSECOND_FRACTION = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # fractions of a microsecond
_NONCANONICAL_NUMBER = re.compile(r"\s|\+|-?0[0-9]|.*\s$", re.DOTALL)


def _parse_number(text: str) -> float | Decimal:
    value = float(text)
    if repr(value) == text:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:  # the exponent has more than 18 digits
        return value
    return value if Decimal(repr(value)) == exact else exact


def _parse_integer(text: str) -> int | Decimal:
    # Python limits the digits of integers that it parses, so longer numbers become decimals.
    return int(text) if len(text) <= _MOST_DIGITS else Decimal(text)


_decoder = json.JSONDecoder(parse_float=_parse_number, parse_int=_parse_integer)
decode: Callable[[str], Any] = _decoder.decode


def encode(
    value: Any, encode_plain: Callable[[Any], str] = _encode_plain, in_order: bool = False
) -> str:
    """Encodes a result of :data:`decode` as JSON.

    Args:
        encode_plain: encodes values that contain no decimals. Raises TypeError for all others.
        in_order: whether to sort the keys of objects. Must be true if `encode_plain` sorts them.
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


class ConversionError(ValueError):
    """A value cannot be converted to the type of its column without loss."""


def make_converter(data_type: t.DataType) -> Callable[[Any], Any]:
    """Returns a function that converts a JSON value, except null, to the format of the spool.

    The function raises :class:`ConversionError` if the type cannot represent the value.
    """
    if isinstance(data_type, t.DecimalType):
        return _make_decimal_converter(data_type.precision, data_type.scale)
    if isinstance(data_type, (t.ByteType, t.ShortType, t.IntegerType, t.LongType)):
        bits = {"byte": 8, "short": 16, "integer": 32, "long": 64}[data_type.typeName()]
        return _make_integer_converter(1 << (bits - 1))
    of_type: dict[type[t.DataType], Callable[[Any], Any]] = {
        t.DoubleType: _to_double,
        t.FloatType: _to_float,
        t.BooleanType: _to_boolean,
        t.DateType: _to_days,
        t.TimestampType: _to_microseconds,
        t.TimestampNTZType: _to_microseconds,
        t.StringType: _to_string,
    }
    return of_type[type(data_type)]


def get_spool_type(data_type: t.DataType) -> t.DataType:
    if isinstance(data_type, t.DateType):
        return t.IntegerType()
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        return t.LongType()
    return t.StringType() if isinstance(data_type, t.DecimalType) else data_type


def cast_from_spool(column: SparkColumn, data_type: t.DataType) -> SparkColumn:
    if isinstance(data_type, t.DateType):
        return f.date_from_unix_date(column)
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        return f.timestamp_micros(column).cast(data_type)
    return column.cast(data_type) if isinstance(data_type, t.DecimalType) else column


def format_value(value: Any, data_type: t.DataType) -> str:
    """Formats a value from the spool as the text of a cursor."""
    if isinstance(data_type, t.DateType):
        return dt.date.fromordinal(value + FIRST_DAY).isoformat()
    if isinstance(data_type, (t.TimestampType, t.TimestampNTZType)):
        moment = EPOCH + dt.timedelta(microseconds=value)
        return moment.isoformat(sep=" ")
    return str(value) if not isinstance(value, float) else repr(value)


def get_sort_key(value: Any, data_type: t.DataType) -> Any:
    """Returns the sort key of a value from the spool; None for NaN and infinity."""
    if isinstance(data_type, t.DecimalType):
        return Decimal(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_text(value: Any) -> str:
    """Returns a string unchanged, and any other value as JSON with sorted keys."""
    if isinstance(value, str):
        return value
    result = encode(value, _canonical, in_order=True)
    if result.isascii():
        return result
    return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", result)


def _to_string(value: Any) -> str:
    result = to_text(value)
    if not result.isascii() and _SURROGATES.search(result):
        raise ConversionError
    return result


def _make_integer_converter(limit: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, str) and _INTEGER_TEXT.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT_INTEGER:
            value = int(value)
        if isinstance(value, Decimal) and value.adjusted() < 20 and _is_whole(value):
            value = int(value)
        if type(value) is not int or not -limit <= value < limit:
            raise ConversionError
        return value

    return convert


def _make_decimal_converter(precision: int, scale: int) -> Callable[[Any], str]:
    largest = Decimal(10) ** (precision - scale)
    step = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise ConversionError
        if isinstance(value, str) and ("_" in value or not value.isascii()):
            raise ConversionError  # Python would accept underscores and digits from other scripts
        try:
            number = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
            if not number.is_finite() or abs(number) >= largest:
                raise ConversionError
            exact = number.quantize(step, context=_DIGITS)
        except (InvalidOperation, Overflow):
            raise ConversionError from None
        if exact != number:
            raise ConversionError
        return format(exact, "f")

    return convert


def _to_double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= _MAX_EXACT_INTEGER:
        return float(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if type(value) is int or isinstance(value, Decimal):
        return _round_to_double(Decimal(value))
    raise ConversionError


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()


def _round_to_double(number: Decimal) -> float:
    """Converts a number to a float. Raises ConversionError if it would round an integer."""
    result = float(number)
    if not math.isfinite(result) or (result == 0 and number != 0):
        raise ConversionError
    if Decimal(result) != number and _is_whole(number):
        raise ConversionError
    return result


def _to_float(value: Any) -> float:
    result = _to_double(value)
    try:
        struct.pack("<f", result)
    except OverflowError:
        raise ConversionError from None
    return result


def _to_boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if value in ("true", "false"):
        return bool(value == "true")
    raise ConversionError


def _to_days(value: Any) -> int:
    days, micros = divmod(_to_microseconds(value), _DAY)
    if micros or has_leap_second(value):
        raise ConversionError
    return days


def _to_microseconds(value: Any) -> int:
    """Returns a time in microseconds, truncated. A time without an offset is treated as UTC."""
    if type(value) is not str or len(value) > _LONGEST_TIME:
        raise ConversionError
    return _parse_microseconds(value)


@lru_cache(maxsize=8192)  # many records have the same time
def _parse_microseconds(text: str) -> int:
    try:
        # The usual format, which all Python versions parse in the same way.
        moment = dt.datetime.fromisoformat(text) if text[10:11] == "T" else _parse_time(text)
    except ValueError:
        moment = _parse_time(text)
    try:
        since = moment.replace(tzinfo=None) - (moment.utcoffset() or _ZERO_OFFSET) - EPOCH
    except OverflowError:
        raise ConversionError from None
    return since.days * _DAY + since.seconds * 1_000_000 + since.microseconds


def has_leap_second(text: str) -> bool:
    """Returns whether a time is a leap second (:60), which is stored as the next second."""
    result = _TIME.fullmatch(text)
    return result is not None and (result[2] or "").endswith(":60")


def _parse_time(text: str) -> dt.datetime:
    result = _TIME.fullmatch(text)
    if result is None:
        raise ConversionError
    day, time, fraction, zone = result.groups()
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
        raise ConversionError from None
    return moment


def make_key_converter(
    data_type: t.DataType, convert: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Returns a converter for key columns.

    It raises ConversionError if the conversion could make different values equal.

    Args:
        convert: the usual converter for the type.
    """

    def convert_distinct(value: Any) -> Any:
        result = convert(value)
        if not _is_lossless(value, result, data_type):
            raise ConversionError
        return result

    return convert_distinct


def _is_lossless(value: Any, result: Any, data_type: t.DataType) -> bool:
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType | t.DateType):
        return not (_NANOSECOND_FRACTION.search(value) or has_leap_second(value))
    if isinstance(data_type, t.StringType | t.BooleanType):
        return True
    if isinstance(value, str) and _NONCANONICAL_NUMBER.match(value):
        return False
    if isinstance(data_type, t.FloatType):
        return bool(struct.unpack("<f", struct.pack("<f", result))[0] == result)
    if isinstance(data_type, t.DoubleType) and not isinstance(value, float):
        number = Decimal(value)
        return Decimal(result) == number or Decimal(repr(result)) == number
    return True
