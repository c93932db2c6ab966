"""Plans the ALTERs that adapt the raw table to the source's schema, and the notes for the ledger.

Notes describe how the source's schema has changed since the last batch. ALTERs remove the
differences between the raw table's columns and the source's columns. If a run crashes between an
ALTER and the publication of its batch, the next run plans the same notes again but no ALTERs.

A column of the raw table never changes its meaning. Values that the column's type cannot store
(:mod:`loader.lake.type_widening`) are stored in a type-specific column ``<name>__<type>``. The
column itself is then null.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.source_schema import SourceSchema
from loader.lake.type_widening import bare, ddl, find_wider_type, is_wider, raw_type, spell_type
from loader.rows.bookkeeping import COLUMNS
from loader.rows.cursor import CursorType
from loader.rows.version_order import quote_name


@dataclass(frozen=True)
class EvolutionPolicy:
    """The schema changes that are allowed for one table.

    Attributes:
        where: the table's name in errors.
        select: the table's name on the command line.
        freeze: whether to reject all changes.
        accepts_key_change: whether key and cursor columns may be widened.
        reads_everything: whether all rows are reread, so that new columns have values in all rows.
        source: the name of the source if sources share the table; else empty.
        excluded: the source's columns that the spec excludes.
    """

    where: str
    select: str = ""
    key: Sequence[str] = ()
    cursor: str | None = None
    freeze: bool = False
    accepts_key_change: bool = False
    reads_everything: bool = False
    source: str = ""
    excluded: Sequence[str] = ()


def check_key_and_cursor(
    columns: Mapping[str, t.StructField],
    before: SourceSchema,
    arriving: Mapping[str, t.StructField],
    policy: EvolutionPolicy,
) -> None:
    """Raises a TableError if new keys or cursors could not be compared with those in the raw table.

    A type change that leaves them comparable is also rejected unless the policy accepts it.

    Args:
        columns, arriving: the columns of the raw table and the current columns of the source, with
            bare types (:func:`bare`), keyed by lower-case name.
        before: the source's schema at the last batch.
    """
    cursor = policy.cursor.lower() if policy.cursor else None
    key = {name.lower() for name in policy.key}
    for name in [*sorted(key), *({cursor} - key if cursor else ())]:
        column, old, new = columns.get(name), before.columns.get(name), arriving[name]
        if name in key and old is None and not policy.reads_everything:
            raise _new_key(new.name, policy)
        previous = old or column
        if previous is None:
            continue
        follows = column is None or find_wider_type(column.dataType, new.dataType) is not None
        if name == cursor:
            follows &= CursorType.of(previous.dataType) is CursorType.of(new.dataType)
        changed = old is not None and old.dataType != new.dataType
        if follows and (policy.accepts_key_change or not changed):
            continue
        shown = previous if changed or column is None else column
        role = "key" if name in key else "cursor"
        raise TableError(
            f"the {role} column {new.name!r} changed its type from "
            f"{shown.dataType.simpleString()} to {new.dataType.simpleString()}",
            where=policy.where,
            remedy=f"Accept it with `loader run --accept-key-change --select {policy.select}`: "
            "the raw table can be changed in place"
            if follows
            else "The raw table cannot be changed in place: undo the change with column_types or a "
            "view of the source, or reload the table into another schema or under another name",
        )


def _new_key(name: str, policy: EvolutionPolicy) -> TableError:
    return TableError(
        f"the key column {name!r} is new: the rows in the raw table have no value for it",
        where=policy.where,
        remedy="If it was renamed, give it its old name in a view of the source. Otherwise, read "
        f"everything again with `loader run --full-refresh --select {policy.select}`, and set the "
        "new unique_key and delete_stale: true in the models",
    )


@dataclass(frozen=True)
class Alteration:
    """One change to the raw table: adds a column or a nested field, or widens the type of one.

    Attributes:
        path: the column's name, followed by the names of nested fields. `element` means the
            elements of an array, and `value` means the values of a map.
        adds: whether the column or field is added; otherwise its type is widened.
    """

    path: tuple[str, ...]
    type: t.DataType
    adds: bool

    @property
    def sql(self) -> str:
        name = ".".join(quote_name(part) for part in self.path)
        if self.adds:
            return f"add column {name} {ddl(self.type)}"
        return f"alter column {name} type {ddl(self.type)}"


@dataclass(frozen=True)
class ColumnMapping:
    """Maps a source column to the raw column that stores its values.

    Attributes:
        source, source_type: the name and type in the source.
        raw, raw_type: the name and type in the raw table after the ALTERs.
    """

    source: str
    source_type: t.DataType
    raw: str
    raw_type: t.DataType


@dataclass(frozen=True)
class Drift:
    """A plan that adapts the raw table to a source's schema.

    Attributes:
        notes: a description of each change, for the ledger.
        alterations: the changes to the raw table, in the order in which to make them.
        mappings: the raw column for each source column.
        before: the source schema to store before the ALTERs.
        after: the source schema to store with the batch.
        added: columns that the source lacked at the last batch, including renamed columns.
        included: those added columns that the source already had but the spec had excluded.
        excluded: columns of the last batch that the source still has but the spec now excludes.
        raw: the raw table's columns at the time of planning; None if there is no table.
    """

    notes: tuple[str, ...]
    alterations: tuple[Alteration, ...]
    mappings: tuple[ColumnMapping, ...]
    before: SourceSchema
    after: SourceSchema
    added: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    raw: t.StructType | None = None

    @property
    def idle(self) -> SourceSchema:
        """The source schema to store if no row is appended.

        It still records that a column was excluded. If the spec includes the column again, the
        loader needs this record in order to fill the column.
        """
        pending = set(self.before.excluded) & set(self.after.columns)
        return self.before.exclude({*self.after.excluded, *pending})

    def defer_added(self) -> Drift:
        """Returns a copy for a batch that may lack rows with values in the added columns.

        The next normal sync still treats these columns as added or included.
        """
        names = {name.lower() for name in self.added}
        fields = [field for name, field in self.after.columns.items() if name not in names]
        deferred = {
            f"{verb} {n} " for verb in ("added", "re-added", "included") for n in self.added
        }
        return replace(
            self,
            notes=tuple(note for note in self.notes if not note.startswith(tuple(deferred))),
            after=SourceSchema.of(
                t.StructType(fields),
                {*self.after.dropped, *(names & {*self.before.dropped})},
                self.after.variants,
                {*self.after.excluded, *(name.lower() for name in self.included)},
            ),
        )

    @property
    def idle_notes(self) -> tuple[str, ...]:
        """The notes that are written to the ledger even if no row was appended."""
        return tuple(note for note in self.notes if note.startswith("excluded "))

    @property
    def lost(self) -> tuple[str, ...]:
        """Columns that another program dropped. They are re-added, without their old values."""
        return tuple(
            change.path[0]
            for change in self.alterations
            if change.adds
            and len(change.path) == 1
            and change.path[0].lower() in self.before.columns
        )


def plan_creation(source: t.StructType, excluded: Sequence[str] = ()) -> Drift:
    """Returns the plan for a missing raw table, which is created with the source's columns."""
    mappings = (
        ColumnMapping(f.name, bare(f.dataType), f.name, raw_type(f.dataType)) for f in source.fields
    )
    schema = SourceSchema.of(source, excluded=excluded)
    return Drift((), (), tuple(mappings), schema, schema)


