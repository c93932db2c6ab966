"""The benchmark runs, checks its measurements, and keeps the figures that it does not replace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.proofs import _on_the_clock
from benchmarks.results import Line, Section, write
from benchmarks.stopwatch import Failed, Samples, resident

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_rows_of_small_tables_are_measured(tmp_path: Path) -> None:
    """Runs without dlt, which would need an environment of its own."""
    results, samples = tmp_path / "RESULTS.md", tmp_path / "samples.json"
    options = {
        "--only": "1,4",
        "--rounds": "1",
        "--rows": "2000",
        "--tables": "2",
        "--table-rows": "40",
        "--warm-up": "1",
        "--results": str(results),
        "--json": str(samples),
    }
    words = [word for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, "benchmarks/run.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = results.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## 1. First load of 2,000 rows, 8 columns",
        "## 4. Rounds of `loader run --every`",
    ]
    assert "PostgreSQL" in text
    taken = json.loads(samples.read_text())
    assert set(taken["first load of 2,000 rows"]) == {"ours", "bare `spark.read.jdbc`"}
    assert all(len(found["ours"]) >= 1 for found in taken.values())


def test_a_result_replaces_only_its_own_section(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    file.write_text("# Results, and no row yet\n")
    for number, seconds in ((3, 3.0), (1, 1.0), (3, 33.0)):
        line = Line(f"row {number}", seconds, "a peer", 10.0, goal=2)
        write(Section(number, f"Row {number}", [line], "today"), file)
    first, second = file.read_text().split("## ")[1:]
    assert first.startswith("1. Row 1")
    assert "| row 1 | 1.00 s | a peer | 10.0 s | 0.10 × | ≤ 2 × | met |" in first
    assert second.startswith("3. Row 3")
    assert "| row 3 | 33.0 s | a peer | 10.0 s | 3.30 × | ≤ 2 × | **not met** |" in second


def test_a_goal_without_a_peer_is_of_our_own_figure() -> None:
    assert Line("a round", 0.2, goal=0.2).met
    assert Line("a round", 0.21, goal=0.2).met is False
    assert Line("a load", 5.0, "a peer", None, goal=2).met is None


def test_a_wrong_number_of_rows_is_no_sample() -> None:
    with pytest.raises(Failed, match="9 rows instead of 10"):
        Samples().time("a load", "ours", lambda: 9, rows=10)


def test_time_on_the_clock_counts_what_overlaps_once() -> None:
    def node(begin: int, end: int) -> dict[str, object]:
        at = "2026-11-24T00:00:{:02}.000000Z"
        return {"timing": [{"started_at": at.format(begin), "completed_at": at.format(end)}]}

    assert _on_the_clock([node(0, 4), node(2, 5), node(3, 4), node(10, 11)]) == 6


def test_a_process_about_to_start_a_program_is_not_counted_twice() -> None:
    """Between fork and exec, a child shares all memory of its parent."""
    forks = 'import os; held = b"x" * 10**8; os.fork(); print(flush=True); os.read(0, 1)'
    with subprocess.Popen(
        [sys.executable, "-c", forks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        for _ in range(2):
            parent.stdout.readline()
        held = resident(parent.pid)
        parent.communicate(b"\n\n")
    assert 10**8 < held < 2 * 10**8
