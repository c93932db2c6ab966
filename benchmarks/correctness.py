"""Counts the rows that cursor-based tools lose while a database is written to.

    make bench-correctness                                     60 s, 8 writers, all tools
    make bench-correctness CORRECTNESS="--seconds 20 --tools strandline,'dlt append'"
    make bench-correctness CORRECTNESS="--tools 'mariadb strandline'"

The tools run one after another, each with a new database and the same writers: two cores cannot run
two JVMs, a server and eight writers at a steady pace, and tools that run at the same time would
slow each other down. Variants of one tool (`>` and `>=`, append and merge) share a process and a
run. Each tool starts a sync every `--interval` seconds, or as soon as its previous sync has
finished. The start of a process and its first syncs are not timed. When the writers have stopped,
each tool syncs once more. Then the newest version of each key in the tool is compared with the
source.

The seed determines each writer's transactions, but not how they overlap: the machine's timing
differs from run to run, and so do the counts of lost rows.

The exit code is 1 if the loader has lost a row or left one stale, whatever the other tools did. On
MariaDB, only rows whose cursor the database wrote count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.log_writers import LogWriters, committed  # noqa: E402
from benchmarks.mariadb_writers import MariaDbWriters  # noqa: E402
from benchmarks.proxy import Proxy  # noqa: E402
from benchmarks.tools import Process  # noqa: E402
from benchmarks.verdict import Stale, Verdict, Version, judge, source_rows  # noqa: E402
from benchmarks.writers import CUTS, Writers  # noqa: E402
from tests.services import Database, MariaDb, Postgres, Server  # noqa: E402

BY_LOG = "strandline cdc"
ALWAYS = "strandline always"
OURS = ("strandline", ALWAYS, BY_LOG, "mariadb strandline")
BLIND = "mariadb strandline blind"
WARM_UP = 6
# Each process: its database, its module, and its tools, which sync in turn.
PROCESSES: tuple[tuple[type[Server], str, tuple[str, ...]], ...] = (
    (Postgres, "spark_tools", ("strandline", ALWAYS)),
    (Postgres, "spark_tools", (BY_LOG,)),
    (Postgres, "spark_tools", ("spark cursor >", "spark cursor >=")),
    (Postgres, "dlt_tools", ("dlt append", "dlt merge", "dlt merge lag")),
    (MariaDb, "spark_tools", ("mariadb strandline",)),
    (MariaDb, "spark_tools", (BLIND,)),
    (MariaDb, "spark_tools", ("mariadb spark cursor >", "mariadb spark cursor >=")),
)
TOOLS = tuple(tool for *_, tools in PROCESSES for tool in tools)


@dataclasses.dataclass
class Contender:
    """A tool under measurement.

    Attributes:
        syncs, rows, seconds: the totals for all syncs while the writers wrote.
        received: the number of bytes that the server sent to the tool in these syncs.
        verdict: the comparison with the source at the end.
    """

    name: str
    proxy: Proxy
    syncs: int = 0
    rows: int = 0
    seconds: float = 0.0
    received: int = 0
    verdict: Verdict | None = None


class Race:
    """One process with its tools, which sync one database from `warm_up` to `finish`."""

    def __init__(self, workload: Writers, process: Process, interval: float) -> None:
        self.workload = workload
        self.database = database = workload.database
        self.process = process
        self.interval = interval
        port = database.server.port
        self.contenders = [Contender(name, Proxy(port)) for name in process.tools]

    def warm_up(self) -> None:
        """Runs the first sync and a few small ones: a process's first jobs are the slowest."""
        database = self.database
        self.process.open(
            {contender.name: contender.proxy.port for contender in self.contenders},
            database=database.name,
            user=_blind(database) if BLIND in self.process.tools else database.user,
            password=database.password,
        )
        self._rounds(1)
        for _ in range(WARM_UP - 1):
            self.workload.touch()
            self._rounds(1)

    def run(self, seconds: float) -> None:
        """Syncs repeatedly for this time, and records what the syncs took."""
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            for contender in self.contenders:
                self._measured(contender)
            pause = min(began + self.interval, end) - time.monotonic()
            time.sleep(max(0.0, pause))

    def finish(self) -> None:
        """Syncs once more, and judges the tools."""
        self._rounds(1)
        source = source_rows(self.database)
        for contender in self.contenders:
            versions = self.process.versions(contender.name)
            contender.verdict = judge(
                source,
                (Version(key, tuple(p), cursor, tuple(o)) for key, p, cursor, o in versions),
                committed(self.database) if contender.name == BY_LOG else None,
            )
            contender.proxy.close()

    def _measured(self, contender: Contender) -> None:
        before, began = contender.proxy.sent, time.monotonic()
        contender.rows += self.process.sync(contender.name)
        contender.seconds += time.monotonic() - began
        contender.received += contender.proxy.sent - before
        contender.syncs += 1

    def _rounds(self, count: int) -> None:
        for _ in range(count):
            for contender in self.contenders:
                self.process.sync(contender.name)


def _blind(database: Database) -> str:
    """Creates an account that can read the database but cannot see open transactions."""
    account = "'blind'@'127.0.0.1'"
    database.execute(
        f"create or replace user {account} identified by '{database.password}'",
        f"grant select on {database.name}.* to {account}",
    )
    return "blind"


@contextlib.contextmanager
def running(python: str, module: str, tools: tuple[str, ...], folder: Path) -> Iterator[Process]:
    """Yields a process, and stops it afterwards."""
    process = Process(python, module, tools, folder)
    try:
        yield process
    finally:
        process.close()