def derive_drift(
    raw: t.StructType,
    remembered: SourceSchema | None,
    source: t.StructType,
    policy: EvolutionPolicy,
) -> Drift:
    """Plans the changes that adapt the raw table to the source.

    Names are case-insensitive, as in Spark.

    Args:
        remembered: the source's schema at the last batch; None if none is stored.

    Raises:
        TableError: if a change to a key or cursor column is rejected, if a type-specific column
            would have the name of another column, or if the columns of a frozen table have changed.
    """
    before = remembered or SourceSchema.derive(raw, source)
    columns = {f.name.lower(): t.StructField(f.name, bare(f.dataType)) for f in raw.fields}
    arriving = {f.name.lower(): t.StructField(f.name, bare(f.dataType)) for f in source.fields}
    variants = {name.lower(): name for name in before.variants if name.lower() in columns}
    check_key_and_cursor(columns, before, arriving, policy)
    mappings: list[ColumnMapping] = []
    for name, field in arriving.items():
        if name in variants:
            raise _name_taken(field.name, variants[name], policy)
        mapping = _base(columns.get(name), field) or _variant(
            columns[name].name, field, columns, variants, arriving, policy
        )
        if mapping.raw.lower() != name:
            variants[mapping.raw.lower()] = mapping.raw
        mappings.append(mapping)
    excluded = {name.lower() for name in policy.excluded}
    notes = tuple(
        _notes(before, arriving, mappings, variants, excluded, with_target=not policy.freeze)
    )
    if notes and policy.freeze:
        raise TableError(
            f"the source's columns have changed: {'; '.join(notes)}",
            where=f"{policy.where}, schema_changes: freeze",
            remedy="Set schema_changes: evolve to accept the change, or undo it in the source "
            "or in a view of it",
        )
    dropped = {*before.dropped, *before.columns} - set(arriving)
    return Drift(
        notes,
        tuple(
            itertools.chain.from_iterable(_alterations(columns, mapping) for mapping in mappings)
        ),
        tuple(mappings),
        before=replace(before, variants=tuple(sorted(variants.values()))),
        after=SourceSchema.of(source, dropped, variants.values(), excluded),
        added=tuple(field.name for name, field in arriving.items() if name not in before.columns),
        included=tuple(f.name for name, f in arriving.items() if name in before.excluded),
        excluded=tuple(f.name for name, f in before.columns.items() if name in excluded),
        raw=raw,
    )


