"""Measures what a running process saves: rounds of `loader run --every`, and `run --build`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.bench import Bench
from benchmarks.ours import EVERY, LABEL, Looped, Ours
from benchmarks.results import Line
from benchmarks.shop import Shop, snapshot_sums
from benchmarks.stopwatch import expect

FIRST = 5
"""The first rounds, which are measured separately because the JVM is compiling its code."""
_MODEL = """\
{{ config(
    materialized="deduped_latest",
    unique_key="order_id",
    meta={"strandline": {"cursor_field": "updated_at"}},
) }}
select * from {{ source("shop", "orders") }}
"""
_MODELS = """\
sources: [{name: shop, schema: raw, tables: [{name: orders}]}]
models:
  - name: orders_latest
    data_tests: [strandline.unique_key, strandline.matches_raw]
"""


def rounds(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures rounds of a loop: nothing new in one table and in many, changed rows in one."""
    size = bench.sizes
    one, many = bench.loaded_ours(bench.large, "large"), bench.loaded_ours(bench.many, "many")
    lines = []
    with Looped(one, EVERY) as loop:
        lines += _quiet(bench, loop, f"nothing new, 1 table of {size.rows:,} rows", 0.2)
        lines += _busy(bench, loop, one, f"{size.changed:,} changed rows of {size.rows:,}", 0.6)
    with Looped(many, EVERY) as loop:
        lines += _quiet(bench, loop, f"nothing new, {size.tables} tables", 2)
    return "Rounds of `loader run --every`", lines


def together(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Compares `loader run --build` with `loader run` and then `dbt build`."""
    shop = bench.shop("together", bench.sizes.table_rows)
    ours = bench.ours(shop, "together")
    ours.write("models/orders_latest.sql", _MODEL)
    ours.write("models/models.yml", _MODELS)
    ours.dbt("deps", "--quiet")
    select = ("--select", "orders_latest")
    what, apart = "`loader run --build`", "`loader run`, then `dbt build`"
    changed = bench.sizes.table_changed

    def two() -> int:
        rows = ours.load()
        ours.build(*select)
        return rows

    two()
    for _ in range(bench.sizes.rounds):
        shop.change(changed)
        bench.samples.time(what, apart, two, changed)
        _check(ours, shop)
        shop.change(changed)
        bench.samples.time(what, LABEL, lambda: ours.load("--build", "--", *select), changed)
        _check(ours, shop)
    return "A load and a build", bench.lines(what, {apart: 0.4})


def _quiet(bench: Bench, loop: Looped, what: str, goal: float) -> list[Line]:
    """Measures the first rounds of a loop and the counted rounds, all with nothing new."""
    seconds = []
    for _ in range(2 * bench.sizes.warm_up):
        reported = loop.next()
        expect(what, reported["appended"] == 0, reported)
        seconds.append(reported["seconds"])
    return _lines(bench, what, seconds, goal)


def _busy(bench: Bench, loop: Looped, ours: Ours, what: str, goal: float) -> list[Line]:
    """Measures rounds that find changed rows."""
    seconds, expected = [], ours.sums()
    for _ in range(bench.sizes.warm_up + max(3, bench.sizes.warm_up // 2)):
        expected += ours.shop.change(bench.sizes.changed)
        reported = loop.until(lambda event: event["appended"] > 0)
        expect(what, reported["appended"] == bench.sizes.changed, reported)
        seconds.append(reported["seconds"])
    expect(what, ours.sums() == expected, f"{ours.sums()} instead of {expected}")
    return _lines(bench, what, seconds, goal)


def _lines(bench: Bench, what: str, seconds: Sequence[float], goal: float) -> list[Line]:
    first, later = seconds[:FIRST], seconds[bench.sizes.warm_up :]
    early = f"{what}: the first {len(first)} of them"
    for name, found in ((what, later), (early, first)):
        for each in found:
            bench.samples.take(name, LABEL, each)
    return [
        Line(what, statistics.median(later), goal=goal),
        Line(early, statistics.median(first)),
    ]


def _check(ours: Ours, shop: Shop) -> None:
    """Compares the latest table with the source."""
    found = snapshot_sums(ours.folder / "warehouse" / "analytics" / "orders_latest")
    expect("the snapshot", found == shop.sums(), f"{found} instead of {shop.sums()}")
