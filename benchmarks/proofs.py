"""Measures builds, with their checks and tests, after a few batches and after many.

The loader appends batches with one percent of the keys in one process (`run --every`). Around the
measured batches, it also builds everything that `loader codegen` writes (`--build`): the latest
table, whose merge also checks the merged rows, and the tests of the latest table, ledger and state.
The first build of a process is not counted: it merges all batches since the last build, while the
JVM is still compiling its code. The peer is a model that ranks the versions with `row_number()`,
rebuilt in full and tested with dbt's own tests for its key. It is built in the same kind of loop,
and in whole processes (`dbt build`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from benchmarks.bench import Bench
from benchmarks.ours import EVERY, LABEL, Looped, Ours
from benchmarks.results import Line
from benchmarks.shop import Sums, snapshot_sums
from benchmarks.stopwatch import expect

REBUILT = "`row_number()`, rebuilt"
"""The name of the peer in the results."""
_SNAPSHOT, _REBUILT = "shop_orders_latest", "orders_rebuilt"
_PEER = """\
{{ config(materialized="table", file_format="iceberg") }}

with ranked as (
    select
        *,
        row_number() over (
            partition by order_id
            order by updated_at desc, _cq_batch desc, _cq_seq desc
        ) as _rank
    from {{ source("shop", "TABLE") }}
)

select order_id, customer_id, status, amount, note, weight, placed, updated_at, _cq_batch
from ranked
where _rank = 1 and not _cq_deleted
"""
_MODEL, _TESTS, _BUILD = "merge and checks", "the tests, on the clock", "both, on the clock"
_LOOP = "the build of `loader run --every --build`"


def rebuilt_model(table: str) -> str:
    """Returns the peer's model for a table."""
    return _PEER.replace("TABLE", table)


def rebuilt_tests(models: Iterable[str]) -> str:
    """Returns the properties of these models, with dbt's own tests for their keys."""
    column = "{name: order_id, data_tests: [unique, not_null]}"
    return "models:\n" + "".join(f"  - {{name: {m}, columns: [{column}]}}\n" for m in models)


def after_batches(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Measures builds after a few and after many batches of one percent."""
    rows, batches = bench.sizes.rows, bench.sizes.batches
    shop = bench.shop("proofs", rows)
    ours = bench.ours(shop, "proofs")
    ours.dbt("deps", "--quiet")
    ours.load()
    ours.loader("codegen")
    ours.write(f"models/{_REBUILT}.sql", rebuilt_model("orders"))
    ours.write(f"models/{_REBUILT}.yml", rebuilt_tests([_REBUILT]))
    began = time.monotonic()
    ours.build("--exclude", _REBUILT)
    bench.samples.take("the first build, whole process", LABEL, time.monotonic() - began)
    done = 1
    for batch in batches:
        done = _deliver(bench, ours, batch - 2 * bench.sizes.builds - done) + done
        _build_warm(bench, ours, batch)
        done = batch + 1
        _build_cold(bench, ours, batch)
    return f"A build after batches of 1 % of {rows:,} keys", _lines(bench)


def _lines(bench: Bench) -> list[Line]:
    few, many = bench.sizes.batches
    median = bench.samples.median
    lines = [
        Line("the first build, whole process", median("the first build, whole process", LABEL))
    ]
    for batch in (few, many):
        for what in (_MODEL, _TESTS):
            lines.append(Line(_after(what, batch), median(_after(what, batch), LABEL)))
    early, late = (median(_after(_BUILD, batch), LABEL) for batch in (few, many))
    lines.append(Line(_after(_BUILD, many), late, f"after {few}", early, 1.2))
    for batch in (few, many):
        lines += bench.lines(_after(_LOOP, batch), {REBUILT: 1.0})
        whole = f"`dbt build`, whole process, after {batch} batches"
        lines += bench.lines(whole, {REBUILT: 1.0})
    return lines


def _after(what: str, batches: int) -> str:
    return f"{what}, after {batches} batches"


def _deliver(bench: Bench, ours: Ours, batches: int) -> int:
    """Appends batches of one percent without a build. Returns their number."""
    with Looped(ours, EVERY) as loop:
        for _ in range(batches):
            _batch(ours, loop)
    return batches


def _batch(ours: Ours, loop: Looped) -> None:
    rows = ours.shop.rows // 100
    ours.shop.update(rows)
    reported = loop.until(lambda event: event["appended"] > 0)
    expect("a batch", reported["appended"] == rows, reported)


def _build_warm(bench: Bench, ours: Ours, batch: int) -> None:
    """Builds after each of a few batches, the last of which is number `batch`."""
    # Builds what codegen writes and tests ledger and state; nothing else runs at the same time.
    ours_selected = (_SNAPSHOT, "cq_sync_log", "cq_state_current")
    for label, selected in ((REBUILT, (_REBUILT,)), (LABEL, ours_selected)):
        with Looped(ours, EVERY, "--build", "--", "--select", *selected) as loop:
            loop.build()  # for the batches that were appended before
            for _ in range(bench.sizes.builds):
                _batch(ours, loop)
                reported = loop.build()
                expect("a build", reported["failed"] + reported["skipped"] == 0, reported)
                bench.samples.take(_after(_LOOP, batch), label, reported["seconds"])
                for what, seconds in _spent(ours).items() if label == LABEL else ():
                    bench.samples.take(_after(what, batch), label, seconds)


def _build_cold(bench: Bench, ours: Ours, batch: int) -> None:
    """Builds after one more batch in whole processes: our models, and the rebuilt model."""
    what = f"`dbt build`, whole process, after {batch} batches"
    ours.shop.update(ours.shop.rows // 100)
    expect("a batch", ours.load() == ours.shop.rows // 100, "another number of rows")
    ours.build("--select", _REBUILT)  # so that both builds find their table
    expected = ours.shop.sums()

    def built(table: str, *arguments: str) -> int:
        ours.build(*arguments)
        return _rows(ours, table, expected)

    bench.samples.time(what, LABEL, lambda: built(_SNAPSHOT, "--exclude", _REBUILT), expected.rows)
    chosen = ("--select", _REBUILT)
    bench.samples.time(what, REBUILT, lambda: built(_REBUILT, *chosen), expected.rows)


def _rows(ours: Ours, table: str, expected: Sums) -> int:
    found = snapshot_sums(ours.folder / "warehouse" / "analytics" / table)
    expect(table, found == expected, f"{found} instead of {expected}")
    return found.rows


def _spent(ours: Ours) -> Mapping[str, float]:
    """Returns the last build's seconds: the model with its checks, its tests, and both together."""
    reported = json.loads((ours.folder / "target" / "run_results.json").read_text())
    by_name = {result["unique_id"]: result for result in reported["results"]}
    model = by_name[f"model.bench.{_SNAPSHOT}"]
    tests = [one for name, one in by_name.items() if name.startswith("test.")]
    expect("tests", len(tests) >= 5, f"only {len(tests)} tests")
    return {
        _MODEL: _on_the_clock([model]),
        _TESTS: _on_the_clock(tests),
        _BUILD: _on_the_clock(by_name.values()),
    }


def _on_the_clock(results: Iterable[Mapping[str, Any]]) -> float:
    """Returns the number of seconds during which at least one of the nodes was running."""
    spans = sorted(
        (min(_at(t["started_at"]) for t in timing), max(_at(t["completed_at"]) for t in timing))
        for timing in (result["timing"] for result in results)
        if timing
    )
    total, until = 0.0, 0.0
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _at(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
