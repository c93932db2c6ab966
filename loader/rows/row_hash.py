"""Hashes rows, so that their versions can be compared.

The hash does not depend on the order of columns and fields, on the case of their names, on null
columns, or on the width of a numeric type.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.version_order import quote_name


def row_hash(schema: t.StructType) -> Column:
    """Returns the xxhash64 of a row's columns.

    Each value is preceded by its column's name. Otherwise, (null, 'a') and ('a', null) would have
    the same hash, because Spark's xxhash64 skips nulls. Null columns are skipped, so that hashes do
    not change if the source adds a column. Decimals have equal hashes only if their scales are
    equal.
    """
    parts: list[Column] = []
    for field in sorted(schema.fields, key=lambda field: field.name.lower()):
        value = f.col(quote_name(field.name))
        parts += _build_named_parts((field.name.lower(),), value, field.dataType)
    return f.xxhash64(*parts)


def _build_named_parts(path: tuple[str, ...], value: Column, data_type: t.DataType) -> list[Column]:
    # Without the path, a struct's last field and the column after the struct could swap their
    # values without changing the hash.
    name = f.lit("\x1f".join(path))
    return [f.when(value.isNotNull(), name), _build_hash_input(path, value, data_type)]


def _build_hash_input(path: tuple[str, ...], value: Column, data_type: t.DataType) -> Column:
    """Converts a value so that different values have different hashes."""
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
            parts += _build_named_parts(inner, value.getField(field.name), field.dataType)
        return f.when(value.isNotNull(), f.struct(*parts))
    if isinstance(data_type, t.ArrayType):
        element_type = data_type.elementType
        return _hash_list(value, lambda element: f.struct(*_flag_null(path, element, element_type)))
    if isinstance(data_type, t.MapType):
        key, value_type = data_type.keyType, data_type.valueType
        # The keys are sorted, because the entries of a map are unordered.
        return _hash_list(
            f.array_sort(f.map_keys(value)),
            lambda name: f.struct(
                _build_hash_input(path, name, key), *_flag_null(path, value[name], value_type)
            ),
        )
    return value


def _hash_list(value: Column, build_input: Callable[[Column], Column]) -> Column:
    # Without the length, [[a], [b]] and [[a, b]] could have the same hash.
    return f.when(value.isNotNull(), f.struct(f.size(value), f.transform(value, build_input)))


def _flag_null(
    path: tuple[str, ...], value: Column, data_type: t.DataType
) -> tuple[Column, Column]:
    # A null in a list is significant, because [null, a] differs from [a].
    return value.isNull(), _build_hash_input(path, value, data_type)
