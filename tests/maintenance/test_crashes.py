"""A killed compaction leaves the table as it was or smaller, and every removed row recorded.

Each step of a compaction touches one table. So one project has a table for each step, at which its
compaction dies, one whose rows cannot be removed, and one whose compaction is killed at a random
moment with its process. Then all tables are read, tested, synced and compacted together.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loader.errors import TableError
from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.maintenance import compaction, snapshot_expiry
from tests.crash.workers import Worker, Workers
from tests.dbt.dbtproject import DbtProject
from tests.maintenance.shop import CHANGED, KEY, ORDERS
from tests.services import Database
from tests.sync.project import Project

LEFT = ORDERS + CHANGED
"""Rows in the raw table after compaction: one version of each key, and the newest batch."""

COMPACT = ("compact", "--keep-versions", "1", "--expire-days", "0")
ACCOUNTED = "batches_complete"
KILLS = int(os.environ.get("STRANDLINE_KILLS", "1"))


class Crash(BaseException):
    """Ends a table's compaction at once, as if its process had been killed."""


CRASHES = {
    "before": (("set_properties", 1, False), False),
    "intended": (("set_properties", 1, True), False),  # the removal is recorded, not done
    "removed": (("set_properties", 2, False), True),  # removed, the record is still open
    "accounted": (("rewrite_raw", 1, False), True),
    "rewritten": (("set_properties", 3, False), True),
    "kept": (("expire_snapshots", 1, False), True),
}
"""For each table: before or after which call its compaction dies, and if rows are removed then."""

UNREMOVABLE = "unremovable"
KILLED = [f"killed_{number}" for number in range(KILLS)]
TABLES = [*CRASHES, UNREMOVABLE, *KILLED]
FORMAT = "write.delete.format.default"


