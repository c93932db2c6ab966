"""Times `loader run` for files: the first load, and a run with nothing new."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench import Bench
from benchmarks.dropped_files import FILES, FORMATS
from benchmarks.ours import LABEL
from benchmarks.peers import BARE_FILES
from benchmarks.results import Line

_GOALS = {"parquet": 1.2, "csv": 1.2, "json": 1.3}


def first_and_next(bench: Bench) -> tuple[str, Sequence[Line]]:
    """Loads four files of each format, then runs again with nothing new."""
    rows = bench.sizes.file_rows
    lines: list[Line] = []
    for form, name in FORMATS.items():
        dropped = bench.dropped(form, rows)
        sums = dropped.sums()
        first, none = f"{name}, first load", f"{name}, nothing new"
        for _ in range(bench.sizes.rounds):
            ours = bench.ours(dropped, f"{form}-ours")
            bench.timed(first, ours, rows, sums)
            bench.timed(first, bench.bare_files(dropped, f"{form}-bare"), rows, sums)
            bench.timed(none, ours, 0, sums)
        lines += bench.lines(first, {BARE_FILES: _GOALS[form]})
        lines.append(Line(none, bench.samples.median(none, LABEL)))
    return f"{rows:,} rows in {FILES} files", lines
