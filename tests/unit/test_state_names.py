"""State commands accept a table's name without its source if the name is unambiguous."""

from __future__ import annotations

from typing import Any

import pytest

from loader.cli.state import find_key
from loader.errors import SpecError
from loader.spec.plugins import SourceSpec
from loader.state import StateRow
from loader.sync.status_readers import StatusReaders
from loader.sync.table_comparisons import TableComparison

KEYS = (
    "shop.orders",
    "shop.sales_lines",
    "depot.orders",
    "depot.parts",
    "gone.parts",
    "shop.bits",
)


class _Rows:
    def rows(self, key: str | None = None) -> list[StateRow]:
        return [StateRow(name, "{}", 1) for name in KEYS]

    def newest(self) -> list[dict[str, Any]]:
        return []

    def by_table(self) -> dict[tuple[str, str], TableComparison]:
        return {}


PROGRESS = [
    StatusReaders(
        SourceSpec(name=name, path="file", tables=("*",), destinations=("lake",)),
        "raw",
        _Rows(),
        _Rows(),
        _Rows(),
    )
    for name in ("shop", "depot")
]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("shop.orders", "shop.orders"),
        ("SHOP.Orders", "shop.orders"),
        ("parts", "depot.parts"),
        ("Bits", "shop.bits"),
        ("sales.lines", "shop.sales_lines"),
        ("shop.sales.lines", "shop.sales_lines"),
    ],
)
def test_a_table_is_found(given: str, key: str) -> None:
    assert find_key(PROGRESS, given, "here") == key


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            "orders",
            "2 tables are called 'orders'. Write the name with its source: depot.orders, ",
        ),
        ("gone.parts", "there is no state for 'gone.parts'. Did you mean `depot.parts`?"),
        ("ordres", "there is no state for 'ordres'. Did you mean `orders`?"),
        ("depot.prats", "there is no state for 'depot.prats'. Did you mean `depot.parts`?"),
        ("*", "there is no state for '*'. `loader state list` shows the stored cursors"),
        ("shop.../x", "'../x' contains '/', which a table or schema name must not contain"),
    ],
)
def test_ambiguous_and_unknown_names_are_refused(given: str, error: str) -> None:
    with pytest.raises(SpecError) as refused:
        find_key(PROGRESS, given, "here")
    assert error in str(refused.value)
