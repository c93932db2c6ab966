"""Stores the schema that a source's table had at the last published batch.

The schema is stored in a property of the raw table. It cannot be derived from the raw table's
columns, because the raw table keeps columns that the source has dropped, and has type-specific
columns that the source never had.

The notes on schema changes in the ledger describe the differences between this property and the
current source. One commit publishes a batch, this property and the ledger row with the notes. So
the property and the notes are always consistent, and no change is noted twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.type_widening import bare, holds
from loader.rows.bookkeeping import COLUMNS

PROPERTY = "strandline.source_schema"


def property_of(source: str) -> str:
    """Returns the property that stores a source's schema. `source` is empty in unshared tables."""
    return f"{PROPERTY}.{source}" if source else PROPERTY


def read_source_schema(
    properties: Mapping[str, str], source: str, where: str
) -> SourceSchema | None:
    """Reads a source's stored schema from a raw table's properties. Returns None if there is none.

    Before a source's first batch in a shared table, returns the schema of the source that created
    the table. In a shared table, the result includes the type-specific columns of all sources.

    Raises a TableError if this loader did not write the property.
    """
    text = properties.get(property_of(source)) or properties.get(PROPERTY)
    if text is None:
        return None
    schema = SourceSchema.parse(text, where)
    if not source:
        return schema
    names = [name for name in properties if name.startswith(PROPERTY)]
    all_variants = (SourceSchema.parse(properties[name], where).variants for name in names)
    variants = {name for each in all_variants for name in each}
    return replace(schema, variants=tuple(sorted(variants)))


@dataclass(frozen=True)
class SourceSchema:
    """A source's columns and the raw table's additional columns.

    Attributes:
        schema: the source's columns with bare types (:func:`loader.lake.type_widening.bare`).
        dropped: former columns of the source, in lower case.
        variants: the type-specific columns of the raw table. Each stores the values of another
            column that do not fit that column's type.
        excluded: columns of the source that the spec excludes, in lower case.
    """

    schema: t.StructType
    dropped: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        schema: t.StructType,
        dropped: Iterable[str] = (),
        variants: Iterable[str] = (),
        excluded: Iterable[str] = (),
    ) -> SourceSchema:
        fields = [t.StructField(f.name, bare(f.dataType)) for f in schema.fields]
        left_out = sorted(name.lower() for name in excluded)
        return cls(
            t.StructType(fields), tuple(sorted(dropped)), tuple(sorted(variants)), tuple(left_out)
        )

    def exclude(self, names: Iterable[str]) -> SourceSchema:
        """Returns a copy in which the spec excludes these columns of the source."""
        excluded = {name.lower() for name in names}
        fields = [field for name, field in self.columns.items() if name not in excluded]
        dropped = {*self.dropped, *(excluded & set(self.columns))}
        return self.of(t.StructType(fields), dropped, self.variants, excluded)

    @classmethod
    def derive(cls, raw: t.StructType, source: t.StructType) -> SourceSchema:
        """Derives a source schema from the raw table, if no schema is stored.

        If a raw column can store the current type of the source's column, the source's type is
        assumed to be unchanged.
        """
        now = {field.name.lower(): field for field in source.fields}
        fields = []
        for field in raw.fields:
            if field.name.lower() in COLUMNS:
                continue
            current = now.get(field.name.lower())
            fits = current is not None and holds(field.dataType, current.dataType)
            data_type = current.dataType if current is not None and fits else field.dataType
            fields.append(t.StructField(field.name, data_type))
        return cls.of(t.StructType(fields))

    @cached_property
    def columns(self) -> dict[str, t.StructField]:
        """The source's columns, keyed by lower-case name."""
        return {field.name.lower(): field for field in self.schema.fields}

    @cached_property
    def text(self) -> str:
        """The property's value as JSON."""
        columns = [{"name": f.name, "type": f.dataType.jsonValue()} for f in self.schema.fields]
        value: dict[str, Any] = {"columns": columns}
        if self.dropped:
            value["dropped"] = list(self.dropped)
        if self.variants:
            value["variants"] = list(self.variants)
        if self.excluded:
            value["excluded"] = list(self.excluded)
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, where: str) -> SourceSchema:
        """Parses the property's value. Raises a TableError if this loader did not write it."""
        try:
            value = json.loads(text)
            plain = {"nullable": True, "metadata": {}}
            fields = [{**column, **plain} for column in value["columns"]]
            schema = t.StructType.fromJson({"fields": fields})
            others = (value.get(name, ()) for name in ("dropped", "variants", "excluded"))
            return cls.of(schema, *others)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise TableError(
                f"its property {PROPERTY} was not written by this loader ({problem})",
                where=where,
                remedy="Remove it with `alter table … unset tblproperties`; the next run "
                "derives it again from the raw table's columns",
            ) from None
