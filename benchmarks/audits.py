"""Audits copies that other tools load from a busy source, and checks the audits' reports.

    make bench-audit                                ten seeds, 10 s of writing each
    make bench-audit AUDIT="--seeds 3 --seconds 5"

The writers are those of `bench-correctness`. All tools sync the same table while the writers run:
dlt appends to Parquet files and merges into PostgreSQL, a script that adds Airbyte's columns uses
`>=`, and a plain Spark script uses `>`. Each copy is audited while the writers run. Once they have
stopped, each tool syncs once more; rows in the copy are deleted, changed and doubled; rows in the
source are deleted; and each copy is audited again, with `--grace 0`.

The truth is a comparison of all rows in Python. The audit must find exactly these differences, each
with its kind, its key and the columns that differ. An audit that runs beside the writers must
report every row that is still wrong at the end, unless the row changed or is within the grace
period, and must not report rows that the tool has loaded correctly by the end.

While the writers run, `loader adopt` takes over dlt's files. Once they have stopped, `loader run`
and `loader reconcile` are run, and the newest versions must match the source's rows. The exit code
is 1 if an audit missed or invented a difference, or if an adopted table differs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.copies import (  # noqa: E402
    Copy,
    ParquetCopy,
    TableCopy,
    Truth,
    build_url,
    compare,
    list_keys,
    read_micros,
)
from benchmarks.correctness import running  # noqa: E402
from benchmarks.mariadb_writers import MariaDbWriters  # noqa: E402
from benchmarks.spark_tools import AirbyteShaped, PlainCursor, Strandline  # noqa: E402
from benchmarks.tools import Tool  # noqa: E402
from benchmarks.verdict import Version, judge, source_rows  # noqa: E402
from benchmarks.writers import TABLE, Writers  # noqa: E402
from loader.audit.findings import KINDS  # noqa: E402
from loader.cli import main as loader  # noqa: E402
from loader.spark.profile import load_profile  # noqa: E402
from loader.spark.session import session  # noqa: E402
from tests.services import Database, MariaDb, Postgres, Server  # noqa: E402

DLT_APPEND, DLT_MERGE = "dlt append to Parquet", "dlt merge to PostgreSQL"
AIRBYTE, PLAIN = "Airbyte-shaped, >=", "Spark script, >"
PLANTED = 5
GRACE = 60


Live = tuple[Sequence[Version], Truth, Mapping[str, Any]]
"""An audit beside the writers: the source's rows before it, its differences and JSON line."""


@dataclass
class Result:
    """The audits of one copy.

    Attributes:
        real: the number of differences that the tool itself caused, for each kind.
        planted: the number of differences that were added.
        found, missed, invented: how many of them the audit found and missed, and how many other
            differences it reported.
        live_found, live_missed, live_invented: the same for the audit beside the writers.
    """

    seed: int
    tool: str
    real: Mapping[str, int]
    planted: int
    found: int
    missed: list[Any]
    invented: list[Any]
    lag: int
    live_found: int = 0
    live_missed: list[Any] = field(default_factory=list)
    live_invented: list[Any] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Returns whether nothing was missed or invented."""
        wrong = (self.missed, self.invented, self.live_missed, self.live_invented)
        return not any(wrong)


def audit(database: Database, copy: Copy, *options: str) -> tuple[Truth, dict[str, Any]]:
    """Runs `loader audit`. Returns the differences that it reports, and its JSON line."""
    arguments = [build_url(database), TABLE, *copy.arguments, "--examples", "1000000", *options]
    result = CliRunner().invoke(
        loader, ["--log-format", "json", "audit", *arguments], catch_exceptions=False
    )
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    reports = [line for line in lines if line["event"] == "audit"]
    if len(reports) != 1:
        raise click.ClickException(f"the audit failed: {result.output[-2000:]}")
    found: Truth = {"lost": {}, "stale": {}, "extra": {}, "doubled": {}}
    for each in reports[0]["examples"]:
        key = int(each["key"].partition("=")[2])
        found[each["kind"]][key] = tuple(sorted(each["columns"]))
    return found, reports[0]


def subtract(first: Truth, second: Truth) -> list[Any]:
    """Returns the differences that are in `first` but not in `second`."""
    return [
        (kind, key, columns)
        for kind, keys in first.items()
        for key, columns in keys.items()
        if second[kind].get(key) != columns
    ]


@dataclass
class Adopter:
    """Takes over a copy while the writers run.

    Attributes:
        adopted: the JSON line of `loader adopt`.
    """

    strandline: Strandline
    copy: Copy
    adopted: Mapping[str, Any] = field(default_factory=dict)

    def adopt(self) -> None:
        """Adopts the copy."""
        ran = self.strandline.project.loader("adopt", f"shop.{TABLE}", *self.copy.arguments)
        if ran.code:
            raise click.ClickException(f"the adoption failed: {ran.text[-2000:]}")
        [self.adopted] = [event for event in ran.events if event["event"] == "adopted"]

    def finish(self, source: Sequence[Version]) -> bool:
        """Runs the loader. Returns whether the newest versions match the source's rows."""
        self.strandline.sync()
        versions = (
            Version(key, tuple(payload), at, tuple(order))
            for key, payload, at, order in self.strandline.versions()
        )
        reconciled = self.strandline.project.loader("reconcile")
        return judge(source, versions).right and reconciled.code == 0


