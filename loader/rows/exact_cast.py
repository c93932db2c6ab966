"""Casts strings to the types in a spec's `column_types` without losing digits."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.mask_values import REDACTED
from loader.spec.options import DECIMAL

_TYPES: dict[str, t.DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(t.StringType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType()),
        *(t.FloatType(), t.DoubleType(), t.BooleanType(), t.BinaryType()),
        *(t.DateType(), t.TimestampType(), t.TimestampNTZType()),
    )
}
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_SPECIAL_NUMBER = r"^([+-]?(Infinity|inf)|NaN)$"
_DAY = r"\d{4}-\d\d-\d\d"
_DATE = rf"^{_DAY}([ T]00:00:00(\.0*)?)?$"
_TIMESTAMP = rf"{_DAY}([ T]\d\d:\d\d(:\d\d(\.\d{{0,6}}0*)?)?)?"
_ZONE = r" ?(Z|UTC|[+-]\d\d(:?\d\d)?)?"


def parse_data_type(name: str) -> t.DataType:
    """Parses a type from `column_types`."""
    decimal = DECIMAL.fullmatch(name)
    return t.DecimalType(int(decimal[1]), int(decimal[2])) if decimal else _TYPES[name]


def cast_exactly(text: Column, target: t.DataType, name: str, hides_value: bool = False) -> Column:
    """Casts a string column to a type. The query fails if the cast would change a value.

    For example, it fails if a number has too many digits, if a date has a time of day, or if a
    timestamp without time zone has a time zone.

    Args:
        target: a type that `column_types` supports.
        hides_value: whether the error message omits the value; true if the column is masked.
    """
    if isinstance(target, t.StringType):
        return text
    trimmed = f.trim(text)
    value = trimmed.cast(target)
    if isinstance(target, (t.IntegralType, t.DecimalType)):
        if isinstance(target, t.IntegralType):  # Spark cannot cast exponents to integers
            value = trimmed.cast(t.DecimalType(38, 0)).cast("string").cast(target)
        is_exact = trimmed.rlike(_NUMBER) & (
            extract_digits(trimmed) == extract_digits(value.cast("string"))
        )
    elif isinstance(target, (t.FloatType, t.DoubleType)):
        number = trimmed.rlike(_NUMBER) & (
            extract_digits(trimmed) == extract_digits(value.cast("string"))
        )
        is_exact = number | trimmed.rlike(_SPECIAL_NUMBER)
    elif isinstance(target, t.DateType):
        is_exact = trimmed.rlike(_DATE)
    elif isinstance(target, t.TimestampNTZType):
        is_exact = trimmed.rlike(f"^{_TIMESTAMP}$")
    elif isinstance(target, t.TimestampType):
        is_exact = trimmed.rlike(f"^{_TIMESTAMP}{_ZONE}$")
    elif isinstance(target, t.BinaryType):
        return text.cast(target)
    else:
        is_exact = f.lit(True)
    refusal = f.raise_error(
        f.concat(
            f.lit(f"{name} has the value '"),
            f.lit(REDACTED) if hides_value else f.substring(text, 1, 80),
            f.lit(
                f"', which {target.simpleString()} cannot store exactly: set another type for the "
                f"column in column_types ({name}: string stores every value), or correct the row"
            ),
        )
    )
    exact = f.when(is_exact, value)
    return f.when(text.isNotNull() & exact.isNull(), refusal.cast(target)).otherwise(exact)


def cast_to_text(column: Column, kind: t.DataType, name: str) -> Column:
    """Casts a column to strings. The query fails if bytes are not UTF-8.

    Structs, arrays and maps become JSON. All other values become the strings to which Spark casts
    them.
    """
    if isinstance(kind, (t.StructType, t.ArrayType, t.MapType)):
        return f.when(column.isNotNull(), f.to_json(column))
    if not isinstance(kind, t.BinaryType):
        return column.cast("string")
    text = column.cast("string")
    refusal = f.raise_error(f.lit(f"{name} has bytes that are not UTF-8: load it as binary"))
    is_utf8 = text.cast("binary") == column
    return f.when(column.isNotNull() & ~is_utf8, refusal.cast("string")).otherwise(text)


def extract_digits(number: Column) -> Column:
    """Returns a number's digits without leading and trailing zeros, sign, point and exponent."""
    digits = f.regexp_replace(number, r"[eE].*|[-+.]", "")
    return f.regexp_replace(digits, r"^0+|0+$", "")
