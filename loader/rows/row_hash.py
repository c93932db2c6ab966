"""Decides whether two versions of a row are the same: by a hash of its columns.

It matches columns by name, ignoring case, and it is null-safe. It ignores anything that does
not change a value: the order of columns and fields, columns that are null, the width of a number.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.version_order import quote_name


def row_hash(schema: t.StructType) -> Column:
    """Returns the xxhash64 of a row's columns.

    Spark's xxhash64 skips nulls, so (null, 'a') and ('a', null) would hash alike; each value is
    therefore preceded by its column's name. Null columns are left out, so a column that the source
    adds later does not make old rows look changed. Neither does widening a column: int and bigint,
    float and double, and decimals of the same scale hash alike.
    """
    parts: list[Column] = []
    for field in sorted(schema.fields, key=lambda field: field.name.lower()):
        value = f.col(quote_name(field.name))
        parts += _name_parts((field.name.lower(),), value, field.dataType)
    return f.xxhash64(*parts)


def _name_parts(path: tuple[str, ...], value: Column, data_type: t.DataType) -> list[Column]:
    # A struct field is named by its whole path: otherwise a struct's last field and the column
    # after the struct could swap values unnoticed.
    name = f.lit("\x1f".join(path))
    return [f.when(value.isNotNull(), name), _hashable(path, value, data_type)]


def _hashable(path: tuple[str, ...], value: Column, data_type: t.DataType) -> Column:
    """Returns a column for which xxhash64 differs whenever the values differ."""
    if isinstance(data_type, (t.ByteType, t.ShortType, t.IntegerType)):
        return value.cast("bigint")
    if isinstance(data_type, t.FloatType):
        return value.cast("double")
    if isinstance(data_type, t.DecimalType):
        return value.cast("string")
    if isinstance(data_type, t.StructType):
        parts: list[Column] = []
        for field in sorted(data_type.fields, key=lambda field: field.name.lower()):
            inner = (*path, field.name.lower())
            parts += _name_parts(inner, value.getField(field.name), field.dataType)
        return f.when(value.isNotNull(), f.struct(*parts))
    if isinstance(data_type, t.ArrayType):
        of = data_type.elementType
        return _hash_list(value, lambda element: f.struct(*_flag_null(path, element, of)))
    if isinstance(data_type, t.MapType):
        key, held = data_type.keyType, data_type.valueType
        # A map has no order, so its keys are sorted.
        return _hash_list(
            f.array_sort(f.map_keys(value)),
            lambda name: f.struct(_hashable(path, name, key), *_flag_null(path, value[name], held)),
        )
    return value


def _hash_list(value: Column, hashable: Callable[[Column], Column]) -> Column:
    # Includes the length: otherwise [[a], [b]] and [[a, b]] could hash alike.
    return f.when(value.isNotNull(), f.struct(f.size(value), f.transform(value, hashable)))


def _flag_null(
    path: tuple[str, ...], value: Column, data_type: t.DataType
) -> tuple[Column, Column]:
    # A null in a list counts: [null, a] is not [a].
    return value.isNull(), _hashable(path, value, data_type)
