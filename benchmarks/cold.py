"""How long a command takes from the shell, JVM included: ours and dlt in turn, medians.

    make bench-cold                              5 rounds, 4,000,000 rows
    make bench-cold COLD="--rounds 3 --rows 400000"

Whole processes, one after another, each tool once a round. Each row checks what it measures.
`--beside LABEL=FOLDER` measures another checkout of the loader as well, in this environment.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services import Database, Postgres  # noqa: E402

FEW = 1000
_SPEC = """\
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
  spec:
    url: "{url}"
    user: {user}
    password: "${{BENCH_PASSWORD}}"
    table_options: {{orders: {{cursor_field: updated_at}}}}
---
kind: destination
spec: {{name: lake, path: spark}}
"""
_PROJECT = """\
name: bench
version: "1.0.0"
profile: strandline
dispatch: [{macro_namespace: dbt, search_order: [bench, strandline, dbt]}]
"""
_MODEL = """\
{{ config(materialized="deduped_latest", primary_key="order_id", cursor_field="updated_at") }}
select * from {{ source("shop", "orders") }}
"""
_SOURCES = "sources: [{name: shop, schema: raw, tables: [{name: orders}]}]\n"
_TABLE = (
    """
    create table orders (
        order_id bigint primary key, customer_id int, status text, amount numeric(12, 2),
        note text, weight double precision, placed timestamptz, updated_at timestamptz
    )
    """,
    """
    insert into orders
    select g, g % 1000, 'status ' || g % 5, (g % 10000) / 100.0, md5(g::text), g / 7.0,
        timestamptz '2025-01-01' + g * interval '1 ms',
        timestamptz '2025-02-01' + g * interval '1 ms'
    from generate_series(1, {rows}) g
    """,
    "create index on orders (updated_at)",
    "analyze orders",
)


@dataclass(frozen=True)
class Ours:
    """The loader of one checkout.

    Attributes:
        root: the checkout.
        environment: what its processes have besides.
    """

    label: str
    root: Path
    environment: dict[str, str]

    def project(self, folder: Path, database: Database) -> None:
        """A project as `loader init` would leave it, and dbt's beside it."""
        given = {"url": database.url, "user": database.user}
        (folder / "models").mkdir(parents=True)
        (folder / "loader.yml").write_text(_SPEC.format(**given))
        (folder / "dbt_project.yml").write_text(_PROJECT)
        (folder / "packages.yml").write_text(f"packages: [{{local: {self.root}}}]\n")
        (folder / "models" / "orders.sql").write_text(_MODEL)
        (folder / "models" / "sources.yml").write_text(_SOURCES)
        shutil.copytree(ROOT / "profiles", folder / "profiles")

    def load(self, folder: Path) -> str:
        """`loader run`; its summary."""
        return self._run(folder, sys.executable, "-m", "loader", "--log-format", "json", "run")

    def build(self, folder: Path) -> str:
        """`dbt build` of the one model."""
        dbt = str(Path(sys.executable).parent / "dbt")
        return self._run(folder, dbt, "build", "--select", "orders", "--profiles-dir", "profiles")

    def deps(self, folder: Path) -> None:
        """`dbt deps`."""
        self._run(folder, str(Path(sys.executable).parent / "dbt"), "deps", "--quiet")

    def _run(self, folder: Path, *command: str) -> str:
        given = {"PYTHONPATH": str(self.root), "STRANDLINE_WAREHOUSE": str(folder / "warehouse")}
        return _done(command, folder, {**given, **self.environment})


class Dlt:
    """dlt, by the Python of its own environment."""

    label = "dlt"

    def __init__(self, python: Path, database: Database) -> None:
        server = database.server
        at = f"{server.user}:{server.password}@127.0.0.1:{server.port}/{database.name}"
        self.command = (str(python), str(ROOT / "benchmarks" / "dlt_load.py"))
        self.url = f"postgresql+psycopg2://{at}"

    def load(self, folder: Path) -> str:
        """One run of the pipeline; how many rows it took."""
        folder.mkdir(exist_ok=True)
        return _done((*self.command, str(folder), self.url), folder, {})


