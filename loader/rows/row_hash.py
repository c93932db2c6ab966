"""What makes two versions of a row the same: a hash of its columns.

By name without case, null-safe, and blind to what is no change of a value: the order of columns
and fields, columns that are null, the width of a number.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.order import quoted


def row_hash(schema: t.StructType) -> Column:
    """xxhash64 over a row's columns.

    Spark's xxhash64 passes over nulls, so (null, 'a') and ('a', null) would be one; each value is
    therefore preceded by its column's name. A column that is null counts for nothing: one that
    the source adds later makes no old row look changed. int and bigint, float and double, and
    decimals of one scale hash alike, so a column that is widened does not either.
    """
    parts: list[Column] = []
    for field in sorted(schema.fields, key=lambda field: field.name.lower()):
        value = f.col(quoted(field.name))
        parts += _named((field.name.lower(),), value, field.dataType)
    return f.xxhash64(*parts)


def _named(path: tuple[str, ...], value: Column, data_type: t.DataType) -> list[Column]:
    # Of a struct's fields the whole path: else its last field and the column after it could swap.
    name = f.lit("\x1f".join(path))
    return [f.when(value.isNotNull(), name), _hashable(path, value, data_type)]


def _hashable(path: tuple[str, ...], value: Column, data_type: t.DataType) -> Column:
    """A column that xxhash64 tells apart wherever the values differ."""
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
            parts += _named(inner, value.getField(field.name), field.dataType)
        return f.when(value.isNotNull(), f.struct(*parts))
    if isinstance(data_type, t.ArrayType):
        of = data_type.elementType
        return _listed(value, lambda element: f.struct(*_flagged(path, element, of)))
    if isinstance(data_type, t.MapType):
        key, held = data_type.keyType, data_type.valueType
        # A map has no order; its sorted keys have one.
        return _listed(
            f.array_sort(f.map_keys(value)),
            lambda name: f.struct(_hashable(path, name, key), *_flagged(path, value[name], held)),
        )
    return value


def _listed(value: Column, hashable: Callable[[Column], Column]) -> Column:
    # With its length: else [[a], [b]] and [[a, b]] could be one.
    return f.when(value.isNotNull(), f.struct(f.size(value), f.transform(value, hashable)))


def _flagged(path: tuple[str, ...], value: Column, data_type: t.DataType) -> tuple[Column, Column]:
    # A null within a list counts: [null, a] is not [a].
    return value.isNull(), _hashable(path, value, data_type)
