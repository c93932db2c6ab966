"""Converts Debezium's values to Spark columns with the JDBC reader's types and values.

Debezium's settings for this are in :data:`SETTINGS`: values without an exact form in JSON come as
text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.cdc.debezium.spool import Placeholder
from loader.cdc.table_definition import FILLED, FLOATS, INTEGERS, LoggedColumn
from loader.sources.jdbc.interface import EVER, FOREVER

SETTINGS = {
    "binary.handling.mode": "bytes",
    "decimal.handling.mode": "string",
    "time.precision.mode": "microseconds",
    "interval.handling.mode": "string",
}

_ENDS_OF_TIME = {"infinity": FOREVER, "-infinity": EVER}
# What Debezium makes of infinite dates (days; it overflows) and timestamps (microseconds).
_DAYS = {-2147472692: FOREVER[:10], -2147472691: EVER[:10]}
_MICROSECONDS = {9223372036825200000: FOREVER, -9223372036832400000: EVER}
_EARLIEST = -210_866_803_200_000_000
"""PostgreSQL's earliest timestamp, 24 November 4714 BC, in microseconds."""
_OBJECT = r"^\[+(L[\w.$]+;|[BCDFIJSZ])@[0-9a-f]{1,8}$"
"""Java's text for an array: Debezium writes it for an array within an array of texts."""
_SECOND = 1_000_000
_NUMBERS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


def build_json_schema(columns: Sequence[LoggedColumn]) -> t.StructType:
    """Returns the schema of a change: `before`, `after` (the columns, in order) and `op`."""
    row = t.StructType(
        [t.StructField(column.name, _choose_json_type(column)) for column in columns]
    )
    return t.StructType(
        [
            t.StructField("before", row),
            t.StructField("after", row),
            t.StructField("op", t.StringType()),
        ]
    )


def convert_value(
    row: Column, column: LoggedColumn, data_type: t.DataType, doubted: bool = False
) -> Column:
    """Returns a column's value; an error for an array of arrays.

    Args:
        row: a change's `before` or `after`.
        data_type: the type that the JDBC reader has for it.
        doubted: whether Debezium has replaced elements of some array in this column by null.
    """
    raw = row.getField(column.name)
    if not column.array:
        return _convert_scalar(raw, column, data_type)
    assert isinstance(data_type, t.ArrayType)
    of = data_type.elementType
    nested = f.lit(False)
    if _choose_json_type(column) == t.ArrayType(t.StringType()):
        nested = f.exists(raw, lambda element: element.rlike(_OBJECT))
    if doubted:
        nested = nested | ((f.size(raw) > 0) & f.forall(raw, lambda element: element.isNull()))
    refusal = f.raise_error(
        f.lit(
            f"{column.name} holds an array of arrays, whose values the log does not have: read the "
            "table by a cursor (sync_mode: incremental), or correct the row, then read the table "
            "again (--full-refresh)"
        )
    )
    made = f.transform(raw, lambda element: _convert_scalar(element, column, of))
    return f.when(nested, refusal.cast(data_type)).otherwise(made)


def convert_to_text(row: Column, column: LoggedColumn) -> Column:
    """Returns the text of a column's value, as PostgreSQL writes it.

    Args:
        row: a change's `before` or `after`.
    """
    raw = row.getField(column.name)
    if column.kind == "bytea":
        return f.concat(f.lit(r"\x"), f.lower(f.hex(f.unbase64(raw))))
    if column.kind in ("date", "timestamp", "timestamptz"):
        return _convert_time_to_text(raw, column)
    make = _MAKERS.get(column.kind)
    return (make(raw) if make else raw).cast("string")


def _convert_time_to_text(raw: Column, column: LoggedColumn) -> Column:
    infinite: dict[str, Mapping[Any, str]] = {
        "date": dict(zip(_DAYS, _ENDS_OF_TIME, strict=True)),
        "timestamp": dict(zip(_MICROSECONDS, _ENDS_OF_TIME, strict=True)),
        "timestamptz": {sign: sign for sign in _ENDS_OF_TIME},
    }
    value = _convert_scalar(raw, column, _TIME_TYPES[column.kind])
    is_date = column.kind == "date"
    pattern = "yyyy-MM-dd G" if is_date else "yyyy-MM-dd HH:mm:ss.SSSSSS G"
    written = f.date_format(value, pattern)
    zone = "+00" if column.kind == "timestamptz" else ""
    made = f.concat(
        f.regexp_replace(written, rf"^\+|{'' if is_date else '[.]?0*'} (AD|BC)$", ""),
        f.lit(zone),
        f.when(written.endswith("BC"), " BC").otherwise(""),
    )
    for sign, meant in infinite[column.kind].items():
        made = f.when(raw == sign, f.lit(meant)).otherwise(made)
    return made


