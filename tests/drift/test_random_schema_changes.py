"""After any sequence of schema changes, the source's rows fit into the raw table."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from loader.lake.schema_evolution import Drift
from loader.lake.type_widening import bare, holds
from tests.drift.schemas import TYPES, Table

decimals = st.builds(
    lambda whole, scale: t.DecimalType(whole + scale, scale), st.integers(1, 20), st.integers(0, 6)
)
scalars = st.one_of(st.sampled_from(list(TYPES.values())), decimals)
# Few names, some in two cases, so that columns are dropped, re-added, renamed and swapped.
names = st.sampled_from(["id", "a", "A", "b", "B", "über", "a b", "x.y", "select", "1st", "b`q"])


def _structs(types: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    columns = st.lists(st.tuples(names, types), min_size=1, max_size=4)
    return st.builds(_struct, columns)


def _struct(columns: list[tuple[str, t.DataType]]) -> t.StructType:
    each = {name.lower(): t.StructField(name, data_type) for name, data_type in columns}
    return t.StructType(list(each.values()))


types = st.recursive(
    scalars,
    lambda inner: st.one_of(
        _structs(inner),
        st.builds(t.ArrayType, inner),
        st.builds(t.MapType, st.sampled_from([t.StringType(), t.IntegerType()]), inner),
    ),
    max_leaves=4,
)
schemas = st.one_of(_structs(scalars), _structs(types))


def _assert_fits(table: Table, source: t.StructType, found: Drift) -> None:
    raw = {field.name: field.dataType for field in table.raw.fields}
    assert len({name.lower() for name in raw}) == len(raw)
    assert [route.source for route in found.mappings] == source.names
    taken = [route.raw for route in found.mappings]
    assert len(set(taken)) == len(taken), "two columns go into one"
    for field, route in zip(source.fields, found.mappings, strict=True):
        assert raw[route.raw] == route.raw_type
        assert holds(route.raw_type, field.dataType)
        name = route.raw.lower()
        assert name == field.name.lower() or name.startswith(f"{field.name.lower()}__")


@settings(max_examples=400, deadline=None)
@given(st.lists(schemas, min_size=2, max_size=6), st.data())
def test_rows_fit_and_every_change_is_reported_once(
    sources: list[t.StructType], data: st.DataObject
) -> None:
    table = Table.first(sources[0])
    for before, source in itertools.pairwise(sources):
        found = table.drift(source)
        changed = {f.name: bare(f.dataType) for f in before.fields} != {
            f.name: bare(f.dataType) for f in source.fields
        }
        if not _has_nested_structs(before, source):
            assert bool(found.notes) == changed
        crashed = table.prepared(found)
        if data.draw(st.booleans(), "a crash before the batch was published"):
            again = crashed.drift(source)
            assert (again.notes, again.alterations) == (found.notes, ())
            assert crashed.published(again) == table.published(found)
        published = table.published(found)
        _assert_fits(published, source, found)
        for name, kept in table.columns.items():
            assert name in published.columns, f"{name} {kept} is gone"
        settled = published.drift(source)
        assert (settled.notes, settled.alterations) == ((), ())
        assert settled.mappings == found.mappings
        table = published


def _has_nested_structs(before: t.StructType, source: t.StructType) -> bool:
    """Returns whether there are nested structs, whose fields may change their order unreported."""
    return any("struct" in one.simpleString()[6:] for one in (before, source))


@settings(max_examples=200, deadline=None)
@given(schemas, schemas, schemas)
def test_a_run_that_crashed_on_another_change_loses_nothing(
    first: t.StructType, crashed_on: t.StructType, now: t.StructType
) -> None:
    table = Table.first(first)
    crashed = table.prepared(table.drift(crashed_on))
    found = crashed.drift(now)
    assert bool(found.notes) == bool(table.drift(now).notes)
    _assert_fits(crashed.published(found), now, found)
