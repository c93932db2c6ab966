"""Commands show the steps and tables that take long, with their progress."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from loader.cli import main, slow_steps
from loader.cli import progress as progress_module
from loader.cli.console import Output
from loader.cli.progress import Progress
from loader.spark import setup
from loader.spark.named_steps import step
from loader.sync.run_context import RECORDING


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows steps after 0.05 seconds instead of 5."""
    monkeypatch.setattr(slow_steps, "SECONDS", 0.05)


def test_only_a_step_that_takes_long_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    with output.slow_steps.watch():
        for number in range(100):
            with step(f"quick {number}"):
                pass
        with step("shop.orders: compacting"):
            time.sleep(0.5)
        time.sleep(0.2)  # no step is in progress
    lines = capsys.readouterr().err.splitlines()
    assert {*lines} == {"shop.orders: compacting (0 s)"}
    assert 1 < len(lines) < 5  # at growing intervals


def test_the_times_of_ended_steps_are_added_up() -> None:
    output = Output()
    with output.slow_steps.watch():
        for _ in range(2):
            with step("source shop: listing its tables"):
                time.sleep(0.1)
                found = output.slow_steps.find_oldest()
                assert found is not None
                assert found[0] == "source shop: listing its tables"
    assert output.slow_steps.find_oldest() is None
    assert {*output.slow_steps.seconds} == {"source shop: listing its tables"}
    assert 0.2 <= output.slow_steps.seconds["source shop: listing its tables"] < 5


@pytest.mark.parametrize(("form", "quiet"), [("json", False), ("text", True)])
def test_json_output_and_quiet_commands_show_no_steps(
    form: str, quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(form, quiet)
    with output.slow_steps.watch(), step("long"):
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "")


def test_a_run_shows_how_far_tables_that_take_long_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LONG_SECONDS", 0)
    output = Output()
    with output.slow_steps.watch(), Progress(output, {"shop.orders": 500}.get) as progress:
        progress.report_phase("shop.orders", "reading", 10_000)
        time.sleep(0.3)
        progress.done("shop.orders", "shop.orders: synced")
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == "shop.orders: synced"
    assert lines
    for line in lines:
        pattern = r"shop\.orders: reading, 500 of 10,000 rows, [\d,]+ rows/s, 0 s, about \d+ s left"
        assert re.fullmatch(pattern, line), line


def test_many_small_tables_share_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    with output.slow_steps.watch(), Progress(output, lambda table: None) as progress:
        for number in range(16):
            progress.report_phase(f"shop.t{number}", "reading", 1)
            progress.report_phase(f"shop.t{number}", "appending", None)
        for number in range(10):
            failed = number == 5
            progress.done(f"shop.t{number}", f"shop.t{number}: ended", has_failed=failed)
        progress.report_phase("shop.t15", RECORDING, None)  # waits for the other tables
        time.sleep(0.3)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "shop.t5: ended"
    assert {*lines} == {
        "tables finished: 11; in progress: shop.t10, shop.t11, shop.t12, shop.t13 and 1 more"
    }


def test_a_table_that_is_synced_again_is_counted_once() -> None:
    """For example, after its connection was lost."""
    progress = Progress(Output(), lambda table: None)
    for _ in range(2):
        progress.report_phase("shop.t0", "reading", 1)
        progress.done("shop.t0", "shop.t0: ended")
    progress.report_phase("shop.t1", "reading", 1)
    assert progress._lines() == [("tables finished: 1; in progress: shop.t1", {})]
    progress.report_phase("shop.t0", "reading", 1)
    assert progress._lines() == [("tables finished: 0; in progress: shop.t1, shop.t0", {})]


def test_progress_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("json")
    with output.slow_steps.watch(), Progress(output, {"shop.orders": 500}.get) as progress:
        progress.report_phase("shop.orders", "reading", 10_000)
        progress.report_phase("shop.orders", "appending", None)
        time.sleep(0.3)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [_, _, *lines] = events
    assert {event["event"] for event in lines} == {"progress"}
    assert lines[0]["rows_done"] == 500
    assert lines[0]["rows"] == 10_000
    assert 0 < lines[0]["seconds_left"] < 60


def test_a_new_phase_resets_the_number_of_rows() -> None:
    """A reconcile first syncs five rows, and then compares all rows."""
    progress = Progress(Output(), lambda table: None)
    progress.report_phase("shop.orders", "reading", 5)
    progress.report_phase("shop.orders", "comparing", None)
    [facts] = progress._measure()
    assert (facts["phase"], facts["rows"]) == ("comparing", None)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (119, "119 s"), (125, "2 min"), (10_000, "2 h 47 min")]
)
def test_long_times_are_shown_in_minutes_and_hours(seconds: int, shown: str) -> None:
    assert progress_module._format_seconds(seconds) == shown


def test_commands_show_slow_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_: object) -> None:
        with step("class archive: being recorded"):
            time.sleep(0.3)

    monkeypatch.setattr(setup, "prepare", prepare)
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(main, ["setup", "--no-archive"])
    assert ran.exit_code == 0
    assert "class archive: being recorded (0 s)" in ran.stderr
