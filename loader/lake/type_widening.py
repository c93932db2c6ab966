"""Determines which types a raw column can store, either as it is or after widening it.

| raw column | the source's new type | effect |
|---|---|---|
| int | tinyint, smallint | stored unchanged: Iceberg has no smaller integer |
| bigint | tinyint, smallint, int | stored unchanged |
| double | float | stored unchanged |
| decimal(p, s) | decimal(q, r) with r <= s and q - r <= p - s | stored unchanged |
| decimal(p, s) | an integer type with at most p - s digits (3, 5, 10 or 19) | stored unchanged |
| string | char, varchar | stored unchanged |
| int | bigint | column is widened |
| float | double | column is widened |
| decimal(p, s) | decimal(q, s) with q > p | column is widened |
| struct, array, map | the same type with new or wider fields | fields are added or widened |

Values of all other types are stored in another column (:mod:`loader.lake.schema_evolution`).
The rules are specified in https://iceberg.apache.org/spec/#schema-evolution. A date can become a
timestamp only in format version 3 and later. The type of a map's key cannot change. `docs/drift.md`
contains the same table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import types as t

from loader.rows.version_order import quote_name

_DIGITS: dict[type[t.DataType], int] = {
    t.ByteType: 3,
    t.ShortType: 5,
    t.IntegerType: 10,
    t.LongType: 19,
}
_HELD: dict[type[t.DataType], tuple[type[t.DataType], ...]] = {
    t.IntegerType: (t.ByteType, t.ShortType),
    t.LongType: (t.ByteType, t.ShortType, t.IntegerType),
    t.DoubleType: (t.FloatType,),
    t.StringType: (t.CharType, t.VarcharType),
}


def bare(data_type: t.DataType) -> t.DataType:
    """Removes nullability, metadata and string lengths from a type.

    A change in one of these is not a schema change.
    """
    return _replace_leaves(data_type, {t.CharType: t.StringType(), t.VarcharType: t.StringType()})


def raw_type(data_type: t.DataType) -> t.DataType:
    """Returns the type of the raw column that stores values of a source's type.

    Iceberg has no integer type smaller than int.
    """
    return _replace_leaves(
        bare(data_type), {t.ByteType: t.IntegerType(), t.ShortType: t.IntegerType()}
    )


def _replace_leaves(
    data_type: t.DataType, leaves: Mapping[type[t.DataType], t.DataType]
) -> t.DataType:
    """Replaces the types of scalars, also within structs, arrays and maps."""
    if isinstance(data_type, t.StructType):
        fields = [(f.name, _replace_leaves(f.dataType, leaves)) for f in data_type.fields]
        return t.StructType([t.StructField(name, inner) for name, inner in fields])
    if isinstance(data_type, t.ArrayType):
        return t.ArrayType(_replace_leaves(data_type.elementType, leaves))
    if isinstance(data_type, t.MapType):
        key = _replace_leaves(data_type.keyType, leaves)
        return t.MapType(key, _replace_leaves(data_type.valueType, leaves))
    return leaves.get(type(data_type), data_type)


def find_wider_type(raw: t.DataType, source: t.DataType) -> t.DataType | None:
    """Returns the type that a raw column must have to store values of a source's type, too.

    Returns `raw` itself if it can already store values of `source`. Returns None if Iceberg cannot
    widen the column in place. Struct fields are matched by case-insensitive name.
    """
    raw, source = bare(raw), bare(source)
    if isinstance(raw, t.StructType) and isinstance(source, t.StructType):
        return _struct(raw, source)
    if isinstance(raw, t.ArrayType) and isinstance(source, t.ArrayType):
        element = find_wider_type(raw.elementType, source.elementType)
        return None if element is None else t.ArrayType(element)
    if isinstance(raw, t.MapType) and isinstance(source, t.MapType):
        value = find_wider_type(raw.valueType, source.valueType)
        fits = value is not None and holds(raw.keyType, source.keyType)
        return t.MapType(raw.keyType, value) if fits and value is not None else None
    if raw == raw_type(source) or _keeps(raw, source):
        return raw
    return source if _widens(raw, source) else None


def holds(raw: t.DataType, source: t.DataType) -> bool:
    """Returns whether a raw column can store every `source` value without being widened."""
    return find_wider_type(raw, source) == bare(raw)


def is_wider(new: t.DataType, old: t.DataType) -> bool:
    """Returns whether a source's new type can represent more values than the old type."""
    if type(old) in _DIGITS and type(new) in _DIGITS:
        return _DIGITS[type(new)] > _DIGITS[type(old)]
    return holds(raw_type(new), old)


def ddl(data_type: t.DataType) -> str:
    """Formats a type as SQL with quoted field names."""
    if isinstance(data_type, t.StructType):
        fields = ", ".join(f"{quote_name(f.name)}: {ddl(f.dataType)}" for f in data_type.fields)
        return f"struct<{fields}>"
    if isinstance(data_type, t.ArrayType):
        return f"array<{ddl(data_type.elementType)}>"
    if isinstance(data_type, t.MapType):
        return f"map<{ddl(data_type.keyType)}, {ddl(data_type.valueType)}>"
    return data_type.simpleString()


def spell_type(data_type: t.DataType) -> str:
    """Formats a type for use in a column name, such as ``decimal_20_0`` or ``array_string``."""
    if isinstance(data_type, t.StructType):
        return "struct"
    if isinstance(data_type, t.ArrayType):
        return f"array_{spell_type(data_type.elementType)}"
    if isinstance(data_type, t.MapType):
        return f"map_{spell_type(data_type.keyType)}_{spell_type(data_type.valueType)}"
    return re.sub(r"\W+", "_", data_type.simpleString()).strip("_")


def _struct(raw: t.StructType, source: t.StructType) -> t.StructType | None:
    arriving = {field.name.lower(): field for field in source.fields}
    fields = []
    for old in raw.fields:
        new = arriving.pop(old.name.lower(), None)
        data_type = old.dataType if new is None else find_wider_type(old.dataType, new.dataType)
        if data_type is None:
            return None
        fields.append(t.StructField(old.name, data_type))
    added = [t.StructField(new.name, raw_type(new.dataType)) for new in arriving.values()]
    return t.StructType([*fields, *added])


def _keeps(raw: t.DataType, source: t.DataType) -> bool:
    if isinstance(raw, t.DecimalType):
        whole_digits = raw.precision - raw.scale
        if isinstance(source, t.DecimalType):
            return source.scale <= raw.scale and source.precision - source.scale <= whole_digits
        return type(source) in _DIGITS and _DIGITS[type(source)] <= whole_digits
    return isinstance(source, _HELD.get(type(raw), ()))


def _widens(raw: t.DataType, source: t.DataType) -> bool:
    if isinstance(raw, t.DecimalType) and isinstance(source, t.DecimalType):
        return raw.scale == source.scale and raw.precision < source.precision
    pairs = ((t.IntegerType, t.LongType), (t.FloatType, t.DoubleType))
    return (type(raw), type(source)) in pairs