def is_left_out(row: Column, column: LoggedColumn, placeholder: str) -> Column:
    """Returns whether the log leaves out a value that an update did not change; never null.

    Debezium writes the placeholder in a form of each type (:class:`Placeholder`).
    """
    if not column.toastable or (column.array and column.kind not in FILLED):
        return f.lit(False)
    raw, forms = row.getField(column.name), Placeholder(placeholder)
    if not column.array:
        form = forms.binary if column.kind == "bytea" else forms.text
        return f.coalesce(raw == form, f.lit(False))
    if column.kind in INTEGERS or column.kind == "date":
        return f.coalesce(raw == f.array(*map(f.lit, forms.codes)), f.lit(False))
    form = {"uuid": forms.uuid, "bytea": forms.binary}.get(column.kind, forms.text)
    return f.coalesce(raw == f.array(f.lit(form)), f.lit(False))


def _choose_json_type(column: LoggedColumn) -> t.DataType:
    scalar: t.DataType = t.StringType()
    if column.kind in INTEGERS or column.kind in ("date", "timestamp", "time"):
        scalar = t.LongType()
    elif column.kind in FLOATS:
        scalar = t.DoubleType()
    elif column.kind == "bool":
        scalar = t.BooleanType()
    return t.ArrayType(scalar) if column.array else scalar


def _convert_scalar(raw: Column, column: LoggedColumn, data_type: t.DataType) -> Column:
    make = _MAKERS.get(column.kind)
    made = make(raw) if make else raw
    if column.kind == "numeric" and isinstance(data_type, t.DecimalType):
        made = _convert_decimal(raw, column.name, data_type)
    if column.kind in ("timestamp", "timestamptz"):
        made = _refuse_late_times(raw, made, column)
    return made.cast(data_type)


def _convert_decimal(raw: Column, name: str, data_type: t.DecimalType) -> Column:
    """Returns a decimal; an error if it would be rounded (NaN and infinity have no decimal)."""
    whole = raw.cast(data_type)
    digits = f.length(f.regexp_replace(f.substring_index(raw, ".", -1), "0+$", ""))
    rounded = raw.contains(".") & (digits > data_type.scale)
    refusal = f.raise_error(
        f.concat(
            f.lit(f"{name} has the value "),
            raw,
            f.lit(
                f", which does not fit {data_type.simpleString()}: correct the row or set the "
                f"column's type in the source's column_types ({name}: string), then read the table "
                "again (--full-refresh)"
            ),
        )
    )
    return f.when(raw.isNotNull() & (whole.isNull() | rounded), refusal.cast(data_type)).otherwise(
        whole
    )


def _refuse_late_times(raw: Column, made: Column, column: LoggedColumn) -> Column:
    """Returns a timestamp; an error if 64 bits of microseconds do not hold it, as for a query."""
    kind = "timestamp" if column.kind == "timestamptz" else "timestamp_ntz"
    if column.kind == "timestamptz":
        beyond = made.isNull()
    else:  # what Debezium counts has overflowed
        beyond = (raw < _EARLIEST) & ~raw.isin(*_MICROSECONDS)
    refusal = f.raise_error(
        f.lit(
            f"{column.name} has a time after the year 294246, which a timestamp cannot hold: "
            "correct the row, then read the table again (--full-refresh)"
        )
    )
    return f.when(raw.isNotNull() & beyond, refusal.cast(kind)).otherwise(made)


def _convert_numeric(raw: Column) -> Column:
    return _replace_special_values(raw, _NUMBERS, "string", raw)


def _convert_date(raw: Column) -> Column:
    days = f.date_add(f.lit("1970-01-01").cast("date"), raw.cast("int"))
    return _replace_special_values(raw, _DAYS, "date", days)


def _convert_timestamp(raw: Column) -> Column:
    micros = f.timestamp_micros(raw).cast("timestamp_ntz")
    return _replace_special_values(raw, _MICROSECONDS, "timestamp_ntz", micros)


def _convert_time(raw: Column) -> Column:
    second = f.floor(raw / _SECOND)
    parts = (f.floor(second / 3600), f.floor(second / 60) % 60, second % 60, raw % _SECOND)
    text = f.format_string("%02d:%02d:%02d.%06d", *parts)
    return f.when(raw.isNotNull(), text)


def _convert_instant(raw: Column) -> Column:
    return _replace_special_values(raw, _ENDS_OF_TIME, "timestamp", raw.cast("timestamp"))


def _replace_special_values(
    raw: Column, special: Mapping[Any, str], data_type: str, made: Column
) -> Column:
    """Returns special values in a type, and the converted value for all others."""
    for sign, meant in special.items():
        made = f.when(raw == sign, f.lit(meant).cast(data_type)).otherwise(made)
    return made


_TIME_TYPES: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp": t.TimestampNTZType(),
    "timestamptz": t.TimestampType(),
}
_MAKERS: dict[str, Callable[[Column], Column]] = {
    "bpchar": lambda raw: f.rtrim(raw),  # as a query loads it
    "bytea": f.unbase64,
    "numeric": _convert_numeric,
    "date": _convert_date,
    "timestamp": _convert_timestamp,
    "time": _convert_time,
    "timestamptz": _convert_instant,
}
