"""Measures the loader and its peers in turn, and writes the figures to RESULTS.md.

    make bench                                   every row of the table, 4,000,000 rows
    make bench BENCH="--only 1,3 --rounds 5"     some of them
    make bench BENCH="--rows 40000 --tables 5"   small, and only printed

Each row checks what was loaded. The exit code is 1 if a check fails; a missed goal is no failure.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import cold, file_loads, memory, proofs, table_builds, warm  # noqa: E402
from benchmarks.bench import Bench, Sizes  # noqa: E402
from benchmarks.machine import machine, today, versions  # noqa: E402
from benchmarks.results import FILE, Line, Section, write  # noqa: E402
from benchmarks.stopwatch import Failed  # noqa: E402
from tests.services import Postgres  # noqa: E402

ROWS: dict[int, Callable[[Bench], tuple[str, Sequence[Line]]]] = {
    1: cold.first_load,
    2: cold.changes,
    3: cold.many,
    4: warm.rounds,
    6: warm.together,
    7: memory.peak,
    8: file_loads.first_and_next,
    9: table_builds.of_many,
    5: proofs.after_batches,  # the longest
}
_USUAL = Sizes()


def _numbers(_ctx: click.Context, _param: click.Parameter, value: str) -> list[int]:
    wanted = value.replace(" ", "").split(",")
    known = {str(number): number for number in ROWS}
    if not set(wanted) <= set(known):
        raise click.BadParameter(f"choose among {', '.join(sorted(known))}")
    return [number for text, number in known.items() if text in wanted]


def _checkouts(
    _ctx: click.Context, _param: click.Parameter, values: Sequence[str]
) -> dict[str, Path]:
    split = (value.partition("=") for value in values)
    return {label: Path(folder).resolve() for label, _, folder in split}


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--only", default=",".join(map(str, ROWS)), callback=_numbers, help="Rows: 1,2,7.")
@click.option("--rounds", default=_USUAL.rounds, show_default=True, help="Of each tool.")
@click.option("--rows", default=_USUAL.rows, show_default=True, help="Of the large table.")
@click.option("--tables", default=_USUAL.tables, show_default=True, help="Small ones.")
@click.option("--table-rows", default=_USUAL.table_rows, show_default=True, help="Of each.")
@click.option("--warm-up", default=_USUAL.warm_up, show_default=True, help="Rounds of a loop.")
@click.option("--batches", type=(int, int), default=_USUAL.batches, show_default=True)
@click.option("--growth", default=_USUAL.growth, show_default=True, help="Times the rows, in 7.")
@click.option("--file-rows", default=_USUAL.file_rows, show_default=True, help="Of files, in 8.")
@click.option("--peers", type=click.Path(path_type=Path), help="The Python that has dlt.")
@click.option(
    "--beside",
    multiple=True,
    metavar="LABEL=FOLDER",
    callback=_checkouts,
    help="Another checkout of the loader, too (rows 1 to 3).",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Where figures go; default: RESULTS.md, if the sizes are the usual ones.",
)
@click.option("--json", "samples", type=click.Path(path_type=Path), help="All samples, too.")
def main(
    only: list[int],
    rounds: int,
    rows: int,
    tables: int,
    table_rows: int,
    warm_up: int,
    batches: tuple[int, int],
    growth: int,
    file_rows: int,
    peers: Path | None,
    beside: dict[str, Path],
    results: Path | None,
    samples: Path | None,
) -> None:
    sizes = Sizes(
        rounds=rounds,
        rows=rows,
        tables=tables,
        table_rows=table_rows,
        warm_up=warm_up,
        batches=batches,
        growth=growth,
        file_rows=file_rows,
        changed=min(_USUAL.changed, rows // 4),
        table_changed=min(_USUAL.table_changed, table_rows // 4),
        builds=min(_USUAL.builds, batches[0] // 2),
    )
    # Figures from a few rounds are also written; figures from small tables are not.
    if replace(sizes, rounds=_USUAL.rounds) == _USUAL:
        results = results or FILE
    # The class archive depends on the loader's code. Without one, each JVM starts 3 s later.
    for root in beside.values():
        command = [sys.executable, "-m", "loader", "--quiet", "setup", "--archive"]
        env = {**os.environ, "PYTHONPATH": str(root.resolve())}
        subprocess.run(command, cwd=root, env=env, check=True)
    # so that a server does not outlive it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    place = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    server = Postgres(hashed=True)
    # absolute but not resolved, because an environment's Python is a link
    bench = Bench(server, place, sizes, peers.absolute() if peers else None, beside)
    try:
        sys.exit(_measured(bench, only, results))
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)
        if samples is not None:
            samples.write_text(json.dumps(bench.samples.taken, indent=2))


def _measured(bench: Bench, only: Sequence[int], results: Path | None) -> int:
    """Measures the rows, and prints each as soon as it is measured. Returns 1 if one failed."""
    on = f"{versions(bench.server.version, bench.peers)}. {machine()}"
    code = 0
    for number in only:
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            title, lines = ROWS[number](bench)
        except Failed as failed:
            click.echo(f"row {number} failed: {failed}", err=True)
            code = 1
            continue
        minutes = (time.monotonic() - began) / 60
        rounds = "1 round" if bench.sizes.rounds == 1 else f"{bench.sizes.rounds} rounds"
        taken = f"{today()}, {rounds}; load average {load:.1f} before. {on}."
        section = Section(number, title, lines, taken)
        click.echo(f"{section.text()}\n({minutes:.1f} minutes)\n")
        if results is not None:
            write(section, results)
    return code


if __name__ == "__main__":
    main()
