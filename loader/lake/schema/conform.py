"""Fits a source's rows into raw: raw's names and types, null in fields that the rows lack."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.schema.drift import ColumnMapping
from loader.lake.schema.widening import bare
from loader.rows.delta import COLUMNS
from loader.rows.order import quote_name


def conform(rows: DataFrame, routes: Sequence[ColumnMapping], where: str) -> DataFrame:
    """Casts and renames each of the source's columns to its raw column.

    Args:
        rows: the source's columns and the loader's own; the latter stay as they are.

    Raises:
        TableError: if a column's type differs from the source's description of the table.
    """
    there = {field.name.lower(): field for field in rows.schema.fields}
    own = [name for name in rows.columns if name.lower() in COLUMNS]
    columns = []
    as_they_are = [route.raw for route in routes] + own == rows.columns
    for route in routes:
        arrived = bare(there[route.source.lower()].dataType)
        if arrived != route.source_type:
            # Written to the type that was expected, its values might be truncated.
            raise TableError(
                f"the column {route.source!r} changed its type while the table was read, from "
                f"{route.source_type.simpleString()} to {arrived.simpleString()}",
                where=where,
                remedy="Nothing of this batch is visible; run again",
            )
        as_they_are = as_they_are and route.source_type == route.raw_type
        value = _conform_value(f.col(quote_name(route.source)), route.source_type, route.raw_type)
        columns.append(value.alias(route.raw))
    if as_they_are:
        return rows
    return rows.select(*columns, *(f.col(quote_name(name)) for name in own))


def _conform_value(value: Column, source: t.DataType, raw: t.DataType) -> Column:
    if source == raw:
        return value
    if isinstance(source, t.StructType) and isinstance(raw, t.StructType):
        there = {field.name.lower(): field for field in source.fields}
        fields = []
        for field in raw.fields:
            found = there.get(field.name.lower())
            part = (
                f.lit(None).cast(field.dataType)
                if found is None
                else _conform_value(value.getField(found.name), found.dataType, field.dataType)
            )
            fields.append(part.alias(field.name))
        return f.when(value.isNotNull(), f.struct(*fields))
    if isinstance(source, t.ArrayType) and isinstance(raw, t.ArrayType):
        of, to = source.elementType, raw.elementType
        return f.transform(value, lambda element: _conform_value(element, of, to))
    if isinstance(source, t.MapType) and isinstance(raw, t.MapType):
        key, raw_key = source.keyType, raw.keyType
        of, to = source.valueType, raw.valueType
        if key != raw_key:
            value = f.transform_keys(value, lambda name, _: _conform_value(name, key, raw_key))
        return f.transform_values(value, lambda _, held: _conform_value(held, of, to))
    return value.cast(raw)
