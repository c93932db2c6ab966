"""Measures what grows in a lake of many tables during a year of runs.

    python benchmarks/year.py                              40 tables, 24 runs a day, some minutes
    python benchmarks/year.py --tables 500 --json out.json

The tables are small and real: they are in PostgreSQL, and the loader syncs each of them once. The
year consists only of metadata, written in bulk as a year of runs would have left it: a ledger row
for each table and run, a batch and a version of the cursor for every tenth run, one file a day in
the ledger and one in the state table, and in each raw table the commits of the five days that
`loader compact` keeps. Each command is a separate process, including the JVM's start. The exit code
is 1 if a command fails, or if a sync appends a wrong number of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services import Database, Postgres  # noqa: E402

BIN = Path(sys.executable).parent
DAYS = 365
KEPT_DAYS = 5
CHANGED = 10  # one in this many runs appends a batch
ROWS = 3
SPEC = """\
kind: source
spec:
  name: shop
  path: jdbc
  tables: ["t*"]
  destinations: [lake]
  spec:
    url: "{url}"
    user: {user}
    password: "${{BENCH_PASSWORD}}"
    table_options: {options}
---
kind: destination
spec: {{name: lake, path: spark}}
"""
COMMANDS = {
    "run, one table": ("run", "--select", "shop.t0"),
    "run, all tables": ("run",),
    "status": ("status",),
    "state list": ("state", "list"),
    "state rebuild, one table": ("state", "rebuild", "--select", "shop.t0"),
    "state rebuild": ("state", "rebuild"),
    "compact, one table": ("compact", "--select", "shop.t0"),
    "compact": ("compact",),
}
SMALL = tuple(name for name in COMMANDS if "one" in name or name in ("status", "state list"))


def main() -> int:
    """Runs the measurement. Returns 1 if a command's output is wrong."""
    parser = argparse.ArgumentParser(description="a lake of many tables after a year of runs")
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--runs-a-day", type=int, default=24)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    server = Postgres(hashed=True)
    folder = Path(tempfile.mkdtemp(prefix="strandline-year-"))
    try:
        with server.database() as database:
            year = Year(database, folder, given.tables, given.runs_a_day)
            year.run()
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(year.figures, indent=1))
    return 0 if year.right else 1


