"""What a warm process saves: rounds of `loader run --every`; `run --build` beside the two apart.

    python benchmarks/warm.py                       20 rounds each, 50 tables
    python benchmarks/warm.py --rounds 1000 --tables 5      memory and files of a long loop

PostgreSQL on the same machine. A round's seconds are its own, as the loader tells them; processes
are timed whole. The loop ends by SIGTERM, and must end with 0.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services import Database, Postgres, Server  # noqa: E402

ROWS = 4000
_TABLE = (
    "create table {name} (id int primary key, note text, amount numeric(12, 2), "
    "updated_at timestamptz not null)",
    "insert into {name} select g, md5(g::text), g / 7.0, timestamptz '2025-01-01' + g * interval "
    f"'1 s' from generate_series(1, {ROWS}) g",
    "create index on {name} (updated_at)",
)
_CHANGE = "update {name} set note = note || '!', updated_at = now() where id <= {rows}"
_PROJECT = """\
name: bench
version: "1.0.0"
profile: strandline
dispatch: [{macro_namespace: dbt, search_order: [bench, strandline, dbt]}]
"""
_MODEL = """\
{{ config(materialized="deduped_latest", primary_key="id", cursor_field="updated_at") }}
select * from {{ source("shop", "t0") }}
"""
_MODELS = """\
sources: [{name: shop, schema: raw, tables: [{name: t0}]}]
models:
  - name: t0_latest
    data_tests: [strandline.unique_key, strandline.latest_matches_raw]
"""


class Shop:
    """A database of equal tables, and a project that loads them."""

    def __init__(self, database: Database, folder: Path, tables: int) -> None:
        self.database = database
        self.folder = folder
        self.names = [f"t{number}" for number in range(tables)]
        for name in self.names:
            database.execute(*(statement.format(name=name) for statement in _TABLE))
        own = {"url": database.url, "user": database.user, "password": "${BENCH_PASSWORD}"}
        own["table_options"] = {name: {"cursor_field": "updated_at"} for name in self.names}  # type: ignore[assignment]
        source = {"name": "shop", "path": "jdbc", "tables": ["*"], "destinations": ["lake"]}
        documents = [
            {"kind": "source", "spec": {**source, "spec": own}},
            {"kind": "destination", "spec": {"name": "lake", "path": "spark"}},
        ]
        (folder / "models").mkdir(parents=True)
        (folder / "loader.yml").write_text(yaml.safe_dump_all(documents))
        (folder / "dbt_project.yml").write_text(_PROJECT)
        (folder / "packages.yml").write_text(f"packages: [{{local: {ROOT}}}]\n")
        (folder / "models" / "t0_latest.sql").write_text(_MODEL)
        (folder / "models" / "models.yml").write_text(_MODELS)
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
            "BENCH_PASSWORD": database.server.password,
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        }

    def change(self, rows: int) -> None:
        """Changes so many rows of each table."""
        for name in self.names:
            self.database.execute(_CHANGE.format(name=name, rows=rows))

    def command(self, *arguments: str) -> float:
        """Runs a command to its end; the seconds that it took."""
        began = time.monotonic()
        ran = subprocess.run(
            arguments, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if ran.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} failed:\n{ran.stdout[-3000:]}{ran.stderr}")
        return time.monotonic() - began

    def stored(self) -> dict[str, int]:
        """Files and bytes of state and ledger."""
        found = {}
        for table in ("_cq_state", "_cq_syncs"):
            files = [
                f for f in (self.folder / "warehouse" / "raw" / table).rglob("*") if f.is_file()
            ]
            found[f"{table} files"] = len(files)
            found[f"{table} KB"] = sum(file.stat().st_size for file in files) // 1024
        return found


class Looped:
    """A `loader run --every` whose rounds are read as it tells them."""

    def __init__(self, shop: Shop, every: str) -> None:
        command = ["-m", "loader", "--log-format", "json", "run", "--every", every]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=shop.folder,
            env=shop.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self, may_fail: bool = False) -> dict[str, Any]:
        """The facts of the next round."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "round":
                if event["failed"] and not may_fail:
                    raise SystemExit(f"a round failed: {line}")
                return event
        raise SystemExit("the loop has ended")

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first round of which something holds."""
        while True:
            found = self.next()
            if holds(found):
                return found

    def megabytes(self) -> int:
        """What the process and its JVM hold in memory."""
        ours = {str(self.process.pid)}
        total = 0
        for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda f: int(f.name)):
            try:
                told = dict(
                    line.split(":", 1) for line in (folder / "status").read_text().splitlines()
                )
            except OSError:
                continue
            if folder.name in ours or told["PPid"].strip() in ours:
                ours.add(folder.name)
                total += int(told.get("VmRSS", "0 kB").split()[0])
        return total // 1024

    def stop(self) -> None:
        """Ends it as systemd would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise SystemExit(f"the loop ended with {self.process.returncode}")


