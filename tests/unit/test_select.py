"""`--select` accepts a table's name in the source or in the lake, and a unique name alone."""

from __future__ import annotations

import pytest

from loader.names import match_selection, qualify


@pytest.mark.parametrize("name", ["shop.Sales.Orders", "shop.sales_orders"])
def test_both_names_select_a_table(name: str) -> None:
    found = [
        "shop.sales.orders",
        "SHOP.sales_orders",
        "shop.*",
        "*.sales.*",
        "*orders",
        "shop.sales*",
    ]
    others = ["shop.orders", "sales.orders", "shop", "other.*", "shop.sales"]
    assert match_selection(name, [*found, *others]) == set(found)


def test_a_unique_name_needs_no_source() -> None:
    names = ["evil.t7", "shop.orders", "crm.orders", "crm.shop.t", "odd.*"]
    select = ["T7", "orders", "shop.orders", "shop.t", "t7*", "*"]
    assert qualify(select, names) == ["evil.t7", *select[1:]]
