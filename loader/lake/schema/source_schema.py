"""What a source's table looked like when its last batch was published.

Kept as a property of the raw table, as raw itself does not tell: it keeps columns that the source
has dropped, and has variant columns that the source never had. What the ledger is told of a change
is the difference between this and the source as it is now. The property is therefore written by
the very commit that publishes a batch, whose ledger row tells the change: neither can be lost
without the other, nor told twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.schema.widening import bare, holds
from loader.rows.delta import COLUMNS

PROPERTY = "strandline.source_schema"


def property_of(source: str) -> str:
    """The property of one of the sources that share a table; of the only one it is `PROPERTY`."""
    return f"{PROPERTY}.{source}" if source else PROPERTY


def remembered(properties: Mapping[str, str], source: str, where: str) -> SourceSchema | None:
    """What a raw table's properties say of a source; None where they say nothing.

    A source that has not loaded a shared table yet is compared with the table's first one. Variant
    columns are raw's, whichever source they were made for.

    Raises:
        TableError: where this loader did not write it.
    """
    text = properties.get(property_of(source)) or properties.get(PROPERTY)
    if text is None:
        return None
    found = SourceSchema.parse(text, where)
    if not source:
        return found
    names = [name for name in properties if name.startswith(PROPERTY)]
    all_variants = (SourceSchema.parse(properties[name], where).variants for name in names)
    variants = {name for each in all_variants for name in each}
    return replace(found, variants=tuple(sorted(variants)))


@dataclass(frozen=True)
class SourceSchema:
    """A source's columns, and what raw has besides.

    Attributes:
        schema: the source's columns, bare (:func:`loader.lake.schema.widening.bare`).
        dropped: columns that the source had once, in lower case.
        variants: columns of raw that keep another column's values of another type.
    """

    schema: t.StructType
    dropped: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, schema: t.StructType, dropped: Iterable[str] = (), variants: Iterable[str] = ()
    ) -> SourceSchema:
        """The description of a source as it is now."""
        fields = [t.StructField(f.name, bare(f.dataType)) for f in schema.fields]
        return cls(t.StructType(fields), tuple(sorted(dropped)), tuple(sorted(variants)))

    @classmethod
    def derived(cls, raw: t.StructType, source: t.StructType) -> SourceSchema:
        """What raw's columns tell, where nothing was remembered.

        A type that raw holds in a wider one is taken for the one that it had.
        """
        now = {field.name.lower(): field for field in source.fields}
        fields = []
        for field in raw.fields:
            if field.name.lower() in COLUMNS:
                continue
            there = now.get(field.name.lower())
            known = there is not None and holds(field.dataType, there.dataType)
            data_type = there.dataType if there is not None and known else field.dataType
            fields.append(t.StructField(field.name, data_type))
        return cls.of(t.StructType(fields))

    @cached_property
    def columns(self) -> dict[str, t.StructField]:
        """The source's columns, by their names in lower case."""
        return {field.name.lower(): field for field in self.schema.fields}

    @cached_property
    def text(self) -> str:
        """JSON: what the property holds."""
        columns = [{"name": f.name, "type": f.dataType.jsonValue()} for f in self.schema.fields]
        value: dict[str, Any] = {"columns": columns}
        if self.dropped:
            value["dropped"] = list(self.dropped)
        if self.variants:
            value["variants"] = list(self.variants)
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, where: str) -> SourceSchema:
        """Reads the property.

        Raises:
            TableError: where this loader did not write it.
        """
        try:
            value = json.loads(text)
            plain = {"nullable": True, "metadata": {}}
            fields = [{**column, **plain} for column in value["columns"]]
            schema = t.StructType.fromJson({"fields": fields})
            return cls.of(schema, value.get("dropped", ()), value.get("variants", ()))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise TableError(
                f"its property {PROPERTY} was not written by this loader ({problem})",
                where=where,
                remedy="Remove it with `alter table … unset tblproperties`: it is then derived "
                "from the columns of raw",
            ) from None