def _base(column: t.StructField | None, field: t.StructField) -> ColumnMapping | None:
    if column is None:
        return ColumnMapping(field.name, field.dataType, field.name, raw_type(field.dataType))
    data_type = find_wider_type(column.dataType, field.dataType)
    if data_type is None:
        return None
    return ColumnMapping(field.name, field.dataType, column.name, data_type)


def _variant(
    base: str,
    field: t.StructField,
    columns: Mapping[str, t.StructField],
    variants: Mapping[str, str],
    arriving: Mapping[str, t.StructField],
    policy: EvolutionPolicy,
) -> ColumnMapping:
    """Returns a mapping to a type-specific column that fits, either an existing or a new one.

    The column's name contains the complete scalar type. A number is appended if the name already
    belongs to an incompatible struct or to a former column of the source.
    """
    variant_type = raw_type(field.dataType)
    first = name = f"{base}__{spell_type(variant_type)}"
    for number in itertools.count(2):
        column = columns.get(name.lower())
        if column is None:
            break
        data_type = find_wider_type(column.dataType, field.dataType)
        if name.lower() in variants and data_type is not None:
            return ColumnMapping(field.name, field.dataType, column.name, data_type)
        name = f"{first}_{number}"
    for wanted in (first, name):
        if wanted.lower() in arriving:
            raise _name_taken(arriving[wanted.lower()].name, first, policy)
    return ColumnMapping(field.name, field.dataType, name, variant_type)


def _base_of(variant: str) -> str:
    # Type names contain no double underscores.
    return variant.rpartition("__")[0]


def _name_taken(column: str, variant: str, policy: EvolutionPolicy) -> TableError:
    return TableError(
        f"the column {column!r} has the name of the raw column for values of "
        f"{_base_of(variant)!r} that have another type",
        where=policy.where,
        remedy=f"Rename {column!r} in the source or in a view of it",
    )


def _alterations(
    columns: Mapping[str, t.StructField], mapping: ColumnMapping
) -> Iterator[Alteration]:
    column = columns.get(mapping.raw.lower())
    if column is None:
        yield Alteration((mapping.raw,), mapping.raw_type, adds=True)
    else:
        yield from _between(column.dataType, mapping.raw_type, (column.name,))


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
    mappings: Sequence[ColumnMapping],
    variants: Mapping[str, str],
    excluded: Collection[str],
    with_target: bool,
) -> Iterator[str]:
    """Yields a note for each change to the source's columns.

    Args:
        with_target: whether a note includes the name of the raw column.
    """
    for mapping in mappings:
        name = mapping.source.lower()
        field, old = arriving[name], before.columns.get(name)
        target = f", in {mapping.raw}" if with_target else ""
        if old is None:
            verb = "re-added" if name in before.dropped else "added"
            verb = "included" if name in before.excluded else verb
            suffix = target if mapping.raw.lower() != name else ""
            yield f"{verb} {field.name} {field.dataType.simpleString()}{suffix}"
            continue
        if old.name != field.name:
            yield f"renamed {old.name} to {field.name}{target}"
        if any(_base_of(variant) == name for variant in variants):
            if old.dataType != field.dataType:
                types = f"{old.dataType.simpleString()} to {field.dataType.simpleString()}"
                yield f"changed {field.name} {types}{target}"
        else:
            yield from _describe_changes(old.dataType, field.dataType, field.name)
    for name, old in before.columns.items():
        if name not in arriving:
            verb = "excluded" if name in excluded else "dropped"
            yield f"{verb} {old.name} {old.dataType.simpleString()}"