class Show:
    """One seed: a table with its writers, the tools and their copies.

    Attributes:
        adopter: takes over a copy while the writers run; None if no tool writes a suitable copy.
        adopted: whether the adopted table was correct at the end.
    """

    def __init__(
        self,
        writers: Writers,
        seed: int,
        tools: Mapping[str, tuple[Tool, Copy]],
        adopter: Adopter | None,
    ) -> None:
        self.writers = writers
        self.database = writers.database
        self.seed = seed
        self.tools = tools
        self.adopter = adopter
        self.adopted = True

    def run(self, seconds: float) -> Iterator[Result]:
        """Writes, syncs and audits."""
        self._sync()
        self.writers.start()
        live = self._audit_beside_writers(seconds)
        self.writers.stop()
        self._sync()
        chosen = random.Random(self.seed)
        source = source_rows(self.database)
        if self.adopter is not None:
            self.adopted = self.adopter.finish(source)
        real = {
            name: compare(source, copy.versions(), copy.keeps_versions)
            for name, (_, copy) in self.tools.items()
        }
        top = max(source, key=lambda row: row.cursor or 0).key
        damaged = {key for truth in real.values() for kind in truth.values() for key in kind}
        keys = chosen.sample(
            sorted({row.key for row in source} - damaged - {top}), PLANTED * (1 + 3)
        )
        sets = [set(keys[i::4]) for i in range(4)]
        for _, copy in self.tools.values():
            copy.damage(*sets[:3])
        self.database.execute(f"delete from {TABLE} where id in {list_keys(sets[3])}")
        now = source_rows(self.database)
        for name, (_, copy) in self.tools.items():
            truth = compare(now, copy.versions(), copy.keeps_versions)
            found, line = audit(self.database, copy, "--grace", "0", "--pause", "0")
            yield Result(
                self.seed,
                name,
                {kind: len(real[name][kind]) for kind in real[name]},
                len(subtract(truth, real[name])),
                sum(map(len, found.values())) - len(subtract(found, truth)),
                subtract(truth, found),
                subtract(found, truth),
                line["lag"],
                **self._judge_live(*live[name], source, real[name]),
            )

    def _sync(self) -> None:
        for tool, _ in self.tools.values():
            tool.sync()

    def _audit_beside_writers(self, seconds: float) -> dict[str, Live]:
        stopping = threading.Event()
        failures: list[BaseException] = []

        def sync_again() -> None:
            try:
                while not stopping.wait(1):
                    self._sync()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=sync_again)
        thread.start()
        try:
            stopping.wait(seconds)
            live: dict[str, Live] = {}
            for name, (_, copy) in self.tools.items():
                before = source_rows(self.database)
                options = ("--grace", f"{GRACE}s", "--pause", "2s")
                live[name] = (before, *audit(self.database, copy, *options))
            if self.adopter is not None:
                self.adopter.adopt()
        finally:
            stopping.set()
            thread.join()
        if failures:
            raise failures[0]
        return live

    def _judge_live(
        self,
        before: Sequence[Version],
        found: Truth,
        line: Mapping[str, Any],
        source: Sequence[Version],
        real: Truth,
    ) -> dict[str, Any]:
        """Compares an audit beside the writers with the final state of rows that did not change."""
        unchanged = set(before) & set(source)
        limit = _parse_micros(line["highest_cursor"]) - GRACE * 1_000_000
        due = {row.key for row in unchanged if (row.cursor or 0) <= limit}
        same = {row.key for row in unchanged}
        return {
            "live_found": sum(map(len, found.values())),
            "live_missed": [each for each in subtract(real, found) if each[1] in due],
            "live_invented": [each for each in subtract(found, real) if each[1] in same],
        }


class Remote:
    """A tool in a process with the peers' Python."""

    def __init__(self, process: Any, name: str) -> None:
        self.process, self.name = process, name

    def sync(self) -> int:
        rows: int = self.process.sync(self.name)
        return rows

    def versions(self) -> list[list[Any]]:
        found: list[list[Any]] = self.process.versions(self.name)
        return found