def _rounds(shop: Shop, rounds: int, rows: int, took: dict[str, float], label: str) -> None:
    loop = Looped(shop, "1s")
    loop.until(lambda done: done["appended"] == 0)
    quiet = [loop.next()["seconds"] for _ in range(rounds)]
    took[f"nothing new, {label}"] = statistics.median(quiet)
    busy = []
    for _ in range(max(3, rounds // 4)):
        shop.change(rows)
        busy.append(loop.until(lambda done: done["appended"] > 0)["seconds"])
    took[f"{rows:,} changed rows a table, {label}"] = statistics.median(busy)
    loop.stop()


def _long(shop: Shop, rounds: int) -> list[dict[str, Any]]:
    """A long loop: memory, files and seconds of some rounds; in the middle the server crashes."""
    loop = Looped(shop, "1s")
    found = []
    for number in range(1, rounds + 1):
        told = loop.next()
        if number % 10 == 0:
            shop.change(10)
        if number == rounds // 2 + 1:
            _crash(shop.database.server, loop)
        if number in (2, rounds // 4, rounds // 2, 3 * rounds // 4, rounds):
            facts = {"round": number, "s": told["seconds"], "MB": loop.megabytes()}
            found.append({**facts, **shop.stored()})
            click.echo(str(found[-1]))
    loop.stop()
    return found


def _crash(server: Server, loop: Looped) -> None:
    """The server is killed, a round fails, the server comes back, and so does the loop."""
    began = time.monotonic()
    server.stop()
    failed = loop.next(may_fail=True)
    while not failed["failed"]:
        failed = loop.next(may_fail=True)
    server.start()
    back = time.monotonic()
    while loop.next(may_fail=True)["failed"]:
        pass
    took = time.monotonic()
    click.echo(
        f"the server was away for {back - began:.0f} s; all went on {took - back:.0f} s later"
    )


def _together(shop: Shop, rounds: int, took: dict[str, float]) -> None:
    dbt = str(Path(sys.executable).parent / "dbt")
    shop.command(dbt, "deps", "--quiet")
    run = (sys.executable, "-m", "loader", "--quiet", "run")
    build = (dbt, "build", "--profiles-dir", "profiles", "--select", "t0_latest")
    shop.command(*run)
    shop.command(*build)
    apart, together = [], []
    for _ in range(rounds):
        shop.change(100)
        apart.append(shop.command(*run) + shop.command(*build))
        shop.change(100)
        together.append(shop.command(*run, "--build", "--", "--select", "t0_latest"))
    took["run, then dbt build, apart"] = statistics.median(apart)
    took["run --build"] = statistics.median(together)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--rounds", default=20, show_default=True)
@click.option("--tables", default=50, show_default=True)
def main(rounds: int, tables: int) -> None:
    place = Path(tempfile.mkdtemp(prefix="strandline-warm-"))
    server = Postgres()
    took: dict[str, float] = {}
    long: list[dict[str, Any]] = []

    def shop(name: str, count: int) -> Shop:
        name = f"bench_{name}"
        server._execute(f"create database {name}")
        return Shop(Database(server, name), place / name, count)

    try:
        if rounds > 100:
            long = _long(shop("long", tables), rounds)
        else:
            _rounds(shop("one", 1), rounds, 1000, took, "1 table")
            _rounds(shop("many", tables), rounds, 100, took, f"{tables} tables")
            _together(shop("both", 1), max(3, rounds // 4), took)
        shown = Table()
        columns = list(long[0]) if long else ["warm", "s"]
        for column in columns:
            shown.add_column(column, justify="left" if column == "warm" else "right")
        for row in long or [{"warm": k, "s": f"{v:.2f}"} for k, v in took.items()]:
            shown.add_row(*(str(row[column]) for column in columns))
        Console(width=140).print(shown)
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