def _describe_changes(old: t.DataType, new: t.DataType, path: str) -> Iterator[str]:
    """Yields a note for each change to a column's type or nested fields."""
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        before = {field.name.lower(): field for field in old.fields}
        for field in new.fields:
            old_field = before.pop(field.name.lower(), None)
            inner = f"{path}.{field.name}"
            if old_field is None:
                yield f"added {inner} {field.dataType.simpleString()}"
                continue
            if old_field.name != field.name:
                yield f"renamed {path}.{old_field.name} to {field.name}"
            yield from _describe_changes(old_field.dataType, field.dataType, inner)
        for dropped in before.values():
            yield f"dropped {path}.{dropped.name} {dropped.dataType.simpleString()}"
    elif isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        yield from _describe_changes(old.elementType, new.elementType, f"{path}.element")
    elif isinstance(old, t.MapType) and isinstance(new, t.MapType):
        yield from _describe_changes(old.keyType, new.keyType, f"{path}.key")
        yield from _describe_changes(old.valueType, new.valueType, f"{path}.value")
    elif old != new:
        verb = "widened" if is_wider(new, old) else "changed"
        yield f"{verb} {path} {old.simpleString()} to {new.simpleString()}"


def conform(rows: DataFrame, mappings: Sequence[ColumnMapping], where: str) -> DataFrame:
    """Casts and renames the source's columns to match the raw table's columns.

    The ``_cq_`` columns stay unchanged. Raises a TableError if a column's type differs from the
    type that the source described earlier.
    """
    fields = {field.name.lower(): field for field in rows.schema.fields}
    loader_columns = [name for name in rows.columns if name.lower() in COLUMNS]
    columns = []
    is_unchanged = [mapping.raw for mapping in mappings] + loader_columns == rows.columns
    for mapping in mappings:
        arrived = bare(fields[mapping.source.lower()].dataType)
        if arrived != mapping.source_type:
            # A cast to the expected type could truncate the values.
            raise TableError(
                f"the column {mapping.source!r} changed its type while the table was read, from "
                f"{mapping.source_type.simpleString()} to {arrived.simpleString()}",
                where=where,
                remedy="No row of this batch is visible; run again",
            )
        is_unchanged = is_unchanged and mapping.source_type == mapping.raw_type
        value = _conform_value(
            f.col(quote_name(mapping.source)), mapping.source_type, mapping.raw_type
        )
        columns.append(value.alias(mapping.raw))
    if is_unchanged:
        return rows
    return rows.select(*columns, *(f.col(quote_name(name)) for name in loader_columns))


def _conform_value(value: Column, source: t.DataType, raw: t.DataType) -> Column:
    if source == raw:
        return value
    if isinstance(source, t.StructType) and isinstance(raw, t.StructType):
        source_fields = {field.name.lower(): field for field in source.fields}
        fields = []
        for field in raw.fields:
            source_field = source_fields.get(field.name.lower())
            part = (
                f.lit(None).cast(field.dataType)
                if source_field is None
                else _conform_value(
                    value.getField(source_field.name), source_field.dataType, field.dataType
                )
            )
            fields.append(part.alias(field.name))
        return f.when(value.isNotNull(), f.struct(*fields))
    if isinstance(source, t.ArrayType) and isinstance(raw, t.ArrayType):
        from_type, to_type = source.elementType, raw.elementType
        return f.transform(value, lambda element: _conform_value(element, from_type, to_type))
    if isinstance(source, t.MapType) and isinstance(raw, t.MapType):
        key, raw_key = source.keyType, raw.keyType
        from_type, to_type = source.valueType, raw.valueType
        if key != raw_key:
            value = f.transform_keys(value, lambda name, _: _conform_value(name, key, raw_key))
        return f.transform_values(value, lambda _, item: _conform_value(item, from_type, to_type))
    return value.cast(raw)
