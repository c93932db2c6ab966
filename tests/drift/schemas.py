"""A short notation for schemas, and a model of a raw table that follows them, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as t

from loader.lake.schema_evolution import (
    Alteration,
    Drift,
    EvolutionPolicy,
    derive_drift,
    plan_creation,
)
from loader.lake.source_schema import SourceSchema
from loader.lake.type_widening import raw_type
from loader.rows.bookkeeping import COLUMNS

TYPES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "varchar": t.VarcharType(7),
    "char": t.CharType(3),
}
TERMS = EvolutionPolicy(where="table shop.t", select="shop.t")


def of(written: Any) -> t.DataType:
    """Returns a type: ``"int"``, ``(10, 2)`` a decimal, ``[…]`` an array, a mapping a struct.

    A mapping whose only key is ``"map"`` is a map with text keys.
    """
    if isinstance(written, t.DataType):
        return written
    if isinstance(written, str):
        return TYPES[written]
    if isinstance(written, tuple):
        return t.DecimalType(*written)
    if isinstance(written, list):
        return t.ArrayType(of(written[0]))
    if list(written) == ["map"]:
        return t.MapType(t.StringType(), of(written["map"]))
    return schema(written)


def schema(columns: dict[str, Any]) -> t.StructType:
    """Returns columns by their names."""
    return t.StructType([t.StructField(name, of(written)) for name, written in columns.items()])


def altered(raw: t.StructType, alteration: Alteration) -> t.StructType:
    """Alters a raw table's schema like Iceberg; raises if Iceberg would refuse."""
    found = _altered(raw, alteration.path, alteration)
    assert isinstance(found, t.StructType)
    return found


def _altered(inside: t.DataType, path: tuple[str, ...], change: Alteration) -> t.DataType:
    if not path:
        assert not change.adds
        assert (inside.simpleString(), change.type.simpleString()) in {
            ("int", "bigint"),
            ("float", "double"),
        } or _more_digits(inside, change.type)
        return change.type
    if isinstance(inside, t.ArrayType):
        assert path[0] == "element"
        return t.ArrayType(_altered(inside.elementType, path[1:], change))
    if isinstance(inside, t.MapType):
        assert path[0] == "value"
        return t.MapType(inside.keyType, _altered(inside.valueType, path[1:], change))
    assert isinstance(inside, t.StructType)
    names = [name.lower() for name in inside.names]
    if len(path) == 1 and change.adds:
        assert path[0].lower() not in names
        return t.StructType([*inside.fields, t.StructField(path[0], change.type)])
    assert path[0] in inside.names
    return t.StructType(
        [
            t.StructField(f.name, _altered(f.dataType, path[1:], change))
            if f.name == path[0]
            else f
            for f in inside.fields
        ]
    )


def _more_digits(old: t.DataType, new: t.DataType) -> bool:
    return (
        isinstance(old, t.DecimalType)
        and isinstance(new, t.DecimalType)
        and old.scale == new.scale
        and old.precision < new.precision
    )


@dataclass(frozen=True)
class Table:
    """The schema of a raw table, and the source's schema that is stored with it."""

    raw: t.StructType
    remembered: SourceSchema | None

    @classmethod
    def first(cls, source: t.StructType) -> Table:
        """Creates the table as a first load does."""
        own = [t.StructField(name, data_type) for name, data_type in COLUMNS.items()]
        fields = [t.StructField(f.name, raw_type(f.dataType)) for f in source.fields]
        return cls(t.StructType([*fields, *own]), plan_creation(source).after)

    def drift(self, source: t.StructType, policy: EvolutionPolicy = TERMS) -> Drift:
        """Returns the drift of a changed source."""
        return derive_drift(self.raw, self.remembered, source, policy)

    def prepared(self, found: Drift) -> Table:
        """Alters the raw table, and publishes nothing."""
        raw = self.raw
        for alteration in found.alterations:
            raw = altered(raw, alteration)
        return Table(raw, found.before if found.alterations else self.remembered)

    def published(self, found: Drift) -> Table:
        """Alters the raw table, and publishes a batch."""
        return Table(self.prepared(found).raw, found.after)

    def synced(self, source: t.StructType, policy: EvolutionPolicy = TERMS) -> tuple[Table, Drift]:
        """Alters the raw table and publishes a batch; also returns the drift."""
        found = self.drift(source, policy)
        return self.published(found), found

    @property
    def columns(self) -> dict[str, str]:
        """Returns the raw table's columns without the loader's own."""
        return {f.name: f.dataType.simpleString() for f in self.raw.fields if f.name not in COLUMNS}
