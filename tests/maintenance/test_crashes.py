"""A compaction that dies leaves the table as it was or smaller, and every row accounted for.

A compaction's steps touch one table. So one project has a table for each step, whose compaction
dies there; then all are read, proved, synced and compacted together.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.maintenance import compaction, expiry
from tests.crash.workers import Workers
from tests.dbt.dbtproject import DbtProject
from tests.maintenance.shop import CHANGED, KEY, ON_RAW, ORDERS, Shop
from tests.services import Database
from tests.sync.project import Project

LEFT = ORDERS + CHANGED
"""Raw's rows after a compaction: a version of each key, and the newest batch."""

ORDERS_ONLY = ("--select", "shop.orders")
COMPACT = ("compact", "--keep-versions", "1", "--expire-days", "0")
ACCOUNTED = "batches_accounted"
KILLS = int(os.environ.get("STRANDLINE_KILLS", "1"))


class Crash(BaseException):
    """Ends a compaction like a killed process: nothing more is done."""


def _at(number: int, after: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """Dies before or after properties are set for the n-th time."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = Lake.set_properties, iter(range(1, 100))

        def set_properties(self: Lake, table: str, properties: Any) -> None:
            now = next(calls)
            if now == number and not after:
                raise Crash
            real(self, table, properties)
            if now == number:
                raise Crash

        monkeypatch.setattr(Lake, "set_properties", set_properties)

    return patch


def _in(module: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Dies when a function is called."""

    def crash(*_: object) -> None:
        raise Crash

    return lambda monkeypatch: monkeypatch.setattr(module, name, crash)


CRASHES = {
    "before": (_at(1, after=False), False),
    "intended": (_at(1, after=True), False),  # the account says what would go, and nothing went
    "removed": (_at(2, after=False), True),  # the rows are gone, the account is open
    "accounted": (_in(compaction, "rewrite_raw"), True),
    "rewritten": (_at(3, after=False), True),
    "kept": (_in(expiry, "expire"), True),
}
"""By table: how its compaction dies, and whether its rows are gone then."""


class Fleet:
    """A table for each crash, and the dbt tests of all of them."""

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.project = project
        for table in CRASHES:
            database.execute(
                f"create table {table} (id int primary key, note text, at timestamp)",
                f"insert into {table} select n, 'n' || n, timestamp '2025-01-01' "
                f"+ n * interval '1 ms' from generate_series(1, {ORDERS}) n",
            )
        options = {table: {"cursor_field": "at"} for table in CRASHES}
        project.jdbc(database, [*CRASHES], table_options=options)
        project.run()
        for number in range(2):
            for table in CRASHES:
                database.execute(
                    f"update {table} set note = 'v{number}', at = timestamp '2025-01-02' "
                    f"+ {number} * interval '1 minute' + id * interval '1 ms' "
                    f"where id > {number * CHANGED} and id <= {(number + 1) * CHANGED}"
                )
            project.run()
        name = project.schema
        self.dbt = DbtProject(project.spark, folder, schema=f"mart_{name}", raw_schema=name)
        tests = [f"strandline.{test}" for test in ON_RAW]
        declared = {"config": {"meta": {"strandline": KEY}}, "data_tests": tests}
        tables = [{"name": table, **declared} for table in CRASHES]
        source = {"name": "shop", "schema": name, "tables": tables}
        self.dbt.write("models/shop.yml", {"sources": [source]})
        self.manifest = self.dbt.parse()

    def versions(self) -> dict[str, set[tuple[Any, ...]]]:
        """Returns what each table holds; no row may be there twice."""
        each = (f"select '{table}', id, _cq_batch, at, note from raw.{table}" for table in CRASHES)
        rows = self.project.rows(" union all ".join(each))
        assert len(set(rows)) == len(rows)
        return {name: {row for row in rows if row[0] == name} for name in CRASHES}

    def told(self) -> tuple[Any, ...]:
        """Returns what the newest commits, the state and the ledger say."""
        lake = self.project.lake()
        return (
            [newest_commit(lake, table) for table in CRASHES],
            sorted(self.project.rows("select key, version, value from raw._cq_state")),
            sorted(
                self.project.rows(
                    "select table_name, batch, cursor_low, cursor_high, rows_appended, snapshot_id "
                    "from raw._cq_syncs where batch is not null"
                )
            ),
        )

    def proven(self, *chosen: str) -> None:
        """Runs these of the tests; all must pass."""
        results = self.dbt.run("test", "--select", *chosen, manifest=self.manifest)
        assert len(results) >= len(CRASHES)
        assert [name for name, one in results.items() if one.status != "pass"] == []


def test_a_crash_at_each_step(
    project: Project,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(project, postgres_database, tmp_path / "dbt")
    whole, told = fleet.versions(), fleet.told()
    assert {len(rows) for rows in whole.values()} == {ORDERS + 2 * CHANGED}
    for table, (dies, _) in CRASHES.items():
        with monkeypatch.context() as patch:
            dies(patch)
            with pytest.raises(Crash):
                project.loader(*COMPACT, "--select", f"shop.{table}")
    # of the first batch goes what the second one changed; the newest batch's predecessors stay
    small = {
        table: {row for row in rows if row[2] > 1 or row[1] > CHANGED}
        for table, rows in whole.items()
    }
    after = fleet.versions()
    for table, (_, gone) in CRASHES.items():
        assert after[table] == (small if gone else whole)[table], table
    assert fleet.told() == told
    fleet.proven(f"test_name:{ACCOUNTED}")
    synced = project.run()
    assert {synced.table(f"shop.{table}")["status"] for table in CRASHES} == {"nothing new"}
    ran = project.loader(*COMPACT)
    assert ran.code == 0, ran.text
    freed = {one["table"]: one for one in ran.events if one["event"] == "compacted"}
    for table, (_, gone) in CRASHES.items():
        rows = freed[f"shop.{table}"]["rows_before"], freed[f"shop.{table}"]["rows_after"]
        assert rows == (LEFT if gone else LEFT + CHANGED, LEFT), table
    assert fleet.versions() == small
    assert fleet.told() == told
    assert {project.snapshots(table) for table in CRASHES} == {1}
    # rows, commits, state and ledger are as they were: only the account can still be wrong
    fleet.proven(f"test_name:{ACCOUNTED}", f"source:shop.{[*CRASHES][-1]}")


@pytest.mark.slow
def test_killed_at_any_moment(shop: Shop, workers: Workers) -> None:
    """STRANDLINE_KILLS says how often."""
    moments = random.Random(4711)
    seen = set()
    for number in range(KILLS):
        shop.change()
        shop.project.run()
        latest, head, before = shop.latest(), shop.head(), len(shop.versions())
        victim = workers.take()
        victim.start(shop.project, *COMPACT)
        time.sleep(moments.uniform(2, 8))
        for pid in (victim.jvm, victim.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert victim.died() == signal.SIGKILL
        seen.add(len(shop.versions()) < before)
        assert (shop.latest(), shop.head()) == (latest, head), f"kill {number}"
        shop.proven(by=ACCOUNTED)
        assert shop.project.run().table("shop.orders")["status"] == "nothing new"
    shop.compact(*COMPACT[1:])
    assert len(shop.versions()) == LEFT
    print(f"killed before and after the rows went: {seen}")
    shop.proven()


def test_a_removal_that_fails_leaves_every_batch_to_be_asked_for(shop: Shop) -> None:
    """`as_of` refuses batches that compaction has removed versions of; here there are none."""
    table = f"{shop.project.schema}.orders"
    sql = shop.project.spark.sql
    sql(f"alter table {table} set tblproperties ('write.delete.format.default' = 'none such')")
    before = shop.versions()
    ran = shop.project.loader("compact", "--keep-versions", "1", *ORDERS_ONLY)
    assert (ran.code, len(ran.errors)) == (1, 1), ran.text
    assert ran.errors[0].startswith("table shop.orders: ")
    properties = dict(shop.project.rows("show tblproperties raw.orders"))
    assert properties["strandline.compacted_to"] == "0"
    assert shop.versions() == before
    shop.proven(by=ACCOUNTED)
    sql(f"alter table {table} unset tblproperties ('write.delete.format.default')")
    shop.compact("--keep-versions", "1", *ORDERS_ONLY)
    properties = dict(shop.project.rows("show tblproperties raw.orders"))
    assert properties["strandline.compacted_to"] == "4"
    assert len(shop.versions()) == LEFT
    shop.proven(by=ACCOUNTED)
