"""Measures the peak memory of a first load, for a large table and a larger one."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench import Bench
from benchmarks.ours import LABEL
from benchmarks.results import Line
from benchmarks.shop import Shop
from benchmarks.stopwatch import Memory, expect

_MB = 2**20


def peak(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures the peak memory of a first load: the loader's process and its JVM together."""
    size = bench.sizes
    shops = [bench.large, bench.shop("larger", size.growth * size.rows)]
    few, more = (f"{shop.rows:,} rows" for shop in shops)
    what = f"first load of {more}"
    for shop, label in zip(shops, (few, LABEL), strict=True):
        bench.samples.take(what, label, _peak(bench, shop) / _MB)
    shops[1].drop()
    mine, theirs = (bench.samples.median(what, label) for label in (LABEL, few))
    return "Memory of a first load", [Line(what, mine, few, theirs, 1.1, "MB")]


def _peak(bench: Bench, shop: Shop) -> int:
    """Returns the peak memory of a first load's processes, in bytes."""
    ours = bench.ours(shop, "memory")
    loading = ours.started("run")
    with Memory(loading.pid) as memory:
        loading.communicate()
    expect("first load", loading.returncode == 0, f"ended with {loading.returncode}")
    found, expected = ours.sums(), shop.sums()
    expect("first load", found == expected, f"{found} instead of {expected}")
    return memory.peak
