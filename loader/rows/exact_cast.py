"""Casts texts to the types that a spec gives to columns, exactly or not at all."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.spec.options import DECIMAL

_OF_NAMES: dict[str, t.DataType] = {
    "string": t.StringType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "boolean": t.BooleanType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "binary": t.BinaryType(),
}
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_NO_NUMBER = r"^([+-]?(Infinity|inf)|NaN)$"
_DAY = r"\d{4}-\d\d-\d\d"
_DATE = rf"^{_DAY}([ T]00:00:00(\.0*)?)?$"
_WALL = rf"{_DAY}([ T]\d\d:\d\d(:\d\d(\.\d{{0,6}}0*)?)?)?"
_ZONE = r" ?(Z|UTC|[+-]\d\d(:?\d\d)?)?"


def data_type(name: str) -> t.DataType:
    """Returns the type that an entry of `column_types` names."""
    found = DECIMAL.fullmatch(name)
    return t.DecimalType(int(found[1]), int(found[2])) if found else _OF_NAMES[name]


def cast_exactly(text: Column, wanted: t.DataType, name: str) -> Column:
    """Returns a text as a value of a type; fails the read where that would lose some of it.

    A number keeps all its digits, a date has no time of day, and a time without a zone has none.

    Args:
        text: the column.
        wanted: one of the types that `column_types` takes.
        name: the column's name, for the error.
    """
    if isinstance(wanted, t.StringType):
        return text
    bare = f.trim(text)
    made = bare.cast(wanted)
    if isinstance(wanted, (t.IntegralType, t.DecimalType)):
        if isinstance(wanted, t.IntegralType):  # Spark casts no text with an exponent to one
            made = bare.cast(t.DecimalType(38, 0)).cast("string").cast(wanted)
        holds = bare.rlike(_NUMBER) & (_digits(bare) == _digits(made.cast("string")))
    elif isinstance(wanted, (t.FloatType, t.DoubleType)):
        number = bare.rlike(_NUMBER) & (_digits(bare) == _digits(made.cast("string")))
        holds = number | bare.rlike(_NO_NUMBER)
    elif isinstance(wanted, t.DateType):
        holds = bare.rlike(_DATE)
    elif isinstance(wanted, t.TimestampNTZType):
        holds = bare.rlike(f"^{_WALL}$")
    elif isinstance(wanted, t.TimestampType):
        holds = bare.rlike(f"^{_WALL}{_ZONE}$")
    elif isinstance(wanted, t.BinaryType):
        return text.cast(wanted)
    else:
        holds = f.lit(True)
    refusal = f.raise_error(
        f.concat(
            f.lit(f"{name} has the value '"),
            f.substring(text, 1, 80),
            f.lit(
                f"', which {wanted.simpleString()} does not hold as it is: give the column another "
                f"type in column_types ({name}: string holds every value), or correct the row"
            ),
        )
    )
    exact = f.when(holds, made)
    return f.when(text.isNotNull() & exact.isNull(), refusal.cast(wanted)).otherwise(exact)


def text_of(column: Column, kind: t.DataType, name: str) -> Column:
    """Returns a value's text as Spark writes it; fails the read if bytes are not UTF-8.

    Args:
        column: the value.
        kind: its type.
        name: the column's name, for the error.
    """
    if isinstance(kind, (t.StructType, t.ArrayType, t.MapType)):
        return f.when(column.isNotNull(), f.to_json(column))
    if not isinstance(kind, t.BinaryType):
        return column.cast("string")
    text = column.cast("string")
    refusal = f.raise_error(f.lit(f"{name} has bytes that are no UTF-8: leave it binary"))
    same = text.cast("binary") == column
    return f.when(column.isNotNull() & ~same, refusal.cast("string")).otherwise(text)


def _digits(number: Column) -> Column:
    digits = f.regexp_replace(number, r"[eE].*|[-+.]", "")
    return f.regexp_replace(digits, r"^0+|0+$", "")
