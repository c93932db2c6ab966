"""One million rows from PostgreSQL into a snapshot, each command a process of its own, timed.

    make bench              1,000,000 rows
    ROWS=100000 make bench  fewer

It checks what it measures: every row appended, nothing appended for nothing, 15 changes found,
and the snapshot equal to the source by count and per-column sums. Figures are of this machine;
none is a claim against another tool.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services import Database, Postgres  # noqa: E402

ROWS = int(os.environ.get("ROWS", "1000000"))
BIN = Path(sys.executable).parent

SPEC = """\
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
    table_options:
      orders: {{cursor_field: updated_at}}
---
kind: destination
spec: {{name: lake, path: spark}}
"""
PROJECT = """\
name: bench
version: "1.0.0"
profile: strandline
model-paths: [models]
dispatch:
  - macro_namespace: dbt
    search_order: [bench, strandline, dbt]
"""
MODEL = """\
{{ config(materialized="deduped_latest", primary_key="order_id", cursor_field="updated_at") }}

select * from {{ source("shop", "orders") }}
"""
SOURCES = """\
sources:
  - name: shop
    schema: raw
    tables:
      - name: orders
models:
  - name: orders
    data_tests:
      - strandline.unique_key:
          arguments: {primary_key: [order_id]}
"""
TABLE = f"""
create table orders as
select
    g::bigint as order_id,
    (g % 1000)::int as customer_id,
    (g % 10000) / 100.0::numeric(12, 2) as amount,
    case when g % 7 > 0 then 'note ' || g end as note,
    timestamptz '2025-01-01' + g * interval '1 millisecond' as updated_at
from generate_series(1, {ROWS}) as g
"""
SUMS = """
select
    count(*),
    sum(order_id),
    sum(customer_id),
    sum(cast(amount as decimal(20, 2))),
    count(note),
    {micros}
from {relation}
"""


def main() -> int:
    """Runs the measurement; 1 where a result is not what it must be."""
    server = Postgres()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        print(f"{server.version}, {ROWS:,} rows, {os.cpu_count()} cores")
        with server.database() as database:
            return 0 if Bench(database, folder).run() else 1
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """A project in a folder of its own over one database."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.env = {
            **os.environ,
            "BENCH_PASSWORD": database.password,
            "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        }
        self.right = True
        (folder / "models").mkdir()
        (folder / "dbt_packages").mkdir()
        (folder / "dbt_packages" / "strandline").symlink_to(ROOT)
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        for name, text in (
            ("loader.yml", SPEC.format(url=database.url, user=database.user)),
            ("dbt_project.yml", PROJECT),
            ("models/orders.sql", MODEL),
            ("models/shop.yml", SOURCES),
        ):
            (folder / name).write_text(text)

    def run(self) -> bool:
        """First sync, nothing new, fifteen changes; a build after each."""
        self.database.execute(
            TABLE,
            "alter table orders add primary key (order_id)",
            "create index on orders (updated_at)",
            "analyze orders",
        )
        self.sync("first sync", appended=ROWS)
        self.build("first build")
        self.sync("nothing new", appended=0)
        self.build("build of nothing")
        self.database.execute(
            "update orders set note = 'changed', updated_at = now() where order_id <= 10",
            "insert into orders select max(order_id) over () + g, 1, 1, 'new', now() "
            "from (select order_id from orders order by order_id desc limit 1) as o, "
            "generate_series(1, 5) as g",
        )
        self.sync("15 changes", appended=15)
        self.build("build of 15 changes")
        self.compare()
        return self.right

    def sync(self, what: str, appended: int) -> None:
        """A `loader run`, its time, and the rows it appended."""
        seconds, text = self.timed([str(BIN / "loader"), "--log-format", "json", "run"])
        found = f'"appended": {appended},' in text
        self.told(what, seconds, f"appended {appended:,}" if found else text, found)

    def build(self, what: str) -> None:
        """A `dbt build` and its time."""
        command = [str(BIN / "dbt"), "build", "--profiles-dir", "profiles"]
        seconds, text = self.timed(command)
        last = [line for line in text.splitlines() if "PASS=" in line]
        well = bool(last) and "ERROR=0" in last[-1]
        self.told(what, seconds, last[-1].split("Done. ")[-1] if last else text, well)

    def compare(self) -> None:
        """Counts and sums of the snapshot against the source's."""
        micros = "sum((extract(epoch from updated_at) * 1000000)::bigint)"
        [source] = self.database.query(SUMS.format(micros=micros, relation="orders"))
        script = (
            "import sys; from loader.runtime.profile import load_profile;"
            "from loader.runtime.spark import session;"
            "from pathlib import Path;"
            "s = session(load_profile('strandline', None, Path.cwd()));"
            "print('|'.join(map(str, s.sql(sys.argv[1]).first())))"
        )
        sql = SUMS.format(
            micros="sum(cast(unix_micros(updated_at) as decimal(38, 0)))",
            relation="analytics.orders",
        )
        _, text = self.timed([sys.executable, "-c", script, sql])
        expected = "|".join(map(str, source))
        found = text.strip().splitlines()[-1]
        self.told("snapshot = source", None, found, found == expected)
        if found != expected:
            print(f"  source: {expected}")

    def timed(self, command: list[str]) -> tuple[float, str]:
        """Runs a command in the project; seconds of the whole process, and its output."""
        began = time.perf_counter()
        done: Any = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        return time.perf_counter() - began, done.stdout or done.stderr

    def told(self, what: str, seconds: float | None, result: str, well: bool) -> None:
        """A line of the report."""
        self.right = self.right and well
        shown = f"{seconds:7.1f} s" if seconds is not None else " " * 9
        print(f"{'ok   ' if well else 'WRONG'} {what:22} {shown}  {result}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
