"""`table_options`: precedence of names and wildcards, lists of cursors, and column types."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from pyspark.sql import types as t

from loader.sources.file.options import FileOptions, FileTableOptions
from loader.sources.interface import SourceTable, TableRef
from loader.sources.jdbc.options import JdbcTableOptions
from loader.spec.options import TableOptions, options_for
from loader.sync.table_plan import NoCursorError, plan_table


def test_names_override_wildcards_and_later_wildcards_earlier_ones() -> None:
    reported = {
        "Orders": TableOptions(lookback="10 minutes"),
        "*": TableOptions(cursor_field=["updated_at", "xmin"], null_cursor="fail"),
        "o*": TableOptions(null_cursor="exclude", lookback="1 day"),
    }
    orders = options_for(reported, "orders", TableOptions())
    assert orders.lookback is not None
    assert (orders.lookback.text, orders.null_cursor) == ("10 minutes", "exclude")
    assert orders.cursor_field == ("updated_at", "xmin")
    assert options_for(reported, "items", TableOptions()) == reported["*"]
    assert options_for({"items": reported["*"]}, "orders", TableOptions()) == TableOptions()


def test_the_first_cursor_that_a_table_has_is_chosen() -> None:
    several = TableOptions(cursor_field=["updated_at", "Modified", "xmin"])
    assert several.choose_cursor(["id", "modified", "UPDATED_AT"]) == "updated_at"
    assert several.choose_cursor(["id", "modified"]) == "Modified"
    assert several.choose_cursor(["id"]) is None
    # a single one is not a choice: if the table lacks it, that is an error
    assert TableOptions(cursor_field="updatd_at").choose_cursor(["id"]) == "updatd_at"
    with pytest.raises(ValidationError, match="'a' appears twice"):
        TableOptions(cursor_field=["a", "a"])


def test_tables_without_a_cursor_are_named_once_with_the_ways_out() -> None:
    errors = {}
    for name, column in (("a", "updated_at"), ("b", "updated_at"), ("c", "changed"), ("d", "x")):
        type_ = t.StringType() if column == "x" else t.TimestampType()
        table = SourceTable(TableRef(name), t.StructType([t.StructField(column, type_)]))
        with pytest.raises(NoCursorError) as found:
            plan_table("shop", table, TableOptions(cursor_field=["y", "z"]))
        errors[name] = found.value
    together = NoCursorError.of_all(errors, "shop", "xmin")
    assert together.what == "4 tables have none of the cursors in their options: a, b, c, d"
    assert '"*": {cursor_field: [updated_at, changed, xmin]}' in together.remedy
    many = NoCursorError.of_all({f"t{n}": errors["d"] for n in range(30)}, "shop", "")
    assert many.what.endswith("t19 and 10 more")


def test_a_path_is_for_one_table() -> None:
    with pytest.raises(
        ValidationError, match="matches several tables, but a path defines one table"
    ):
        FileOptions(path=".", format="csv", table_options={"a*": {"path": "b"}})


def test_column_types_are_an_option_of_their_own() -> None:
    """All connectors have `column_types`. `columns` selects columns and refuses types."""
    reported = TableOptions(column_types={"a": " Decimal( 9,2 )", "b": "LONG", "c": "text"})
    assert reported.column_types == {"a": "decimal(9,2)", "b": "bigint", "c": "string"}
    for text in (
        "strin",
        "decimal(39, 2)",
        "decimal(2, 3)",
        "decimal(0,0)",
        "decimal(٣,٢)",
        "decimal",
        "array<int>",
    ):
        with pytest.raises(ValidationError, match="is not a valid"):
            TableOptions(column_types={"a": text})
    for model in (TableOptions, FileTableOptions, JdbcTableOptions):
        for given in ({"a": "int"}, "a int, b string"):
            with pytest.raises(ValidationError, match="cannot set the types of columns") as found:
                model(columns=given)
            [error] = found.value.errors()
            assert "`columns` cannot set the types of columns" in error["msg"]
    assert FileTableOptions(column_types="a int, b array<int>").ddl == "a int, b array<int>"
