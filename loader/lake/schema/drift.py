"""What has to happen to a raw table before rows of the source's schema fit, and what is told of it.

Two comparisons, for two purposes. What is told is the source as it was at the last batch against
the source as it is now. What is done is raw's columns against the source's. After a crash between
the two, raw has changed already and nothing was told: then the same is told, and nothing is done.

A column of raw never changes its meaning. What its type cannot follow
(:mod:`loader.lake.schema.widening`) goes into a variant column, ``<name>__<type>``, and is null in
the column itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.schema.source_schema import SourceSchema
from loader.lake.schema.terms import Terms, check_key_and_cursor
from loader.lake.schema.widening import bare, ddl, followed, holds, kept_as, spelled
from loader.rows.order import quoted


@dataclass(frozen=True)
class Alteration:
    """One change of raw: a column or a field is added, or its type widened.

    Attributes:
        path: the column's name, then those of fields; `element` of an array, `value` of a map.
    """

    path: tuple[str, ...]
    type: t.DataType
    adds: bool

    @property
    def sql(self) -> str:
        """The clause of an `alter table`."""
        name = ".".join(quoted(part) for part in self.path)
        if self.adds:
            return f"add column {name} {ddl(self.type)}"
        return f"alter column {name} type {ddl(self.type)}"


@dataclass(frozen=True)
class Route:
    """Where a source's column goes.

    Attributes:
        source: its name in the source; its type there.
        raw: the name of the raw column that takes its values; its type once raw is altered.
    """

    source: str
    source_type: t.DataType
    raw: str
    raw_type: t.DataType


@dataclass(frozen=True)
class Drift:
    """How a source's schema is followed.

    Attributes:
        notes: what the ledger is told, a change each.
        alterations: what is done to raw, in this order.
        routes: where each of the source's columns goes.
        before: what to remember before raw is altered.
        after: what to remember with the batch.
    """

    notes: tuple[str, ...]
    alterations: tuple[Alteration, ...]
    routes: tuple[Route, ...]
    before: SourceSchema
    after: SourceSchema


def unchanged(source: t.StructType) -> Drift:
    """That of a table which is not there yet: raw is made like the source."""
    routes = (Route(f.name, bare(f.dataType), f.name, kept_as(f.dataType)) for f in source.fields)
    schema = SourceSchema.of(source)
    return Drift((), (), tuple(routes), schema, schema)


def drift(
    raw: t.StructType, remembered: SourceSchema | None, source: t.StructType, terms: Terms
) -> Drift:
    """What brings raw up to the source. Names are compared as Spark does, without case.

    Args:
        raw: all columns of the raw table.
        remembered: the source at the last batch; None where nothing was remembered.

    Raises:
        TableError: where a key's or the cursor's column cannot be followed, or may not be; where
            a variant column would have the name of another one; where the table is frozen.
    """
    before = remembered or SourceSchema.derived(raw, source)
    columns = {f.name.lower(): t.StructField(f.name, bare(f.dataType)) for f in raw.fields}
    arriving = {f.name.lower(): t.StructField(f.name, bare(f.dataType)) for f in source.fields}
    variants = {name.lower(): name for name in before.variants if name.lower() in columns}
    check_key_and_cursor(columns, before, arriving, terms)
    routes: list[Route] = []
    for name, field in arriving.items():
        if name in variants:
            raise _taken(field.name, variants[name], terms)
        route = _base(columns.get(name), field) or _variant(
            columns[name].name, field, columns, variants, arriving, terms
        )
        if route.raw.lower() != name:
            variants[route.raw.lower()] = route.raw
        routes.append(route)
    notes = tuple(_notes(before, arriving, routes, variants, told_where=not terms.freeze))
    if notes and terms.freeze:
        raise TableError(
            f"the source's columns have changed: {'; '.join(notes)}",
            where=f"{terms.where}, schema_changes: freeze",
            remedy="Set schema_changes: evolve to take the change over, or undo it in the source "
            "or in a view of it",
        )
    gone = {*before.dropped, *before.columns} - set(arriving)
    return Drift(
        notes,
        tuple(itertools.chain.from_iterable(_alterations(columns, route) for route in routes)),
        tuple(routes),
        before=replace(before, variants=tuple(sorted(variants.values()))),
        after=SourceSchema.of(source, gone, variants.values()),
    )


def _base(column: t.StructField | None, field: t.StructField) -> Route | None:
    """The way into the column of the same name, where there is none yet or it can follow."""
    if column is None:
        return Route(field.name, field.dataType, field.name, kept_as(field.dataType))
    data_type = followed(column.dataType, field.dataType)
    if data_type is None:
        return None
    return Route(field.name, field.dataType, column.name, data_type)


def _variant(
    base: str,
    field: t.StructField,
    columns: Mapping[str, t.StructField],
    variants: Mapping[str, str],
    arriving: Mapping[str, t.StructField],
    terms: Terms,
) -> Route:
    """The way into a variant column: one that raw has and that can follow, or a new one.

    A name states a scalar type in full. Structs that do not go together are numbered, and so is a
    variant whose name belongs to a column that the source once had.
    """
    kept = kept_as(field.dataType)
    first = name = f"{base}__{spelled(kept)}"
    for number in itertools.count(2):
        found = columns.get(name.lower())
        if found is None:
            break
        data_type = followed(found.dataType, field.dataType)
        if name.lower() in variants and data_type is not None:
            return Route(field.name, field.dataType, found.name, data_type)
        name = f"{first}_{number}"
    for wanted in (first, name):
        if wanted.lower() in arriving:
            raise _taken(arriving[wanted.lower()].name, first, terms)
    return Route(field.name, field.dataType, name, kept)


def _base_of(variant: str) -> str:
    # No spelled type has two underscores in a row.
    return variant.rpartition("__")[0]


def _taken(column: str, variant: str, terms: Terms) -> TableError:
    return TableError(
        f"the column {column!r} has the name of the one in which raw keeps values of "
        f"{_base_of(variant)!r} that have another type",
        where=terms.where,
        remedy=f"Rename {column!r} in the source or in a view of it",
    )


def _alterations(columns: Mapping[str, t.StructField], route: Route) -> Iterator[Alteration]:
    column = columns.get(route.raw.lower())
    if column is None:
        yield Alteration((route.raw,), route.raw_type, adds=True)
    else:
        yield from _between(column.dataType, route.raw_type, (column.name,))


def _between(old: t.DataType, new: t.DataType, path: tuple[str, ...]) -> Iterator[Alteration]:
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        fields = {field.name: field for field in old.fields}
        for field in new.fields:
            if field.name in fields:
                yield from _between(
                    fields[field.name].dataType, field.dataType, (*path, field.name)
                )
            else:
                yield Alteration((*path, field.name), field.dataType, adds=True)
    elif isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        yield from _between(old.elementType, new.elementType, (*path, "element"))
    elif isinstance(old, t.MapType) and isinstance(new, t.MapType):
        yield from _between(old.valueType, new.valueType, (*path, "value"))
    elif old != new:
        yield Alteration(path, new, adds=False)


def _notes(
    before: SourceSchema,
    arriving: Mapping[str, t.StructField],
    routes: Sequence[Route],
    variants: Mapping[str, str],
    told_where: bool,
) -> Iterator[str]:
    for route in routes:
        name = route.source.lower()
        field, old = arriving[name], before.columns.get(name)
        where = f", in {route.raw}" if told_where else ""
        if old is None:
            verb = "re-added" if name in before.dropped else "added"
            aside = where if route.raw.lower() != name else ""
            yield f"{verb} {field.name} {_shown(field.dataType)}{aside}"
            continue
        if old.name != field.name:
            yield f"renamed {old.name} to {field.name}{where}"
        if any(_base_of(variant) == name for variant in variants):
            if old.dataType != field.dataType:
                types = f"{_shown(old.dataType)} to {_shown(field.dataType)}"
                yield f"changed {field.name} {types}{where}"
        else:
            yield from _told(old.dataType, field.dataType, field.name)
    for name, old in before.columns.items():
        if name not in arriving:
            yield f"dropped {old.name} {_shown(old.dataType)}"


def _told(old: t.DataType, new: t.DataType, path: str) -> Iterator[str]:
    """What changed inside a column that raw follows in place."""
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        before = {field.name.lower(): field for field in old.fields}
        for field in new.fields:
            there = before.pop(field.name.lower(), None)
            inner = f"{path}.{field.name}"
            if there is None:
                yield f"added {inner} {_shown(field.dataType)}"
                continue
            if there.name != field.name:
                yield f"renamed {path}.{there.name} to {field.name}"
            yield from _told(there.dataType, field.dataType, inner)
        for gone in before.values():
            yield f"dropped {path}.{gone.name} {_shown(gone.dataType)}"
    elif isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        yield from _told(old.elementType, new.elementType, f"{path}.element")
    elif isinstance(old, t.MapType) and isinstance(new, t.MapType):
        yield from _told(old.keyType, new.keyType, f"{path}.key")
        yield from _told(old.valueType, new.valueType, f"{path}.value")
    elif old != new:
        verb = "widened" if holds(kept_as(new), old) else "changed"
        yield f"{verb} {path} {_shown(old)} to {_shown(new)}"


def _shown(data_type: t.DataType) -> str:
    return data_type.simpleString()
