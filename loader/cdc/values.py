"""Converts Debezium's values to Spark columns that are equal to the JDBC reader's columns.

With :data:`SETTINGS`, Debezium writes values as strings if JSON cannot represent them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.cdc.debezium.spool import Placeholder
from loader.cdc.table_definition import DETECTABLE_ARRAYS, FLOATS, INTEGERS, LoggedColumn
from loader.rows.mask_values import REDACTED
from loader.sources.jdbc.interface import EARLIEST_TIME, LATEST_TIME

SETTINGS = {
    "binary.handling.mode": "bytes",
    "decimal.handling.mode": "string",
    "time.precision.mode": "microseconds",
    "interval.handling.mode": "string",
}

_INFINITIES = {"infinity": LATEST_TIME, "-infinity": EARLIEST_TIME}
# The numbers that Debezium writes for infinite dates (an overflow of the days) and for infinite
# timestamps (microseconds).
_INFINITE_DAYS = {-2147472692: LATEST_TIME[:10], -2147472691: EARLIEST_TIME[:10]}
_INFINITE_MICROSECONDS = {9223372036825200000: LATEST_TIME, -9223372036832400000: EARLIEST_TIME}
_MIN_MICROSECONDS = -210_866_803_200_000_000
"""PostgreSQL's earliest timestamp, 24 November 4714 BC, in microseconds."""
_JAVA_ARRAY = r"^\[+(L[\w.$]+;|[BCDFIJSZ])@[0-9a-f]{1,8}$"
"""Java's string for an array, such as `[B@1a2b3c`. Debezium writes it for nested string arrays."""
_SECOND = 1_000_000
_SPECIAL_NUMBERS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


def build_json_schema(columns: Sequence[LoggedColumn]) -> t.StructType:
    """Returns the schema of a change: `before` and `after` with the columns, and `op`."""
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
    row: Column,
    column: LoggedColumn,
    data_type: t.DataType,
    has_replaced: bool = False,
    hides_value: bool = False,
) -> Column:
    """Returns a column's value. The Spark query fails if the value is an array of arrays.

    Args:
        row: the `before` or `after` of a change.
        data_type: the column's type in the JDBC reader.
        has_replaced: whether Debezium replaced elements of arrays in this column with null.
        hides_value: whether errors must not quote the value; true if the column is masked.
    """
    raw = row.getField(column.name)
    if not column.is_array:
        return _convert_scalar(raw, column, data_type, hides_value)
    assert isinstance(data_type, t.ArrayType)
    element_type = data_type.elementType
    is_nested = f.lit(False)
    if _choose_json_type(column) == t.ArrayType(t.StringType()):
        is_nested = f.exists(raw, lambda element: element.rlike(_JAVA_ARRAY))
    if has_replaced:
        is_nested = is_nested | (
            (f.size(raw) > 0) & f.forall(raw, lambda element: element.isNull())
        )
    refusal = f.raise_error(
        f.lit(
            f"{column.name} contains an array of arrays, whose values are not in the log: read the "
            "table with a cursor (sync_mode: incremental), or correct the row, then reload the "
            "table (--full-refresh)"
        )
    )
    converted = f.transform(
        raw, lambda element: _convert_scalar(element, column, element_type, hides_value)
    )
    return f.when(is_nested, refusal.cast(data_type)).otherwise(converted)


def convert_to_text(row: Column, column: LoggedColumn) -> Column:
    """Returns a column's value as a string in PostgreSQL's format."""
    raw = row.getField(column.name)
    if column.kind == "bytea":
        return f.concat(f.lit(r"\x"), f.lower(f.hex(f.unbase64(raw))))
    if column.kind in ("date", "timestamp", "timestamptz"):
        return _convert_time_to_text(raw, column)
    convert = _CONVERTERS.get(column.kind)
    return (convert(raw) if convert else raw).cast("string")


def _convert_time_to_text(raw: Column, column: LoggedColumn) -> Column:
    infinite: dict[str, Mapping[Any, str]] = {
        "date": dict(zip(_INFINITE_DAYS, _INFINITIES, strict=True)),
        "timestamp": dict(zip(_INFINITE_MICROSECONDS, _INFINITIES, strict=True)),
        "timestamptz": {raw_value: raw_value for raw_value in _INFINITIES},
    }
    value = _convert_scalar(raw, column, _TIME_TYPES[column.kind])
    is_date = column.kind == "date"
    pattern = "yyyy-MM-dd G" if is_date else "yyyy-MM-dd HH:mm:ss.SSSSSS G"
    formatted = f.date_format(value, pattern)
    zone = "+00" if column.kind == "timestamptz" else ""
    text = f.concat(
        f.regexp_replace(formatted, rf"^\+|{'' if is_date else '[.]?0*'} (AD|BC)$", ""),
        f.lit(zone),
        f.when(formatted.endswith("BC"), " BC").otherwise(""),
    )
    for raw_value, written_value in infinite[column.kind].items():
        text = f.when(raw == raw_value, f.lit(written_value)).otherwise(text)
    return text


