"""Times commands as whole processes, including the JVM's start. The tools take turns."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench import Bench, Tool
from benchmarks.peers import BARE, CONNECTORX, PYARROW
from benchmarks.results import Line
from benchmarks.shop import COLUMNS, Shop


def first_load(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures the first load of the large table."""
    what = f"first load of {bench.sizes.rows:,} rows"
    shop = bench.large
    for _ in range(bench.sizes.rounds):
        bench.left["large"] = bench.tools(shop, "large")
        more: Sequence[Tool] = [bench.bare(shop, "bare"), *bench.dlt(shop, "pyarrow", PYARROW)]
        for tool in (*bench.left["large"], *more):
            bench.timed(what, tool, shop.rows, shop.sums())
    lines = bench.lines(what, {BARE: 0.85, CONNECTORX: 2, PYARROW: None})
    return f"First load of {shop.rows:,} rows, {COLUMNS} columns", lines


def changes(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures a load of nothing new, and a load of some changed rows, in the large table."""
    shop, changed = bench.large, bench.sizes.changed
    none, some = "nothing new", f"{changed:,} changed rows"
    tools = bench.loaded(shop, "large")
    for _ in range(bench.sizes.rounds):
        _changing(bench, shop, tools, (none, some), changed)
    lines = [*bench.lines(none, {CONNECTORX: 2}), *bench.lines(some, {CONNECTORX: 3})]
    return f"Little or nothing new in {shop.rows:,} rows", lines


def many(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures many small tables: the first load, nothing new, some changed rows in each."""
    shop, size = bench.many, bench.sizes
    first, none, some = (
        f"{size.tables} tables, first load",
        f"{size.tables} tables, nothing new",
        f"{size.tables} tables, {size.table_changed} changed rows in each",
    )
    for _ in range(size.rounds):
        bench.left["many"] = tools = bench.tools(shop, "many")
        for tool in tools:
            bench.timed(first, tool, size.tables * size.table_rows, shop.sums())
        _changing(bench, shop, tools, (none, some), size.table_changed)
    lines = [
        *bench.lines(first, {CONNECTORX: 4}),
        *bench.lines(none, {CONNECTORX: 1.5}),
        *bench.lines(some, {CONNECTORX: 4}),
    ]
    return f"{size.tables} tables of {size.table_rows:,} rows", lines


def _changing(
    bench: Bench,
    shop: Shop,
    tools: Sequence[Tool],
    texts: tuple[str, str],
    changed: int,
) -> None:
    """Times, for each tool in turn, a load of nothing new and a load of changed rows."""
    none, some = texts
    before = {tool.label: tool.sums() for tool in tools}
    for tool in tools:
        bench.timed(none, tool, 0, before[tool.label])
    news = shop.change(changed)
    for tool in tools:
        bench.timed(some, tool, news.rows, before[tool.label] + news)
