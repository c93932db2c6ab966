"""Measures `dbt build` for many small tables: first build, nothing new, new rows in each.

The models and tests are those that `loader codegen` writes, and the package's own. The peer is a
model for each table that ranks the versions with `row_number()`, rebuilt in full and tested with
dbt's own `unique` and `not_null`. All builds are whole processes, except the build of `loader run
--build`, which reports its own seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.bench import Bench
from benchmarks.ours import LABEL, Ours
from benchmarks.proofs import REBUILT, rebuilt_model, rebuilt_tests
from benchmarks.results import Line
from benchmarks.shop import NOTHING, Shop, Sums, snapshot_sums
from benchmarks.stopwatch import expect

_FOLDER = "models/rebuilt"


def of_many(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures the first build of all tables, nothing new, and some changed rows in each."""
    size = bench.sizes
    first, none, some = (
        f"`dbt build`, {size.tables} tables, first",
        f"`dbt build`, {size.tables} tables, nothing new",
        f"`dbt build`, {size.tables} tables, {size.table_changed} changed rows in each",
    )
    warm = f"the build of `loader run --build`, {size.tables} tables, nothing new"
    shop = bench.shop("builds", size.table_rows, size.tables)
    ours = bench.ours(shop, "builds")
    ours.dbt("deps", "--quiet")
    ours.load()
    ours.loader("codegen")
    for name in shop.names:
        ours.write(f"{_FOLDER}/{name}_rebuilt.sql", rebuilt_model(name))
    ours.write(f"{_FOLDER}/tests.yml", rebuilt_tests([f"{name}_rebuilt" for name in shop.names]))
    _build(bench, ours, first)
    for _ in range(size.rounds):
        _build(bench, ours, none)
        bench.samples.take(warm, LABEL, _seconds_in_a_run(ours))
        shop.change(size.table_changed)
        ours.load()
        _build(bench, ours, some)
    goals = {first: 70.0, none: 30.0, warm: 15.0, some: 50.0}
    lines = [Line(what, bench.samples.median(what, LABEL), goal=goals[what]) for what in goals]
    for what in (first, none, some):
        lines += bench.lines(what, {REBUILT: None})
    return f"Builds of {size.tables} tables of {size.table_rows:,} rows", lines


def _build(bench: Bench, ours: Ours, what: str) -> None:
    """Times both builds, and compares the tables with the source."""
    expected = ours.shop.sums()

    def built(suffix: str, *arguments: str) -> int:
        ours.build(*arguments)
        found = _sums(ours, suffix)
        expect(what, found == expected, f"{found} instead of {expected}")
        return found.rows

    others = ("--exclude", f"path:{_FOLDER}")
    bench.samples.time(what, LABEL, lambda: built("latest", *others), expected.rows)
    chosen = ("--select", f"path:{_FOLDER}")
    bench.samples.time(what, REBUILT, lambda: built("rebuilt", *chosen), expected.rows)


def _sums(ours: Ours, suffix: str) -> Sums:
    names = (f"shop_{n}_latest" if suffix == "latest" else f"{n}_rebuilt" for n in _names(ours))
    tables = (ours.folder / "warehouse" / "analytics" / name for name in names)
    return sum(map(snapshot_sums, tables), NOTHING)


def _names(ours: Ours) -> Sequence[str]:
    assert isinstance(ours.shop, Shop)
    return ours.shop.names


def _seconds_in_a_run(ours: Ours) -> float:
    """Returns the seconds of a build that follows a sync in the same process."""
    reported = ours.loader("run", "--build", "--", "--exclude", f"path:{_FOLDER}")
    events = [json.loads(line) for line in reported.splitlines() if line.startswith('{"event"')]
    [build] = [event for event in events if event["event"] == "build"]
    expect("a build", build["failed"] + build["skipped"] == 0, build)
    return float(build["seconds"])
