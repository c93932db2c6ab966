"""Finds and repairs 170 changes that no cursor shows in a million rows; times a full refresh.

    python benchmarks/reconcile.py              1,000,000 rows on PostgreSQL
    ROWS=100000 python benchmarks/reconcile.py  fewer

Makes 100 updates that do not change the cursor, 50 deletes, and 20 inserts below the cursor.
`loader reconcile` must report exactly these 170 changes, and `--repair` must append 170 rows. The
newest versions in the raw table must then match the source in their count and in the sums of each
column, and the next sync must append nothing. Each command is a separate process. KB is the amount
of data that the server sent to it, including catalog queries, as counted by a proxy between them.
"""

from __future__ import annotations

import json
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

from benchmarks.proxy import Proxy  # noqa: E402
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
      orders: {{cursor_field: updated_at, sweep: never}}
---
kind: destination
spec: {{name: lake, path: spark}}
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
MISSED = {"missed_updates": 100, "missed_rows": 20, "missed_deletes": 50}
NEWEST = """
(
    select newest.*
    from (
        select max_by(
            struct(*), struct(_cq_generation, updated_at, _cq_batch, _cq_seq)
        ) as newest
        from raw.orders
        group by order_id
    ) as keys
    where not newest._cq_deleted
) as snapshot
"""


def main() -> int:
    """Runs the measurement. Returns 1 if a result is wrong."""
    server = Postgres(hashed=True)
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        print(f"{server.version}, {ROWS:,} rows, {os.cpu_count()} cores")
        with server.database() as database:
            return 0 if Show(database, folder).run() else 1
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


class Show:
    """A project in a new folder that reads one database through a proxy."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.proxy = Proxy(database.server.port)
        self.right = True
        self.env = {
            **os.environ,
            "BENCH_PASSWORD": database.password,
            "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
        }
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        url = database.url.replace(f":{database.server.port}/", f":{self.proxy.port}/")
        (folder / "loader.yml").write_text(SPEC.format(url=url, user=database.user))

    def run(self) -> bool:
        """Syncs, makes changes, reconciles, repairs, syncs, reconciles, and runs a full refresh."""
        self.database.execute(
            TABLE,
            "alter table orders add primary key (order_id)",
            "create index on orders (updated_at)",
            "analyze orders",
        )
        self.loader("first sync", ["run"], "table", appended=ROWS)
        self.loader("reconcile, equal", ["reconcile"], "reconciled", status="equal", rows=ROWS)
        self.change()
        self.loader("reconcile, 170 missed", ["reconcile"], "reconciled", **MISSED, code=1)
        repair = ["reconcile", "--repair"]
        self.loader("reconcile --repair", repair, "reconciled", **MISSED, repaired=170)
        self.compare()
        self.loader("next sync", ["run"], "table", appended=0)
        few = ["reconcile", "--per-run", "8"]
        self.loader("reconcile, 8 of 64", few, "reconciled", status="equal", verified=8)
        self.loader("reconcile, equal again", ["reconcile"], "reconciled", status="equal")
        refreshed = ROWS - 50 + 20
        self.loader("full refresh", ["run", "--full-refresh"], "table", appended=refreshed)
        self.compare()
        return self.right

    def change(self) -> None:
        """Makes the changes, spread over the table, but none at the cursor."""
        step = ROWS // 200
        self.database.execute(
            f"update orders set note = 'changed behind' "
            f"where order_id % {step} = 7 and order_id <= {step * 100}",
            f"delete from orders where order_id % {step} = 11 and order_id <= {step * 50}",
            "insert into orders select -g, 1, 1, 'came behind', "
            "timestamptz '2025-01-01' + g * interval '1 second' from generate_series(1, 20) as g",
        )

    def loader(self, what: str, arguments: list[str], event: str, **wanted: Any) -> None:
        """Runs a command, prints its time and what the server sent, and checks its output."""
        code = wanted.pop("code", 0)
        before = self.proxy.sent
        command = [str(BIN / "loader"), "--log-format", "json", *arguments]
        began = time.perf_counter()
        done = self.process(command)
        seconds = time.perf_counter() - began
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        [reported] = [one for one in lines if one["event"] == event] or [{}]
        said = {name: reported.get(name) for name in wanted}
        well = said == wanted and done.returncode == code
        result = ", ".join(f"{name} {value}" for name, value in said.items())
        self.reported(what, seconds, result, well, (self.proxy.sent - before) / 1024)
        if not well:
            print(done.stdout[-2000:], done.stderr[-2000:])

    def compare(self) -> None:
        """Compares the counts and sums of the newest versions with the source's."""
        micros = "sum((extract(epoch from updated_at) * 1000000)::bigint)"
        [source] = self.database.query(SUMS.format(micros=micros, relation="orders"))
        script = (
            "import sys; from loader.spark.profile import load_profile;"
            "from loader.spark.session import session;"
            "from pathlib import Path;"
            "s = session(load_profile('strandline', None, Path.cwd()));"
            "print('|'.join(map(str, s.sql(sys.argv[1]).first())))"
        )
        sums = SUMS.format(
            micros="sum(cast(unix_micros(updated_at) as decimal(38, 0)))", relation=NEWEST
        )
        done = self.process([sys.executable, "-c", script, sums])
        found = (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1]
        self.reported("snapshot = source", None, found, found == "|".join(map(str, source)))

    def process(self, command: list[str]) -> Any:
        """Runs a command in the project."""
        return subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )

    def reported(
        self, what: str, seconds: float | None, result: str, well: bool, sent: float | None = None
    ) -> None:
        """Returns a line of the report."""
        self.right = self.right and well
        shown = f"{seconds:7.1f} s" if seconds is not None else " " * 9
        size = f"{sent:10,.0f} KB" if sent is not None else " " * 13
        print(f"{'ok   ' if well else 'WRONG'} {what:24} {shown} {size}  {result}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
