"""Times `loader audit` beside `select count(*)` and reladiff, the successor of data-diff.

    make bench-audit-times
    make bench-audit-times AUDIT_TIMES="--rows 1000000 --rows 10000000"

The source is a table in PostgreSQL. The copies are a table in a second database on the same server,
and Parquet files. At first they match the source; then 100 rows differ: 50 are changed, 30 are
missing and 20 are additional. Every tool compares all columns, and must report this number of
differences. reladiff compares only databases. It runs with one thread, its default, and with four.
It needs `--skip-sort-results`, because it cannot sort nulls, and sessions in UTC, because its
threads would otherwise use different time zones. Each time is measured from the start of a process
to its exit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import machine  # noqa: E402
from loader.spark.profile import load_profile  # noqa: E402
from loader.spark.session import session  # noqa: E402
from tests.services import Database, Postgres  # noqa: E402

COLUMNS = ("customer_id", "amount", "note", "updated_at")
CREATE = """
create table orders as
select
    g::bigint as order_id,
    (g % 1000)::int as customer_id,
    ((g % 10000) / 100.0)::numeric(12, 2) as amount,
    case when g % 7 > 0 then 'note ' || g end as note,
    timestamptz '2025-01-01' + g * interval '1 millisecond' as updated_at
from generate_series(1, {rows}) as g
"""
STEP = "(select max(order_id) / 100 from orders)"
DIFFERENCES = (
    f"update orders set note = 'changed' where order_id % {STEP} = 7 and order_id <= {STEP} * 50",
    f"delete from orders where order_id % {STEP} = 11 and order_id <= {STEP} * 30",
    "insert into orders select -g, 1, 1, 'added', timestamptz '2025-01-01' "
    "from generate_series(1, 20) as g",
)


@dataclass
class Show:
    """The source and its copies.

    Args:
        reladiff: the program.
    """

    source: Database
    copy: Database
    files: Path
    reladiff: str

    def create(self, rows: int) -> None:
        """Creates the tables."""
        for database in (self.source, self.copy):
            database.execute(
                CREATE.format(rows=rows),
                "alter table orders add primary key (order_id)",
                "create index on orders (updated_at)",
                "vacuum analyze orders",
            )

    def write_files(self) -> None:
        """Writes the rows of the database's copy to Parquet files."""
        copy = self.copy
        spark = session(
            load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
        )
        options = {"user": copy.user, "password": copy.password, "fetchsize": "10000"}
        rows = spark.read.format("jdbc").options(url=copy.url, dbtable="orders", **options)
        rows.option("driver", "org.postgresql.Driver").load().write.mode("overwrite").parquet(
            str(self.files)
        )
        spark.stop()

    def measure(self, rounds: int) -> Iterator[tuple[str, float, int]]:
        """Yields each tool with its seconds and the number of differences that it reports."""
        tools: dict[str, Callable[[], int]] = {
            "select count(*), both tables": self._count,
            "loader audit, PostgreSQL": lambda: self._audit(
                "orders", "--copy-url", _url(self.copy)
            ),
            "loader audit, Parquet": lambda: self._audit(str(self.files)),
            "reladiff, PostgreSQL": self._reladiff,
            "reladiff -j 4, PostgreSQL": lambda: self._reladiff("-j", "4"),
        }
        for name, run in tools.items():
            times, found = [], 0
            for _ in range(rounds):
                began = time.monotonic()
                found = run()
                times.append(time.monotonic() - began)
            yield name, sorted(times)[len(times) // 2], found

    def _count(self) -> int:
        counts = [
            database.query("select count(*) from orders")[0][0]
            for database in (self.source, self.copy)
        ]
        return abs(int(counts[0] - counts[1]))

    def _audit(self, *arguments: str) -> int:
        program = str(Path(sys.executable).parent / "loader")
        command = [program, "--log-format", "json", "audit", _url(self.source), "orders"]
        options = ("--pause", "0", "--grace", "0")
        done = _run([*command, *arguments, *options], self.files.parent)
        lines = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
        [found] = [line for line in lines if line["event"] == "audit"]
        return sum(found[kind] for kind in ("lost", "stale", "extra", "doubled", "lag"))

    def _reladiff(self, *options: str) -> int:
        columns = [part for name in COLUMNS for part in ("-c", name)]
        tables = (_url(self.source), "orders", _url(self.copy), "orders")
        command = [self.reladiff, *tables, "-k", "order_id", *columns, "--skip-sort-results"]
        lines = [
            line.split() for line in _run([*command, *options], self.files.parent).splitlines()
        ]
        # A changed row appears on two lines, one for the source and one for the copy.
        return len({line[1].strip(",") for line in lines if line and line[0] in "+-"})


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "STRANDLINE_WAREHOUSE": str(folder / "warehouse"), "PGTZ": "UTC"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "ERROR" in done.stderr:
        raise click.ClickException(f"{command[0]}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def _url(database: Database) -> str:
    account = f"{database.user}:{database.password}"
    return f"postgresql://{account}@127.0.0.1:{database.server.port}/{database.name}"


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--rows", multiple=True, type=int, default=[1_000_000], show_default=True)
@click.option("--rounds", default=3, show_default=True, help="A figure is the median of these.")
@click.option("--reladiff", required=True, help="The program.")
def main(rows: tuple[int, ...], rounds: int, reladiff: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    server = Postgres()
    table = Table()
    for name in ("rows", "tool", "equal: s", "100 differ: s"):
        table.add_column(name, justify="left" if name == "tool" else "right", no_wrap=True)
    is_right = True
    try:
        for count in rows:
            with server.database() as source, server.database() as copy:
                show = Show(source, copy, folder / "orders", str(Path(reladiff).absolute()))
                show.create(count)
                show.write_files()
                equal = list(show.measure(rounds))
                copy.execute(*DIFFERENCES, "vacuum analyze orders")
                show.write_files()
                differ = list(show.measure(rounds))
                for (name, first, none), (_, second, found) in zip(equal, differ, strict=True):
                    wanted = 10 if name.startswith("select") else 100
                    is_right &= (none, found) == (0, wanted)
                    shown = f"{second:.1f}" if found == wanted else f"{second:.1f}, found {found}"
                    table.add_row(f"{count:,}", name, f"{first:.1f}", shown)
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)
    console = Console()
    console.print(table)
    console.print(f"{server.version}, {machine()}", highlight=False)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
