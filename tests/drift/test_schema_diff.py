"""How each schema change alters the raw table, and how the ledger describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loader.errors import TableError
from loader.lake.source_schema import SourceSchema
from tests.drift.schemas import TERMS, Table, of, schema

KEYED = replace(TERMS, key=("id",), cursor="c")

# the column's type; its new type; the ledger's note; the clauses of ALTER TABLE
IN_PLACE: list[tuple[Any, Any, str, list[str]]] = [
    ("int", "bigint", "widened x int to bigint", ["alter column `x` type bigint"]),
    ("float", "double", "widened x float to double", ["alter column `x` type double"]),
    (
        (10, 2),
        (12, 2),
        "widened x decimal(10,2) to decimal(12,2)",
        ["alter column `x` type decimal(12,2)"],
    ),
    ("smallint", "int", "widened x smallint to int", []),
    ("tinyint", "smallint", "widened x tinyint to smallint", []),
    ("smallint", "bigint", "widened x smallint to bigint", ["alter column `x` type bigint"]),
    ("bigint", "int", "changed x bigint to int", []),
    ("int", "smallint", "changed x int to smallint", []),
    ("smallint", "tinyint", "changed x smallint to tinyint", []),
    ("double", "float", "changed x double to float", []),
    ((12, 2), (10, 2), "changed x decimal(12,2) to decimal(10,2)", []),
    ((12, 2), (11, 1), "changed x decimal(12,2) to decimal(11,1)", []),
    ((12, 2), "int", "changed x decimal(12,2) to int", []),
    ((21, 2), "bigint", "changed x decimal(21,2) to bigint", []),
    (
        {"a": "int"},
        {"a": "bigint"},
        "widened x.a int to bigint",
        ["alter column `x`.`a` type bigint"],
    ),
    (
        {"a": "int"},
        {"b": {"c": "date"}, "a": "int"},
        "added x.b struct<c:date>",
        ["add column `x`.`b` struct<`c`: date>"],
    ),
    ({"a": "int", "b": "int"}, {"a": "int"}, "dropped x.b int", []),
    ({"a": "int"}, {"A": "int"}, "renamed x.a to A", []),
    ({"a": "int", "b": "int"}, {"b": "int", "a": "int"}, "", []),
    (
        [{"a": "int"}],
        [{"a": "int", "b": "string"}],
        "added x.element.b string",
        ["add column `x`.`element`.`b` string"],
    ),
    (
        ["int"],
        ["bigint"],
        "widened x.element int to bigint",
        ["alter column `x`.`element` type bigint"],
    ),
    (
        {"map": {"a": "int"}},
        {"map": {"a": "int", "b c": "string"}},
        "added x.value.b c string",
        ["add column `x`.`value`.`b c` string"],
    ),
    (
        {"map": "float"},
        {"map": "double"},
        "widened x.value float to double",
        ["alter column `x`.`value` type double"],
    ),
    ("varchar", "string", "", []),
    ("char", "varchar", "", []),
]

# the column's type; its new type; the type-specific column; its type
VARIANTS: list[tuple[Any, Any, str, str]] = [
    ("int", (20, 0), "x__decimal_20_0", "decimal(20,0)"),
    ("bigint", (20, 0), "x__decimal_20_0", "decimal(20,0)"),
    ("int", "double", "x__double", "double"),
    ("double", "int", "x__int", "int"),
    ("date", "timestamp", "x__timestamp", "timestamp"),
    ("date", "timestamp_ntz", "x__timestamp_ntz", "timestamp_ntz"),
    ("timestamp", "timestamp_ntz", "x__timestamp_ntz", "timestamp_ntz"),
    ("string", "int", "x__int", "int"),
    ("string", "smallint", "x__int", "int"),
    ("int", "string", "x__string", "string"),
    ("int", "varchar", "x__string", "string"),
    ((10, 2), (10, 3), "x__decimal_10_3", "decimal(10,3)"),
    ((10, 2), (12, 1), "x__decimal_12_1", "decimal(12,1)"),
    ((12, 3), "int", "x__int", "int"),
    ("boolean", "int", "x__int", "int"),
    ("string", ["string"], "x__array_string", "array<string>"),
    (["int"], ["string"], "x__array_string", "array<string>"),
    ("string", {"a": "int"}, "x__struct", "struct<a:int>"),
    ({"a": "int"}, {"a": "string"}, "x__struct", "struct<a:string>"),
    ({"a": "int"}, "string", "x__string", "string"),
    ({"map": "int"}, {"map": "string"}, "x__map_string_string", "map<string,string>"),
    ("string", [{"a": (5, 2)}], "x__array_struct", "array<struct<a:decimal(5,2)>>"),
]


def _changed(old: Any, new: Any) -> tuple[Table, Table, Any]:
    before = Table.first(schema({"id": "int", "x": old}))
    after, found = before.synced(schema({"id": "int", "x": new}))
    return before, after, found


@pytest.mark.parametrize(("old", "new", "note", "clauses"), IN_PLACE)
def test_changes_that_alter_the_raw_table_in_place(
    old: Any, new: Any, note: str, clauses: list[str]
) -> None:
    before, after, found = _changed(old, new)
    assert "; ".join(found.notes) == note
    assert [alteration.sql for alteration in found.alterations] == clauses
    assert list(after.columns) == list(before.columns)
    assert [(route.source, route.raw) for route in found.mappings] == [("id", "id"), ("x", "x")]


@pytest.mark.parametrize(("old", "new", "variant", "kept"), VARIANTS)
def test_changes_that_need_a_type_specific_column(
    old: Any, new: Any, variant: str, kept: str
) -> None:
    before, after, found = _changed(old, new)
    assert after.columns == {**before.columns, variant: kept}
    assert found.mappings[1].raw == variant
    reported = f"changed x {_text(old)} to {_text(new)}, in {variant}"
    assert found.notes == (reported.replace("varchar(7)", "string"),)
    # and back: the column itself is filled again
    again, back = after.synced(schema({"id": "int", "x": old}))
    assert (again.columns, back.mappings[1].raw, back.alterations) == (after.columns, "x", ())
    assert back.notes == (
        f"changed x {_text(new)} to {_text(old)}, in x".replace("varchar(7)", "string"),
    )
    # and once more: into the existing type-specific column
    once_more, _ = again.synced(schema({"id": "int", "x": new}))
    assert once_more.columns == after.columns


def _text(written: Any) -> str:
    return of(written).simpleString()


def test_columns_added_dropped_re_added_renamed_and_reordered() -> None:
    table = Table.first(schema({"id": "int", "a": "int"}))
    reported = []
    for columns in (
        {"id": "int", "a": "int", "b": "string"},
        {"id": "int", "b": "string"},
        {"b": "string", "id": "int"},
        {"b": "string", "id": "int", "a": "int"},
        {"b": "string", "id": "int"},
        {"b": "string", "id": "int", "a": "date"},
        {"b2": "string", "id": "int", "a": "date"},
        {"B2": "string", "id": "int", "a": "date"},
        {"b2": "string", "id": "int", "a": "date"},
    ):
        table, found = table.synced(schema(columns))
        reported.append("; ".join(found.notes))
    assert reported == [
        "added b string",
        "dropped a int",
        "",
        "re-added a int",
        "dropped a int",
        "re-added a date, in a__date",
        "added b2 string; dropped b string",
        "renamed b2 to B2, in b2",
        "renamed B2 to b2, in b2",
    ]
    assert table.columns == {
        "id": "int",
        "a": "int",
        "b": "string",
        "a__date": "date",
        "b2": "string",
    }


def test_incompatible_structs_are_numbered_and_compatible_ones_grow() -> None:
    table = Table.first(schema({"x": "int"}))
    for columns in ({"a": "int"}, {"a": "bigint", "b": "int"}, {"a": "string"}, {"a": "int"}):
        table, found = table.synced(schema({"x": columns}))
    assert table.columns == {
        "x": "int",
        "x__struct": "struct<a:bigint,b:int>",
        "x__struct_2": "struct<a:string>",
    }
    assert found.mappings[0].raw == "x__struct"


@pytest.mark.parametrize("order", ["variant first", "column first", "at once"])
def test_a_type_specific_column_whose_name_is_taken_is_an_error(order: str) -> None:
    table = Table.first(schema({"x": "int"}))
    steps = {
        "variant first": [{"x": "string"}, {"x": "string", "X__string": "date"}],
        "column first": [{"x": "int", "X__string": "date"}, {"x": "string", "X__string": "date"}],
        "at once": [{"x": "string", "X__string": "date"}],
    }[order]
    for columns in steps[:-1]:
        table, _ = table.synced(schema(columns))
    with pytest.raises(TableError) as refused:
        table.synced(schema(steps[-1]))
    assert str(refused.value) == (
        "table shop.t: the column 'X__string' has the name of the raw column for values of 'x' "
        "that have another type. Rename 'X__string' in the source or in a view of it"
    )


def test_a_type_specific_column_with_the_name_of_a_dropped_column_is_numbered() -> None:
    table = Table.first(schema({"x": "int", "x__string": "string"}))
    table, found = table.synced(schema({"x": "string"}))
    assert found.notes == (
        "changed x int to string, in x__string_2",
        "dropped x__string string",
    )
    assert table.drift(schema({"x": "string"})).mappings == found.mappings
    back, found = table.synced(schema({"x": "string", "x__string": "string"}))
    assert (found.notes, back.columns) == (("re-added x__string string",), table.columns)


def test_a_type_specific_column_of_a_crashed_run_is_no_source_column() -> None:
    table = Table.first(schema({"x": "int"}))
    crashed = table.prepared(table.drift(schema({"x": "string"})))
    for columns, reported in (
        ({"x": "string"}, ("changed x int to string, in x__string",)),
        ({"x": "int"}, ()),
    ):
        _, found = crashed.synced(schema(columns))
        assert found.notes == reported


def test_freeze_names_every_change_and_the_remedy() -> None:
    table = Table.first(schema({"id": "int", "a": "int", "c": "int"}))
    frozen = replace(TERMS, freeze=True)
    reordered = schema({"c": "int", "a": "int", "id": "int"})
    assert table.drift(reordered, frozen).notes == ()
    with pytest.raises(TableError) as refused:
        table.drift(schema({"id": "int", "a": "string", "new": "date"}), frozen)
    assert str(refused.value) == (
        "table shop.t, schema_changes: freeze: the source's columns have changed: "
        "changed a int to string; added new date; dropped c int. Set "
        "schema_changes: evolve to accept the change, or undo it in the source or in a view of it"
    )


@pytest.mark.parametrize(
    ("column", "old", "new", "way_out"),
    [
        ("id", "int", "bigint", "accept"),
        ("id", "bigint", "int", "accept"),
        ("id", (10, 0), (12, 0), "accept"),
        ("id", "int", "string", "again"),
        ("id", "int", (20, 0), "again"),
        ("c", "int", "bigint", "accept"),
        ("c", (10, 2), (12, 2), "accept"),
        ("c", (12, 0), "int", "again"),  # another type of cursor
        ("c", "date", "timestamp", "again"),
        ("c", "int", "string", "again"),
    ],
)
def test_types_of_key_and_cursor(column: str, old: Any, new: Any, way_out: str) -> None:
    columns: dict[str, Any] = {"id": "int", "c": "int", "x": "int", column: old}
    table = Table.first(schema(columns))
    source = schema({**columns, column: new})
    with pytest.raises(TableError) as refused:
        table.drift(source, KEYED)
    role = {"id": "key", "c": "cursor"}[column]
    assert refused.value.what == (
        f"the {role} column '{column}' changed its type from {_text(old)} to {_text(new)}"
    )
    accepting = replace(KEYED, accepts_key_change=True)
    if way_out == "accept":
        assert "`loader run --accept-key-change --select shop.t`" in refused.value.remedy
        accepted, found = table.synced(source, accepting)
        assert len(found.notes) == 1
        assert accepted.drift(source, KEYED).notes == ()
    else:
        assert "reload the table into another schema" in refused.value.remedy
        for policy in (accepting, replace(accepting, reads_everything=True)):
            with pytest.raises(TableError, match="reload the table"):
                table.drift(source, policy)


def test_a_key_that_is_new_asks_for_a_full_refresh() -> None:
    table = Table.first(schema({"id": "int", "c": "int"}))
    source = schema({"number": "int", "c": "int"})
    keyed = replace(KEYED, key=("number",))
    with pytest.raises(TableError, match="'number' is new: the rows in the raw table have no"):
        table.drift(source, keyed)
    notes = table.drift(source, replace(keyed, reads_everything=True)).notes
    assert notes == ("added number int", "dropped id int")


def test_a_cursor_cannot_be_in_a_type_specific_column() -> None:
    table, _ = Table.first(schema({"id": "int", "v": "int"})).synced(
        schema({"id": "int", "v": "date"})
    )
    with pytest.raises(TableError, match="the cursor column 'v' changed its type from int to date"):
        table.drift(schema({"id": "int", "v": "date"}), replace(KEYED, cursor="v"))


def test_without_a_stored_schema_changes_are_derived_from_the_columns() -> None:
    older = Table(Table.first(schema({"id": "smallint", "a": "int", "gone": "int"})).raw, None)
    source = schema({"ID": "smallint", "a": "string"})
    assert older.drift(schema({"id": "smallint", "a": "int", "gone": "int"})).notes == ()
    found = older.drift(source)
    assert found.notes == (
        "renamed id to ID, in id",
        "changed a int to string, in a__string",
        "dropped gone int",
    )
    assert older.prepared(found).drift(source).notes == found.notes
    assert older.published(found).drift(source).notes == ()


def test_a_stored_schema_is_read_as_it_was_written() -> None:
    columns = {"a b": "int", "ä": (10, 2), "s": [{"x": {"map": "timestamp_ntz"}}]}
    written = SourceSchema.of(schema(columns), dropped=["z"], variants=["a__string"])
    assert SourceSchema.parse(written.text, "") == written
    for text in ("", "[]", "{}", '{"columns": [{"name": "a", "type": "wrong"}]}'):
        with pytest.raises(TableError, match="not written by this loader"):
            SourceSchema.parse(text, "table t")
