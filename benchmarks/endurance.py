"""Measures the memory of a long loop, and the files of its state and ledger.

    python benchmarks/endurance.py                  1,000 rounds of 5 tables

A round starts every second, and ten rows in each table change every tenth round. Halfway through,
the server is killed and restarted, and the loop must continue.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench import Bench, Sizes  # noqa: E402
from benchmarks.ours import Looped, Ours  # noqa: E402
from benchmarks.stopwatch import resident  # noqa: E402
from tests.services import Postgres, Server  # noqa: E402

ROWS = 4000


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--rounds", default=1000, show_default=True)
@click.option("--tables", default=5, show_default=True)
def main(rounds: int, tables: int) -> None:
    place = Path(tempfile.mkdtemp(prefix="strandline-endurance-"))
    server = Postgres(hashed=True)
    try:
        bench = Bench(server, place, Sizes(table_rows=ROWS, tables=tables))
        found = _followed(bench.ours(bench.many, "loop"), rounds)
        shown = Table()
        for column in found[0]:
            shown.add_column(column, justify="right")
        for row in found:
            shown.add_row(*map(str, row.values()))
        Console(width=140).print(shown)
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)


def _followed(ours: Ours, rounds: int) -> list[dict[str, Any]]:
    """Returns the memory, files and seconds of some rounds."""
    found = []
    with Looped(ours, "1s") as loop:
        for number in range(1, rounds + 1):
            reported = loop.next()
            if number % 10 == 0:
                ours.shop.update(10)
            if number == rounds // 2 + 1:
                _crash(ours.shop.database.server, loop)
            if number in (2, rounds // 4, rounds // 2, 3 * rounds // 4, rounds):
                megabytes = resident(loop.process.pid) // 2**20
                facts = {"round": number, "s": reported["seconds"], "MB": megabytes}
                found.append({**facts, **_stored(ours)})
                click.echo(str(found[-1]))
    return found


def _stored(ours: Ours) -> dict[str, int]:
    """Returns the files and bytes of state and ledger."""
    found = {}
    for table in ("_cq_state", "_cq_syncs"):
        below = (ours.folder / "warehouse" / "raw" / table).rglob("*")
        sizes = [file.stat().st_size for file in below if file.is_file()]
        found[f"{table} files"] = len(sizes)
        found[f"{table} KB"] = sum(sizes) // 1024
    return found


def _crash(server: Server, loop: Looped) -> None:
    """Kills the server, waits for a failed round, restarts the server, waits for a good round."""
    began = time.monotonic()
    server.stop()
    loop.until(lambda event: bool(event["failed"]), may_fail=True)
    server.start()
    back = time.monotonic()
    loop.until(lambda event: not event["failed"], may_fail=True)
    went_on = time.monotonic() - back
    click.echo(f"the server was away for {back - began:.0f} s; all went on {went_on:.0f} s later")


if __name__ == "__main__":
    main()
