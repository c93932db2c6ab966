"""`tables` and `skip_tables`: which tables the names and patterns of a source select."""

from __future__ import annotations

import time

from loader.sources.interface import TableRef
from loader.sources.jdbc.options import JdbcTableOptions
from loader.spec.plugins import SourceSpec
from loader.sync.table_selection import find_unused_options, match_tables

REFS = [TableRef(name) for name in ("*", "hr_*", "hr_pay", "orders", "Orders2", "or?ers")]


def _select_tables(tables: list[str], skip: list[str] | None = None) -> list[str]:
    spec = SourceSpec(
        name="shop", path="jdbc", tables=tables, skip_tables=skip or [], destinations=["lake"]
    )
    found, errors = match_tables(spec, REFS)
    return [*(ref.name for ref in found), *errors]


def test_a_pattern_stays_one_even_if_a_table_has_that_name() -> None:
    assert _select_tables(["*"]) == [ref.name for ref in REFS]
    assert _select_tables(["*"], ["hr_*"]) == ["*", "orders", "Orders2", "or?ers"]
    assert _select_tables(["or?ers"]) == ["orders", "or?ers"]


def test_what_is_skipped_does_not_depend_on_other_tables() -> None:
    spec = SourceSpec(
        name="shop",
        path="jdbc",
        tables=["*", "Sales.Orders"],
        skip_tables=["Secrets", "hr_*", "orders", "a.b"],
        destinations=["lake"],
    )

    def left(*names: str) -> list[str]:
        return [ref.name for ref in match_tables(spec, [TableRef(name) for name in names])[0]]

    assert left("secrets", "x") == ["x"]
    # even if somebody adds a table whose name differs only in case
    assert left("secrets", "SECRETS", "Secrets", "x") == ["x"]
    # or a schema that comes first in the search path, so that names include the schema
    assert left("public.secrets", "secrets", "public.hr_pay", "x") == ["x"]
    assert left("orders", "public.orders", "sales.orders") == ["sales.orders"]
    assert left("a.b", "b", "c.b") == ["b", "c.b"]


def test_an_exact_name_wins_over_others_that_differ_in_case() -> None:
    spec = SourceSpec(name="shop", path="jdbc", tables=["Orders"], destinations=["lake"])
    refs = [TableRef("orders"), TableRef("ORDERS")]
    assert match_tables(spec, refs) == (refs, {})
    assert match_tables(spec, [*refs, TableRef("Orders")]) == ([TableRef("Orders")], {})


def test_brackets_escape_wildcards() -> None:
    assert _select_tables(["[*]", "or[?]ers", "ORDERS2"]) == ["*", "or?ers", "Orders2"]
    assert _select_tables(["hr_[*]", "missing"]) == ["hr_*", "missing"]


def test_many_names_are_matched_quickly() -> None:
    refs = [TableRef(f"sales.table_{number:06d}") for number in range(20_000)]
    names = [ref.name.upper() for ref in refs[:5000]]
    misspelt = [f"sales.tabel_{number:06d}" for number in range(20)]
    spec = SourceSpec(name="shop", path="jdbc", tables=[*names, *misspelt], destinations=["lake"])
    began = time.process_time()
    found, errors = match_tables(spec, refs)
    assert time.process_time() - began < 4  # 25 seconds without an index
    assert found == refs[:5000]
    assert "Did you mean `sales.table_0" in errors[misspelt[0]].remedy


def test_a_query_that_is_not_selected_is_an_error() -> None:
    options = {"Sales": JdbcTableOptions(query="select 1 as id")}

    def unused(tables: list[str], skip: list[str]) -> dict[str, str]:
        spec = SourceSpec(
            name="shop", path="jdbc", tables=tables, skip_tables=skip, destinations=["lake"]
        )
        refs = [TableRef("orders"), TableRef("Sales")]
        return {name: str(e) for name, e in find_unused_options(spec, options, refs).items()}

    expected = (
        "source shop, table_options: 'Sales' has a query, but `tables` does not select it. Add "
        "'Sales' to `tables`, or to `skip_tables` if it should not be loaded"
    )
    assert unused(["orders"], []) == {"Sales": expected}
    assert unused(["orders"], ["sales"]) == {}
    assert unused(["orders", "sales"], []) == {}
    assert unused(["*"], []) == {}