def is_omitted(row: Column, column: LoggedColumn, placeholder: str) -> Column:
    """Returns whether the log omits a value because an update did not change it.

    Debezium writes a :class:`Placeholder` for an omitted value. The result is never null.
    """
    if not column.is_toastable or (column.is_array and column.kind not in DETECTABLE_ARRAYS):
        return f.lit(False)
    raw, placeholders = row.getField(column.name), Placeholder(placeholder)
    if not column.is_array:
        expected = placeholders.binary if column.kind == "bytea" else placeholders.text
        return f.coalesce(raw == expected, f.lit(False))
    if column.kind in INTEGERS or column.kind == "date":
        return f.coalesce(raw == f.array(*map(f.lit, placeholders.codes)), f.lit(False))
    expected = {"uuid": placeholders.uuid, "bytea": placeholders.binary}.get(
        column.kind, placeholders.text
    )
    return f.coalesce(raw == f.array(f.lit(expected)), f.lit(False))


def _choose_json_type(column: LoggedColumn) -> t.DataType:
    scalar: t.DataType = t.StringType()
    if column.kind in INTEGERS or column.kind in ("date", "timestamp", "time"):
        scalar = t.LongType()
    elif column.kind in FLOATS:
        scalar = t.DoubleType()
    elif column.kind == "bool":
        scalar = t.BooleanType()
    return t.ArrayType(scalar) if column.is_array else scalar


def _convert_scalar(
    raw: Column, column: LoggedColumn, data_type: t.DataType, hides_value: bool = False
) -> Column:
    convert = _CONVERTERS.get(column.kind)
    value = convert(raw) if convert else raw
    if column.kind == "numeric" and isinstance(data_type, t.DecimalType):
        value = _convert_decimal(raw, column.name, data_type, hides_value)
    if column.kind in ("timestamp", "timestamptz"):
        value = _refuse_overflow(raw, value, column)
    return value.cast(data_type)


def _convert_decimal(raw: Column, name: str, data_type: t.DecimalType, hides_value: bool) -> Column:
    """Returns a decimal. The query fails on NaN, infinity and values with too many digits."""
    decimal = raw.cast(data_type)
    digits = f.length(f.regexp_replace(f.substring_index(raw, ".", -1), "0+$", ""))
    is_rounded = raw.contains(".") & (digits > data_type.scale)
    refusal = f.raise_error(
        f.concat(
            f.lit(f"{name} has the value "),
            f.lit(REDACTED) if hides_value else raw,
            f.lit(
                f", which does not fit {data_type.simpleString()}: correct the row or set the "
                f"column's type in the source's column_types ({name}: string), then reload the "
                "table (--full-refresh)"
            ),
        )
    )
    return f.when(
        raw.isNotNull() & (decimal.isNull() | is_rounded), refusal.cast(data_type)
    ).otherwise(decimal)


def _refuse_overflow(raw: Column, value: Column, column: LoggedColumn) -> Column:
    spark_type = "timestamp" if column.kind == "timestamptz" else "timestamp_ntz"
    if column.kind == "timestamptz":
        is_too_late = value.isNull()
    else:  # later times overflow Debezium's 64-bit number
        is_too_late = (raw < _MIN_MICROSECONDS) & ~raw.isin(*_INFINITE_MICROSECONDS)
    refusal = f.raise_error(
        f.lit(
            f"{column.name} has a time after the year 294246, which a timestamp cannot hold: "
            "correct the row, then reload the table (--full-refresh)"
        )
    )
    return f.when(raw.isNotNull() & is_too_late, refusal.cast(spark_type)).otherwise(value)


def _convert_numeric(raw: Column) -> Column:
    return _replace_special_values(raw, _SPECIAL_NUMBERS, "string", raw)


def _convert_date(raw: Column) -> Column:
    days = f.date_add(f.lit("1970-01-01").cast("date"), raw.cast("int"))
    return _replace_special_values(raw, _INFINITE_DAYS, "date", days)


def _convert_timestamp(raw: Column) -> Column:
    micros = f.timestamp_micros(raw).cast("timestamp_ntz")
    return _replace_special_values(raw, _INFINITE_MICROSECONDS, "timestamp_ntz", micros)


def _convert_time(raw: Column) -> Column:
    second = f.floor(raw / _SECOND)
    parts = (f.floor(second / 3600), f.floor(second / 60) % 60, second % 60, raw % _SECOND)
    text = f.format_string("%02d:%02d:%02d.%06d", *parts)
    return f.when(raw.isNotNull(), text)


def _convert_instant(raw: Column) -> Column:
    return _replace_special_values(raw, _INFINITIES, "timestamp", raw.cast("timestamp"))


def _replace_special_values(
    raw: Column, special: Mapping[Any, str], data_type: str, result: Column
) -> Column:
    for raw_value, value in special.items():
        result = f.when(raw == raw_value, f.lit(value).cast(data_type)).otherwise(result)
    return result


_TIME_TYPES: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp": t.TimestampNTZType(),
    "timestamptz": t.TimestampType(),
}
_CONVERTERS: dict[str, Callable[[Column], Column]] = {
    "bpchar": lambda raw: f.rtrim(raw),  # the JDBC reader also removes padding
    "bytea": f.unbase64,
    "numeric": _convert_numeric,
    "date": _convert_date,
    "timestamp": _convert_timestamp,
    "time": _convert_time,
    "timestamptz": _convert_instant,
}
