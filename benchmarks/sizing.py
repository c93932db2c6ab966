"""Measures how time, memory, files and commits grow with the number of tables and rows.

    python benchmarks/sizing.py                          50, 200 and 500 tables; 4,000,000 rows
    python benchmarks/sizing.py --tables 500 --rows 0    the tables only
    python benchmarks/sizing.py --cluster --tables 500   the tables only, on a cluster

Each command is a separate process, including the JVM's start; the loop is one process. CPU and
memory are measured for the loader's process and its JVM, which is the driver on a cluster. The
cluster is the one from `make test-cluster`: a standalone master with two workers, a JDBC catalog in
PostgreSQL, and SeaweedFS as S3, all on this machine. The exit code is 1 if wrong rows were loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import pyarrow.parquet as pq
from pyarrow import fs
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench import Bench, Sizes  # noqa: E402
from benchmarks.machine import machine, today, versions  # noqa: E402
from benchmarks.ours import Looped, Ours  # noqa: E402
from benchmarks.stopwatch import Memory, expect  # noqa: E402
from tests.cluster.project import jdbc_place  # noqa: E402
from tests.services import Database, Postgres  # noqa: E402
from tests.services.seaweed import ACCOUNT, BUCKET, Seaweed  # noqa: E402
from tests.services.spark_cluster import SparkCluster  # noqa: E402

CHANGED = 100
CHANGED_TABLES = 10
ROUNDS = 8
SETTLED = 4
"""The rounds of the loop that are counted. The first rounds are not."""
OWN = {"state": "_cq_state", "ledger": "_cq_syncs", "locks": "_cq_locks"}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Use:
    """The resources that a command used.

    Attributes:
        cpu: the CPU seconds of the process and its children.
        peak: the peak memory in bytes.
    """

    seconds: float
    cpu: float
    peak: int


@dataclass
class Lake:
    """A lake whose files can be counted.

    Attributes:
        raw: the folder of its raw tables.
        variables: additional environment variables for the loader.
        catalog: the database of its JDBC catalog.
    """

    storage: fs.FileSystem
    raw: str
    variables: Mapping[str, str] = field(default_factory=dict)
    catalog: Database | None = None
    cluster: SparkCluster | None = None

    def tables(self) -> Mapping[str, Sequence[str]]:
        """Returns the paths of each table's files."""
        found = defaultdict(list)
        everything = fs.FileSelector(self.raw, recursive=True, allow_not_found=True)
        for info in self.storage.get_file_info(everything):
            if info.type == fs.FileType.File and not info.path.endswith(".crc"):
                table = info.path[len(self.raw) :].lstrip("/").partition("/")[0]
                found[table].append(info.path)
        return found

    def rows(self, tables: Sequence[str]) -> int:
        """Returns the total number of rows that were appended to these tables."""
        files = self.tables()
        return sum(
            pq.read_metadata(path, filesystem=self.storage).num_rows
            for table in tables
            for path in files[table]
            if path.endswith(".parquet")
        )

    def stored(self, tables: Sequence[str]) -> list[tuple[int, int]]:
        """Returns (commits, files) of system tables and `tables`; of the catalog, (writes, KB)."""
        files = self.tables()
        groups = [*([name] for name in OWN.values()), tables]
        found = [
            (sum(_commits(files[name]) for name in names), sum(len(files[name]) for name in names))
            for names in groups
        ]
        if self.catalog is None:
            return found
        [changes] = self.catalog.query(
            "select n_tup_ins + n_tup_upd, pg_total_relation_size(relid) / 1024 "
            "from pg_stat_user_tables where relname = 'iceberg_tables'"
        ) or [(0, 0)]
        return [*found, (int(changes[0]), int(changes[1]))]