@contextlib.contextmanager
def open_show(
    server: Server, target: Postgres, seed: int, peers: str, spark: Any, folder: Path
) -> Iterator[Show]:
    """Creates the table, the tools and the locations of their copies."""
    folder.mkdir()
    on_mariadb = isinstance(server, MariaDb)
    kind = "mysql" if on_mariadb else "postgresql"
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(server.database())
        writers = (MariaDbWriters if on_mariadb else Writers)(database, seed)
        writers.create()
        options = {
            "url": f"jdbc:{kind}://127.0.0.1:{server.port}/{database.name}",
            "user": database.user,
            "password": database.password,
            "driver": "org.postgresql.Driver",
        }
        if on_mariadb:
            options["url"] += "?permitMysqlScheme=true"
            options["driver"] = "org.mariadb.jdbc.Driver"
            options["sessionInitStatement"] = "set time_zone = '+00:00'"
        airbyte, plain = folder / "airbyte", folder / "plain"
        order = ("--newest-by", "sync")
        adopter = None
        tools: dict[str, tuple[Tool, Copy]] = {
            AIRBYTE: (
                AirbyteShaped(spark, airbyte, ">=", options),
                ParquetCopy(airbyte, ("_airbyte_extracted_at",)),
            ),
            PLAIN: (
                PlainCursor(spark, plain, ">", options),
                ParquetCopy(plain, ("sync",), order),
            ),
        }
        if not on_mariadb:
            names = (DLT_APPEND, DLT_MERGE)
            process = stack.enter_context(running(peers, "dlt_tools", names, folder / "dlt"))
            second = stack.enter_context(target.database())
            account = {"user": database.user, "password": database.password}
            ports = dict.fromkeys(names, server.port)
            process.open(ports, database=database.name, target=second.name, **account)
            files = ParquetCopy(folder / "dlt" / "lake" / "raw" / TABLE, ("_dlt_load_id",))
            tools[DLT_APPEND] = Remote(process, DLT_APPEND), files
            tools[DLT_MERGE] = Remote(process, DLT_MERGE), TableCopy(second, "raw")
            ours = folder / "ours"
            ours.mkdir()
            login = (database.url, database.user, database.password)
            adopter = Adopter(Strandline(spark, ours, f"adopted_{seed}", *login), files)
        yield Show(writers, seed, tools, adopter)


def report(results: Sequence[Result]) -> Table:
    """Returns the table to print."""
    table = Table()
    for name in ("seed", "tool"):
        table.add_column(name, no_wrap=True)
    numbers = ("lost", "stale", "planted", "found", "missed", "invented", "lag")
    for name in (*numbers, "live: found", "missed", "invented"):
        table.add_column(name, justify="right")
    for each in results:
        live = (each.live_found, len(each.live_missed), len(each.live_invented))
        row = (each.real["lost"], each.real["stale"], each.planted, each.found)
        counts = (*row, len(each.missed), len(each.invented), each.lag, *live)
        table.add_row(str(each.seed), each.tool, *map(str, counts))
    return table


def _parse_micros(text: str) -> int:
    return read_micros(dt.datetime.fromisoformat(text.ljust(26, "0") if "." in text else text))


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--seconds", default=10.0, show_default=True, help="How long tools only sync.")
@click.option("--seeds", default=10, show_default=True, help="How many seeds.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--on", type=click.Choice(["postgresql", "mariadb"]), default="postgresql")
@click.option("--peers", default=sys.executable, help="The Python that has dlt.")
def main(seconds: float, seeds: int, first: int, on: str, peers: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    # All seeds share this process's Spark, whose catalog has one warehouse.
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    spark = session(
        load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    )
    target = Postgres()
    servers: list[Server] = [target]
    all_adopted = True
    if on == "mariadb":
        servers.append(MariaDb())
    results: list[Result] = []
    adoptions: list[str] = []
    console = Console()
    console.width = max(console.width, 130)
    try:
        for seed in range(first, first + seeds):
            place = folder / str(seed)
            peer = str(Path(peers).absolute())
            with open_show(servers[-1], target, seed, peer, spark, place) as show:
                for result in show.run(seconds):
                    results.append(result)
                    if not result.is_right:
                        console.print(result, highlight=False)
                if show.adopter is not None:
                    differed = {kind: show.adopter.adopted[kind] for kind in KINDS}
                    verdict = "equal" if show.adopted else "WRONG"
                    adoptions.append(f"seed {seed}: adopted with {differed}, in the end {verdict}")
                    console.print(adoptions[-1], highlight=False)
                all_adopted &= show.adopted
            right = sum(result.is_right for result in results)
            console.print(f"seed {seed}: {right} of {len(results)} audits are right")
            shutil.rmtree(place)
    finally:
        for server in servers:
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)
        console.print(report(results))
        console.print("\n".join(adoptions), highlight=False)
    sys.exit(0 if all_adopted and all(result.is_right for result in results) else 1)


if __name__ == "__main__":
    main()