@contextmanager
def _crash_at_steps() -> Iterator[None]:
    """Lets the compaction of each table in CRASHES die at its step; other tables are compacted."""
    calls: Counter[tuple[str, str]] = Counter()
    compact_raw = compaction.compact_raw

    def compact_or_die(lake: Lake, raw: compaction.Raw, *given: Any) -> compaction.CompactionResult:
        try:
            return compact_raw(lake, raw, *given)
        except Crash:
            raise TableError("died", where=f"table {raw.name}", remedy="Run again") from None

    with pytest.MonkeyPatch.context() as patch:

        def crash_in(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def call(lake: Lake, table: str, *given: Any) -> Any:
                calls[name, table] += 1
                place, number, after = CRASHES.get(table, (("", 0, False), False))[0]
                here = (place, number) == (name, calls[name, table])
                if here and not after:
                    raise Crash
                done = real(lake, table, *given)
                if here:
                    raise Crash
                return done

            patch.setattr(owner, name, call)

        crash_in(Lake, "set_properties")
        crash_in(compaction, "rewrite_raw")
        crash_in(snapshot_expiry, "expire_snapshots")
        patch.setattr(compaction, "compact_raw", compact_or_die)
        yield


class Fleet:
    """The tables, and a dbt project that declares them."""

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.project = project
        for table in TABLES:
            database.execute(
                f"create table {table} (id int primary key, note text, at timestamp)",
                f"insert into {table} select n, 'n' || n, timestamp '2025-01-01' "
                f"+ n * interval '1 ms' from generate_series(1, {ORDERS}) n",
            )
        options = {table: {"cursor_field": "at"} for table in TABLES}
        project.jdbc(database, TABLES, table_options=options)
        project.run()
        for number in range(2):
            for table in TABLES:
                database.execute(
                    f"update {table} set note = 'v{number}', at = timestamp '2025-01-02' "
                    f"+ {number} * interval '1 minute' + id * interval '1 ms' "
                    f"where id > {number * CHANGED} and id <= {(number + 1) * CHANGED}"
                )
            project.run()
        name = project.schema
        self.dbt = DbtProject(project.spark, folder, schema=f"mart_{name}", raw_schema=name)
        settings = {"config": {"meta": {"strandline": KEY}}}
        tables = [{"name": table, **settings} for table in TABLES]
        source = {"name": "shop", "schema": name, "tables": tables}
        self.dbt.write("models/shop.yml", {"sources": [source]})
        self.manifest = self.dbt.parse()

    def versions(self) -> dict[str, set[tuple[Any, ...]]]:
        """Returns the rows of each table, after checking that none is there twice."""
        each = (f"select '{table}', id, _cq_batch, at, note from raw.{table}" for table in TABLES)
        rows = self.project.rows(" union all ".join(each))
        assert len(set(rows)) == len(rows)
        return {name: {row for row in rows if row[0] == name} for name in TABLES}

    def recorded(self) -> tuple[Any, ...]:
        """Returns the newest commits, the state and the ledger."""
        lake = self.project.lake()
        return (
            [newest_commit(lake, table) for table in TABLES],
            sorted(self.project.rows("select key, version, value from raw._cq_state")),
            sorted(
                self.project.rows(
                    "select table_name, batch, cursor_low, cursor_high, rows_appended, snapshot_id "
                    "from raw._cq_syncs where batch is not null"
                )
            ),
        )

    def alter(self, table: str, action: str) -> None:
        """Changes a raw table's properties."""
        self.project.spark.sql(f"alter table {self.project.schema}.{table} {action}")

    def compacted_to(self, table: str) -> str:
        """Returns the batch up to which `as_of` refuses a table's batches."""
        properties = dict(self.project.rows(f"show tblproperties raw.{table}"))
        return str(properties["strandline.compacted_to"])

    def run_dbt_test(self, test: str) -> None:
        """Runs a dbt test of the ledger or the state, which covers all tables. It must pass."""
        results = self.dbt.run("test", "--select", f"test_name:{test}", manifest=self.manifest)
        assert [(one.status, one.message) for one in results.values()] == [("pass", "")]
        [judged] = results.values()
        assert [table for table in TABLES if f"'{table}'" not in judged.sql] == []


@pytest.mark.slow
def test_a_crash_at_each_step_and_a_kill_at_any_moment(
    project: Project, postgres_database: Database, workers: Workers, tmp_path: Path
) -> None:
    """STRANDLINE_KILLS sets the number of killed processes."""
    victims = [workers.take() for _ in KILLED]
    fleet = Fleet(project, postgres_database, tmp_path / "dbt")
    whole, recorded = fleet.versions(), fleet.recorded()
    assert {len(rows) for rows in whole.values()} == {ORDERS + 2 * CHANGED}
    # rows of batch 1 that batch 2 superseded are removed, those that batch 3 superseded are kept
    small = {
        table: {row for row in rows if row[2] > 1 or row[1] > CHANGED}
        for table, rows in whole.items()
    }
    moments = random.Random(4711)
    for table, victim in zip(KILLED, victims, strict=True):
        victim.start(project, *COMPACT, "--select", f"shop.{table}")
        timer = threading.Timer(moments.uniform(1, 6), _kill, [victim])
        timer.start()
        if table == KILLED[0]:
            _crash_all(fleet)
        timer.join()
        assert victim.died() == signal.SIGKILL

    after = fleet.versions()
    for table, (_, gone) in CRASHES.items():
        assert after[table] == (small if gone else whole)[table], table
    assert after[UNREMOVABLE] == whole[UNREMOVABLE]
    for table in KILLED:
        assert after[table] in (whole[table], small[table]), table
    assert fleet.recorded() == recorded
    # `as_of` refuses batches that compaction has removed versions of; here there are none
    assert fleet.compacted_to(UNREMOVABLE) == "0"
    fleet.run_dbt_test(ACCOUNTED)

    synced = project.run()
    assert {synced.table(f"shop.{table}")["status"] for table in TABLES} == {"nothing new"}
    fleet.alter(UNREMOVABLE, f"unset tblproperties ('{FORMAT}')")
    ran = project.loader(*COMPACT)
    assert ran.code == 0, ran.text
    freed = {one["table"]: one for one in ran.events if one["event"] == "compacted"}
    for table in TABLES:
        rows = freed[f"shop.{table}"]["rows_before"], freed[f"shop.{table}"]["rows_after"]
        assert rows == (len(after[table]), LEFT), table
    assert fleet.versions() == small
    assert fleet.recorded() == recorded
    assert {fleet.compacted_to(table) for table in TABLES} == {"2"}
    assert {project.snapshots(table) for table in TABLES} == {1}
    # rows, commits, state and ledger are as before: only the record of removed rows can be wrong
    fleet.run_dbt_test(ACCOUNTED)


def _crash_all(fleet: Fleet) -> None:
    """Compacts the tables in CRASHES, and the one whose rows cannot be removed."""
    fleet.alter(UNREMOVABLE, f"set tblproperties ('{FORMAT}' = 'none such')")
    chosen = [option for table in TABLES[:-KILLS] for option in ("--select", f"shop.{table}")]
    with _crash_at_steps():
        ran = fleet.project.loader(*COMPACT, *chosen)
    assert ran.code == 1, ran.text
    died = {f"table shop.{table}: died. Run again" for table in CRASHES}
    [failed] = set(ran.errors) - died
    assert died < set(ran.errors), ran.text
    assert failed.startswith(f"table shop.{UNREMOVABLE}: "), ran.text


def _kill(victim: Worker) -> None:
    for pid in (victim.jvm, victim.process.pid):
        os.kill(pid, signal.SIGKILL)