@contextmanager
def _on_cluster() -> Iterator[Lake]:
    """Starts the cluster of `make test-cluster`, with an empty lake."""
    server, store, cluster = Postgres(), Seaweed(), SparkCluster(ACCOUNT)
    try:
        with server.database("catalog") as catalog:
            place = jdbc_place(cluster, store, catalog)
            variables = {
                **ACCOUNT,
                **place.variables,
                "STRANDLINE_TARGET": "cluster",
                "STRANDLINE_JARS": str(Path(sys.prefix) / "cluster-jars"),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            raw = f"{BUCKET}/{catalog.name}/raw"
            yield Lake(store.files(), raw, variables, catalog, cluster)
    finally:
        for started in (cluster, store, server):
            started.remove()


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--tables", default="50,200,500", show_default=True, help="Numbers of small tables.")
@click.option("--table-rows", default=100, show_default=True, help="Of each small table.")
@click.option("--rows", default=4_000_000, show_default=True, help="Of one large table; 0: none.")
@click.option("--cluster", is_flag=True, help="On a cluster with S3; without the large table.")
def main(tables: str, table_rows: int, rows: int, cluster: bool) -> None:
    server = Postgres(hashed=True)
    place = Path(tempfile.mkdtemp(prefix="strandline-sizing-"))
    console = Console(width=140)
    try:
        print(f"{today()}; {versions(server.version, None)}; {machine()}", flush=True)
        for number in [int(each) for each in tables.split(",") if each]:
            sizes = Sizes(tables=number, table_rows=table_rows)
            bench = Bench(server, place / str(number), sizes)
            with _on_cluster() if cluster else nullcontext() as lake:
                console.print(_of_tables(bench, lake))
        if rows and not cluster:
            console.print(_of_rows(Bench(server, place / "large", Sizes(rows=rows))))
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)


def _of_tables(bench: Bench, lake: Lake | None) -> Table:
    """Measures many small tables: first load, nothing new, changed rows in ten, and a loop."""
    count, rows = bench.sizes.tables, bench.sizes.table_rows
    shop = bench.shop(f"tables_{count}", rows, count)
    ours = bench.ours(shop, "tables")
    lake = lake or Lake(fs.LocalFileSystem(), str(ours.folder / "warehouse" / "raw"))
    ours.environment = {**ours.environment, **lake.variables}
    changing = replace(shop)
    changing.names = shop.names[:CHANGED_TABLES]
    title = f"{count} tables of {rows} rows; of tables: commits, files"
    catalog = ("catalog: changes, KB", "workers' CPU s", "peak MB") if lake.cluster else ()
    shown = _columns(title, "seconds", "CPU s", "peak MB", *OWN, "raw tables", *catalog)
    some = f"{CHANGED} changed rows in {len(changing.names)} tables"
    for what in ("first load", "nothing new", some):
        expected = count * rows if what == "first load" else 0
        if what == some:
            expected = changing.change(CHANGED).rows
        before = lake.stored(shop.names)
        with _workers(lake) as workers:
            use = _used(ours, expected, what, lake)
        grown = _grown(before, lake.stored(shop.names))
        shown.add_row(what, *_figures(use), *grown, *workers)
        print(what, *_figures(use), *grown, *workers, flush=True)
    before = lake.stored(shop.names)
    with Looped(ours, "0.1s") as loop, Memory(loop.process.pid) as memory:
        seconds = [loop.next()["seconds"] for _ in range(ROUNDS)][-SETTLED:]
        cpu = _cpu(loop.process.pid)
        more = [loop.next()["seconds"] for _ in range(SETTLED)]
        cpu = (_cpu(loop.process.pid) - cpu) / SETTLED
    use = Use(statistics.median([*seconds, *more]), cpu, memory.peak)
    rounds = f"a round; {ROUNDS + SETTLED} rounds"
    shown.add_row(rounds, *_figures(use), *_grown(before, lake.stored(shop.names)))
    shop.drop()
    return shown