def report(contenders: list[Contender]) -> Table:
    """Returns the table to print."""
    table = Table()
    table.add_column("tool", no_wrap=True)
    for column in (
        "syncs",
        "s/sync",
        "rows",
        "lost",
        "stale",
        "outranked",
        "doubled",
        "missed",
        "rows/sync",
        "KB/sync",
    ):
        table.add_column(column, justify="right")
    for contender in contenders:
        verdict, syncs = contender.verdict, max(contender.syncs, 1)
        assert verdict is not None
        table.add_row(
            contender.name,
            str(contender.syncs),
            f"{contender.seconds / syncs:.1f}",
            f"{verdict.rows:,}",
            str(len(verdict.lost)),
            str(len(verdict.stale)),
            str(verdict.outranked),
            str(verdict.doubled),
            "" if verdict.missed is None else str(verdict.missed),
            f"{contender.rows / syncs:,.0f}",
            f"{contender.received / syncs / 1024:,.1f}",
        )
    return table


def versions(python: str, *packages: str) -> str:
    """Returns the versions of packages in a Python environment."""
    script = (
        "import importlib.metadata as m, sys; print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    )
    done = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True)
    if done.returncode != 0:
        raise click.UsageError(f"{python} lacks {', '.join(packages)}: {done.stderr[-200:]}")
    return done.stdout.strip()


def reported(stale: Stale) -> str:
    """Describes a row that differs from the source, to help find the reason."""
    return f"source {stale.source[:3]}, ours {stale.has} (version read: {stale.held})"


def _tools(context: click.Context, parameter: click.Parameter, given: str) -> list[str]:
    wanted = [name.strip() for name in given.split(",")]
    for name in wanted:
        if name not in TOOLS:
            raise click.BadParameter(f"no tool {name!r}; there are: {', '.join(TOOLS)}")
    return wanted


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--seconds", default=60.0, show_default=True, help="How long the writers write.")
@click.option("--writers", default=8, show_default=True, help="How many of them.")
@click.option("--seed", default=1, show_default=True, help="What they do.")
@click.option("--interval", default=3.0, show_default=True, help="Seconds between syncs' starts.")
@click.option("--tools", default=",".join(TOOLS), callback=_tools, help="Which, by commas.")
@click.option(
    "--cut",
    type=click.Choice(list(CUTS)),
    help="Applications write all cursors, cut so; by default each writer has its own clock.",
)
@click.option("--peers", default=sys.executable, help="The Python that has dlt.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Writes the result there.")
def main(
    seconds: float,
    writers: int,
    seed: int,
    interval: float,
    tools: list[str],
    cut: str | None,
    peers: str,
    file: Path | None,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    servers: dict[type[Server], Server] = {}
    contenders: list[Contender] = []
    try:
        for kind, module, names in PROCESSES:
            chosen = tuple(name for name in names if name in tools)
            if not chosen:
                continue
            # The process runs in a different folder, so the path must be absolute.
            python = str(Path(peers).absolute()) if module == "dlt_tools" else sys.executable
            place = folder / chosen[0].replace(" ", "_")
            server = servers[kind] = servers.get(kind) or kind()
            writing: type[Writers] = MariaDbWriters if kind is MariaDb else Writers
            writing = LogWriters if BY_LOG in chosen else writing
            with server.database() as database, running(python, module, chosen, place) as process:
                workload = writing(database, seed, writers, cut or "")
                workload.create()
                race = Race(workload, process, interval)
                race.warm_up()
                workload.start()
                try:
                    race.run(seconds)
                finally:
                    workload.stop()
                race.finish()
            contenders += race.contenders
    finally:
        for server in servers.values():
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)
    facts = {
        "seed": seed,
        "writers": writers,
        "seconds": seconds,
        "interval": interval,
        "cursors": f"cut to the {cut}" if cut else "now() and clocks of applications",
        "cores": os.cpu_count(),
        "servers": ", ".join(server.version for server in servers.values()),
        "packages": versions(sys.executable, "strandline", "pyspark"),
    }
    if any(name.startswith("dlt") for name in tools):
        facts["peers"] = versions(peers, "dlt", "duckdb", "sqlalchemy", "psycopg2-binary")
    console = Console()
    console.width = max(console.width, 120)
    console.print(report(contenders))
    for name, fact in facts.items():
        console.print(f"{name}: {fact}", highlight=False)
    if file is not None:
        results = [_plain(contender) for contender in contenders]
        file.write_text(json.dumps({**facts, "tools": results}, indent=2) + "\n")
    broken = False
    for contender in contenders:
        if contender.name not in OURS:
            continue
        verdict = contender.verdict
        assert verdict is not None
        for kind, count in verdict.kinds.most_common():
            console.print(f"{contender.name} lacks: {kind}: {count}", highlight=False)
        on_mariadb = contender.name.startswith("mariadb")
        promised = [row for row in verdict.lacking if not on_mariadb or row.by_database]
        for row in promised[:20]:
            console.print(f"{contender.name}: {reported(row)}", highlight=False)
        broken |= bool(promised) or not (on_mariadb or verdict.right)
    sys.exit(1 if broken else 0)


def _plain(contender: Contender) -> dict[str, Any]:
    verdict = contender.verdict
    assert verdict is not None
    return {
        "tool": contender.name,
        "syncs": contender.syncs,
        "seconds": round(contender.seconds, 1),
        "rows_in_source": verdict.rows,
        "lost": len(verdict.lost),
        "stale": len(verdict.stale),
        "outranked": verdict.outranked,
        "doubled": verdict.doubled,
        "missed": verdict.missed,
        "kinds": dict(verdict.kinds),
        "rows_read": contender.rows,
        "bytes_read": contender.received,
    }


if __name__ == "__main__":
    main()