def _done(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    told = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if told.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{told.stdout[-2000:]}{told.stderr[-2000:]}")
    return told.stdout


class Timings:
    """Seconds by row of the table and tool."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, row: str, tool: str, act: Callable[[], str], holds: str) -> None:
        """Times an act, whose output must hold a text."""
        began = time.monotonic()
        told = act()
        self.seconds[row][tool].append(time.monotonic() - began)
        if holds not in told:
            raise SystemExit(f"{row}, {tool}: {holds!r} is not in\n{told[-2000:]}")

    def table(self, tools: Sequence[str]) -> Table:
        """Medians, and ratios to dlt where it has one."""
        table = Table()
        table.add_column("cold, s")
        for tool in tools:
            table.add_column(tool, justify="right")
        for row, by_tool in self.seconds.items():
            medians = {tool: statistics.median(found) for tool, found in by_tool.items()}
            peer = medians.get(Dlt.label)
            cells = [
                f"{medians[t]:.1f}"
                + (f" ({medians[t] / peer:.1f} ×)" if peer and t != "dlt" else "")
                if t in medians
                else ""
                for t in tools
            ]
            table.add_row(row, *cells)
        return table


def _round(
    ours: Sequence[Ours],
    dlt: Dlt | None,
    databases: dict[int, Database],
    place: Path,
    took: Timings,
) -> None:
    for rows, database in databases.items():
        for tool in ours:
            folder = place / f"{tool.label}-{rows}"
            tool.project(folder, database)
            took.take(
                f"{rows:,} rows", tool.label, partial(tool.load, folder), f'"appended": {rows}'
            )
            if rows == FEW:
                took.take("nothing new", tool.label, partial(tool.load, folder), "nothing new")
                tool.deps(folder)
                tool.build(folder)
                took.take(
                    "dbt build of nothing",
                    tool.label,
                    partial(tool.build, folder),
                    "ERROR=0 SKIP=0",
                )
        if dlt is not None:
            folder = place / f"dlt-{rows}"
            dlt.url = dlt.url.rpartition("/")[0] + f"/{database.name}"
            took.take(f"{rows:,} rows", dlt.label, partial(dlt.load, folder), str(rows))
            if rows == FEW:
                took.take("nothing new", dlt.label, partial(dlt.load, folder), "0")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--rounds", default=5, show_default=True)
@click.option("--rows", default=4_000_000, show_default=True, help="Of the large table.")
@click.option("--beside", multiple=True, metavar="LABEL=FOLDER", help="Another checkout, too.")
@click.option("--peers", type=click.Path(path_type=Path), help="The Python that has dlt.")
def main(rounds: int, rows: int, beside: tuple[str, ...], peers: Path | None) -> None:
    place = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    server = Postgres()
    secret = {"BENCH_PASSWORD": server.password, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    ours = [Ours("strandline", ROOT, secret)]
    for each in beside:
        label, _, folder = each.partition("=")
        # Another checkout knows nothing of this one's class archive.
        quiet = {"SPARK_SUBMIT_OPTS": "-Xshare:auto"}
        ours.append(Ours(label, Path(folder).resolve(), {**secret, **quiet}))
    took = Timings()
    try:
        databases = {}
        for count in dict.fromkeys((FEW, rows)):
            server._execute(f"create database bench_{count}")
            databases[count] = Database(server, f"bench_{count}")
            databases[count].execute(*(s.replace("{rows}", str(count)) for s in _TABLE))
        dlt = Dlt(peers.absolute(), databases[FEW]) if peers else None
        for number in range(1, rounds + 1):
            _round(ours, dlt, databases, place / str(number), took)
            shutil.rmtree(place / str(number))
            click.echo(f"round {number} of {rounds}")
        tools = [*(tool.label for tool in ours), *([Dlt.label] if dlt else [])]
        Console(width=100).print(took.table(tools))
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
