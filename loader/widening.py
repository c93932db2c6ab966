"""What may change about a raw table's columns without old rows changing their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as t

from loader.errors import TableError
from loader.order import quoted


@dataclass(frozen=True)
class Change:
    """One change of a raw table: how the ledger tells it, and the clause that makes it."""

    text: str
    sql: str


def changes(
    raw: t.StructType, source: t.StructType, fixed: Sequence[str], where: str
) -> list[Change]:
    """What has to happen to a raw table before rows of the source's schema can be appended.

    Names are compared as Spark does, without case.

    Raises:
        TableError: where a type changed in a way that Iceberg cannot follow, or a key's or
            cursor's type changed at all.
    """
    known = {field.name.lower(): field for field in raw.fields}
    found = []
    for field in source.fields:
        old = known.get(field.name.lower())
        name, new_type = quoted(field.name), field.dataType.simpleString()
        if old is None:
            found.append(Change(f"added {field.name} {new_type}", f"add column {name} {new_type}"))
        elif old.dataType == field.dataType or _holds(old.dataType, field.dataType):
            continue
        elif _widens(old.dataType, field.dataType) and field.name not in fixed:
            text = f"widened {field.name} {old.dataType.simpleString()} to {new_type}"
            found.append(Change(text, f"alter column {name} type {new_type}"))
        else:
            raise TableError(
                f"the column {field.name!r} changed its type from "
                f"{old.dataType.simpleString()} to {new_type}",
                where=where,
                remedy="Cast it back in a view of the source, "
                "or drop the raw table and sync it anew",
            )
    return found


def _widens(old: t.DataType, new: t.DataType) -> bool:
    # Iceberg's own rules: https://iceberg.apache.org/spec/#schema-evolution
    if isinstance(old, t.IntegerType) and isinstance(new, t.LongType):
        return True
    if isinstance(old, t.FloatType) and isinstance(new, t.DoubleType):
        return True
    return (
        isinstance(old, t.DecimalType)
        and isinstance(new, t.DecimalType)
        and old.scale == new.scale
        and old.precision < new.precision
    )


def _holds(raw: t.DataType, source: t.DataType) -> bool:
    """Whether the raw column already holds every value of the source's narrower type."""
    if isinstance(raw, t.IntegerType) and isinstance(source, (t.ByteType, t.ShortType)):
        return True  # Iceberg has no smaller integers
    if isinstance(raw, t.StringType) and isinstance(source, (t.CharType, t.VarcharType)):
        return True
    if isinstance(raw, (t.ArrayType, t.MapType, t.StructType)):
        return raw.simpleString() == source.simpleString()
    return _widens(source, raw)