class Year:
    """A project that reads one database, with the measurements of its commands."""

    def __init__(self, database: Database, folder: Path, tables: int, runs_a_day: int) -> None:
        self.tables = [f"t{number}" for number in range(tables)]
        self.runs = runs_a_day * DAYS
        self.commits = max(runs_a_day * KEPT_DAYS // CHANGED, 1)
        self.database = database
        self.folder = folder
        self.figures: dict[str, dict[str, float]] = {}
        self.right = True
        self.env = {
            **os.environ,
            "BENCH_PASSWORD": database.password,
            "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
        }
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        options = json.dumps({table: {"cursor_field": "updated_at"} for table in self.tables})
        spec = SPEC.format(url=database.url, user=database.user, options=options)
        (folder / "loader.yml").write_text(spec)

    def run(self) -> None:
        """Measures a new lake, the same lake a year later, and the compacted lake."""
        print(f"{len(self.tables)} tables, {self.runs:,} runs, {os.cpu_count()} cores", flush=True)
        self.make_tables()
        self.timed("young", "first run", ("run",), len(self.tables))
        self.look("young", SMALL)
        began = time.perf_counter()
        self.live_a_year()
        print(f"a year was written in {time.perf_counter() - began:.0f} s", flush=True)
        self.look("a year", (*SMALL, "compact"))
        self.look("compacted", tuple(COMMANDS))

    def make_tables(self) -> None:
        """Creates the source: small tables with a key and a cursor."""
        for table in self.tables:
            self.database.execute(
                f"create table {table} (id int primary key, note text, updated_at timestamptz)",
                f"insert into {table} select n, 'n' || n, now() from generate_series(1, {ROWS}) n",
            )

    def look(self, when: str, commands: tuple[str, ...]) -> None:
        """Measures the files and bytes of the lake, then the time of each command."""
        self.weigh(when)
        for name in commands:
            self.timed(when, name, COMMANDS[name])

    def weigh(self, when: str) -> None:
        """Counts files and bytes on disk, separately for ledger, state and raw tables."""
        parts = {"ledger": "_cq_syncs", "state": "_cq_state"}
        raw = self.folder / "warehouse" / "raw"
        for part, pattern in {**parts, "all raw tables": "t*"}.items():
            files = [f for t in raw.glob(pattern) if t.is_dir() for f in t.rglob("*")]
            files = [f for f in files if f.is_file() and not f.name.endswith(".crc")]
            size = sum(file.stat().st_size for file in files)
            self.reported(when, f"files, {part}", len(files))
            self.reported(when, f"MB, {part}", round(size / 1e6, 1))

    def timed(self, when: str, name: str, command: tuple[str, ...], appended: int = 0) -> None:
        """Runs a command in the project, and reports its time and any failure."""
        began = time.perf_counter()
        done = subprocess.run(
            [str(BIN / "loader"), "--log-format", "json", *command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        self.reported(when, f"s, {name}", round(seconds, 1))
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        wrong = [e for e in events if e["event"] in ("error", "warning")]
        if command[0] == "run":
            tables = [e for e in events if e["event"] == "table"]
            wrong += [e for e in tables if bool(e["appended"]) != bool(appended)]
        if done.returncode or wrong:
            self.right = False
            print("WRONG", *wrong[:3], done.stderr[-500:], sep="\n", flush=True)

    def reported(self, when: str, what: str, figure: float) -> None:
        """Prints and stores a figure."""
        self.figures.setdefault(what, {})[when] = figure
        print(f"{when:10} {what:28} {figure:12,}", flush=True)

    def live_a_year(self) -> None:
        """Writes in bulk what a year of runs would have left."""
        with self.session() as spark:
            states = self.bring_batches(spark)
            self.write_ledger(spark)
            self.write_states(spark, states)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yields a Spark session in this process for the project's warehouse."""
        os.environ["STRANDLINE_WAREHOUSE"] = self.env["STRANDLINE_WAREHOUSE"]
        from loader.spark.profile import load_profile
        from loader.spark.session import session

        profiles = str(self.folder / "profiles")
        spark = session(load_profile("strandline", "embedded", self.folder, profiles_dir=profiles))
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()

    def bring_batches(self, spark: Any) -> dict[str, str]:
        """Makes commits without rows in each raw table, for the batches of the last few days only.

        Returns the value of the newest state, keyed by table.
        """
        from loader.lake.commits import BATCH, STATE, SYNC, newest_commit
        from loader.lake.lake import Lake

        newest = self.runs // CHANGED
        lake = Lake(spark, "raw")

        def live(table: str) -> tuple[str, str]:
            first = newest_commit(lake, table)
            state, sync = json.loads(first.state or ""), dict(first.sync or {})
            handle = lake.handle(table)
            for batch in range(newest - self.commits + 1, newest + 1):
                state["batch"] = sync["batch"] = batch
                append = handle.newFastAppend().set(BATCH, str(batch))
                append = append.set(STATE, json.dumps(state, sort_keys=True))
                append.set(SYNC, json.dumps(sync)).commit()
            # the first one has expired by then
            handle.expireSnapshots().expireSnapshotId(first.snapshot_id).commit()
            return table, json.dumps(state, sort_keys=True)

        with ThreadPoolExecutor(2) as pool:
            return dict(pool.map(live, self.tables))

    def write_ledger(self, spark: Any) -> None:
        """Writes a row for each table and run, in one file a day."""
        changed = f"run % {CHANGED} = 0"
        spark.sql(
            f"""
            select
                concat('run', run) as run_id,
                'shop' as source_name,
                concat('t', number) as table_name,
                if({changed}, run div {CHANGED}, null) as batch,
                1L as generation,
                'incremental' as mode,
                if({changed}, 'synced', 'nothing new') as status,
                'updated_at' as cursor_field,
                'timestamp' as cursor_type,
                cast(at as string) as cursor_low,
                cast(at as string) as cursor_high,
                if({changed}, {ROWS}L, 0L) as rows_read,
                if({changed}, {ROWS}L, 0L) as rows_appended,
                0L as rows_redelivered,
                0L as rows_null_cursor,
                at as started_at,
                at as finished_at,
                '0' as loader_version,
                day
            from (
                select
                    run,
                    explode(sequence(0, {len(self.tables) - 1})) as number,
                    run * {DAYS} div {self.runs + 1} as day,
                    current_timestamp() - make_dt_interval({DAYS})
                        + make_dt_interval(0, 0, 0, run * {DAYS * 86400} / {self.runs}) as at
                from (select id + 1 as run from range({self.runs}))
            )
            where not (run div {CHANGED} = 1 and {changed})
            """
        ).createOrReplaceTempView("lived")
        self.append(spark, "_cq_syncs", "select * from lived")

    def write_states(self, spark: Any, states: dict[str, str]) -> None:
        """Writes a version of each table's cursor for each of its batches, in one file a day."""
        rows = [(f"t{n}", states[f"t{n}"]) for n in range(len(self.tables))]
        spark.createDataFrame(rows, "name string, newest string").createOrReplaceTempView("newest")
        self.append(
            spark,
            "_cq_state",
            """
            select
                concat('shop.', table_name) as key,
                regexp_replace(newest, '"batch": [0-9]+', concat('"batch": ', batch)) as value,
                batch as version,
                finished_at as updated_at,
                day
            from lived
            join newest on newest.name = lived.table_name
            where batch is not null
            """,
        )

    def append(self, spark: Any, table: str, query: str) -> None:
        """Appends rows in one commit, with a separate file for each day."""
        daily = spark.sql(query).repartitionByRange(DAYS, "day")
        columns = spark.table(f"raw.{table}").columns
        present = [name for name in columns if name in daily.columns]
        absent = [f"null as {name}" for name in columns if name not in daily.columns]
        daily.selectExpr(*present, *absent).writeTo(f"raw.{table}").append()


if __name__ == "__main__":
    sys.exit(main())