def _of_rows(bench: Bench) -> Table:
    """Measures one large table: the first load, and changes to one percent of the rows."""
    rows, shop = bench.sizes.rows, bench.large
    ours = bench.ours(shop, "rows")
    per = ("rows/s", "CPU s per 1,000,000 rows", "bytes/row in raw", "bytes/row in PostgreSQL")
    shown = _columns(f"{rows:,} rows, 8 columns", "seconds", "CPU s", "peak MB", *per)
    [(size,)] = shop.database.query(f"select pg_table_size('{shop.names[0]}')")
    raw = ours.folder / "warehouse" / "raw"
    lake, data = Lake(fs.LocalFileSystem(), str(raw)), raw / shop.names[0] / "data"
    for what in ("first load", "1 % changed"):
        expected = rows if what == "first load" else shop.change(rows // 100).rows
        before = _bytes(data)
        use = _used(ours, expected, what, lake)
        figures = (
            f"{expected / use.seconds:,.0f}",
            f"{use.cpu / expected * 1e6:.1f}",
            f"{(_bytes(data) - before) / expected:.1f}",
            f"{int(size) / rows:.1f}" if what == "first load" else "",
        )
        shown.add_row(what, *_figures(use), *figures)
    return shown


@contextmanager
def _workers(lake: Lake) -> Iterator[list[str]]:
    """Measures a cluster's workers and their executors within the block."""
    figures: list[str] = []
    if lake.cluster is None:
        yield figures
        return
    pids = [worker.pid for worker in lake.cluster.workers]
    before = sum(map(_cpu, pids))
    with ExitStack() as opened:
        memories = [opened.enter_context(Memory(pid)) for pid in pids]
        yield figures
        time.sleep(SETTLED)  # until the executors have stopped
    figures += [
        f"{sum(map(_cpu, pids)) - before:.1f}",
        f"{sum(memory.peak for memory in memories) / 2**20:.0f}",
    ]


def _used(ours: Ours, expected: int, what: str, lake: Lake) -> Use:
    """Runs `loader run`, and measures it.

    Raises:
        Failed: if it did not append the expected number of rows.
    """
    names = ours.shop.names
    before, began = lake.rows(names), time.monotonic()
    process = ours.started("run")
    follower = _CpuFollower(process.pid)
    with follower, Memory(process.pid) as memory:
        process.communicate()
    seconds = time.monotonic() - began
    expect(what, process.returncode == 0, f"ended with {process.returncode}")
    found = lake.rows(names) - before
    expect(what, found == expected, f"{found:,} rows instead of {expected:,}")
    return Use(seconds, follower.cpu, memory.peak)


def _grown(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[str]:
    pairs = zip(before, after, strict=True)
    return [f"{now[0] - then[0]}, {now[1] - then[1]}" for then, now in pairs]


def _commits(files: Sequence[str]) -> int:
    """The number of versions that a table has had. A folder counts from 1, a catalog from 0."""
    found = (re.search(r"/(v?)(\d+)[^/]*\.metadata\.json$", file) for file in files)
    return max((int(file[2]) + (not file[1]) for file in found if file), default=0)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def _columns(title: str, *names: str) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in ("", *names):
        shown.add_column(name, justify="left" if not name else "right")
    return shown


def _figures(use: Use) -> Sequence[str]:
    return f"{use.seconds:.2f}", f"{use.cpu:.1f}", f"{use.peak / 2**20:.0f}"


class _CpuFollower:
    """Tracks the CPU time of a process and its descendants within the block."""

    def __init__(self, pid: int) -> None:
        self.cpu = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(0.1):
            self.cpu = max(self.cpu, _cpu(self._pid))


def _cpu(pid: int) -> float:
    """Returns the CPU seconds of a process and its descendants, including exited children."""
    place = Path("/proc") / str(pid)
    try:
        numbers = (place / "stat").read_text().rpartition(")")[2].split()[11:15]
        children = [
            int(child)
            for task in (place / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0.0  # the process has exited
    return sum(map(int, numbers)) / _TICKS + sum(map(_cpu, children))


if __name__ == "__main__":
    main()
