"""`loader run --every` reports rounds that take longer than the interval."""

from __future__ import annotations

import json
import time

import pytest

from loader.cli import overruns
from loader.cli.console import Output
from loader.cli.overruns import OverrunReporter
from loader.cli.results import BuildResult

_DOING = "shop.orders: appending"


def _run(reporter: OverrunReporter, number: int, seconds: float, build: bool = False) -> None:
    with reporter.watch(number) as times:
        time.sleep(seconds)
        times.load, times.tables = 0.26, 2
        times.longest = {"shop.a": 0.0, "shop.b": 0.1, "shop.c": 0.3, "shop.d": 0.2, "shop.e": 0.4}
        if build:
            nodes = {"model.shop.orders_latest": 29.13, "test.shop.unique": 0.02}
            times.build = BuildResult(0, seconds=29.2, node_seconds=nodes)


def _reporter(form: str = "text") -> OverrunReporter:
    return OverrunReporter(Output(form), 0.1, lambda: _DOING)


def test_an_overrun_is_reported_when_the_next_round_is_due_and_at_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _run(_reporter(), 7, 0.25, build=True)
    due, end = capsys.readouterr().err.splitlines()
    assert due == (
        "round 7 is still running, so the next round starts late: shop.orders: appending"
    )
    before, _, after = end.partition(" s, longer")
    assert 0.2 <= float(before.removeprefix("round 7 took ")) < 5
    assert after == (
        " than the interval of 0.1 s: load of 2 tables 0.3 s (longest: shop.e 0.4 s, shop.c 0.3 s, "
        "shop.d 0.2 s), build of 2 nodes 29.2 s (longest: model.shop.orders_latest 29.1 s)"
    )


def test_each_overrun_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = _reporter("json")
    _run(reporter, 1, 0.2, build=True)
    _run(reporter, 2, 0.2)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["event"], event["round"]) for event in events] == [
        ("overdue", 1),
        ("overrun", 1),
        ("overdue", 2),
        ("overrun", 2),
    ]
    due, with_build, _, without = events
    assert (due["doing"], due["interval"]) == (_DOING, 0.1)
    assert with_build["seconds"] >= 0.2
    assert (with_build["load_seconds"], with_build["build_seconds"]) == (0.3, 29.2)
    assert with_build["longest_tables"] == [
        {"table": "shop.e", "seconds": 0.4},
        {"table": "shop.c", "seconds": 0.3},
        {"table": "shop.d", "seconds": 0.2},
    ]
    assert with_build["longest_nodes"] == [{"node": "model.shop.orders_latest", "seconds": 29.1}]
    assert (without["build_seconds"], without["longest_nodes"]) == (None, [])


def test_a_loop_whose_rounds_are_all_overruns_prints_every_five_minutes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = _reporter()
    _run(reporter, 1, 0.2)
    _run(reporter, 2, 0.2)
    _run(reporter, 3, 0)  # in time
    _run(reporter, 4, 0.2)
    _run(reporter, 5, 0.2)
    monkeypatch.setattr(overruns, "PAUSE", 0)
    _run(reporter, 6, 0.2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[1] for line in lines] == ["1", "1", "4", "4", "6", "6"]


def test_a_round_that_a_signal_has_stopped_has_no_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _reporter().watch(1):
        time.sleep(0.2)
    [due] = capsys.readouterr().err.splitlines()
    assert "is still running" in due
