"""Once `batches_complete` has passed, it reads only changed tables and still finds every fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.batch_cases import GAP
from tests.dbt.checked_tables import COLUMNS, HIDDEN, CheckedTable, row
from tests.dbt.dbtproject import DbtProject
from tests.dbt.generic_test_case import OTHERS
from tests.dbt.rawtables import RawSchema

Found = dict[str, list[tuple[int | None, str]]]
TESTS = {"cq_sync_log": "batches_complete", "cq_state_current": "state_consistent"}
PROJECT_SETTINGS = {"data_tests": {"strandline": {"+store_failures": True}}}
"""Tests that cover all tables store their failing rows: their SQL is large and runs only once."""

LEDGER_AND_RAW = "row counts of ledger and raw table differ"


class Accounts(CheckedTable):
    """A raw table of three batches, each with its ledger row."""

    def __init__(
        self, project: DbtProject, raw: RawSchema, table: str, first_batch: int = 1
    ) -> None:
        super().__init__(project, raw, table, {})
        if first_batch > 1:
            begins_with(self, first_batch)
            self.batch = first_batch - 1
        for day in (1, 2, 3):
            self.append(row(day, day), row(10 + day, day))

    def ledger(self, change: str) -> None:
        """Changes the ledger; `{0}` is its name and `{1}` the condition for this table's rows."""
        own = f"table_name = '{self.table}'"
        self.spark.sql(change.format(f"{self.raw.schema}.{self.raw.syncs_table}", own))

    def record(self, batch: int, rows: int) -> None:
        """Adds a row to the ledger."""
        self.raw.syncs(self.table, [{"batch": batch, "rows_appended": rows}])


def forgotten(table: Accounts) -> None:
    table.append(row(4, 4))
    table.append(row(5, 5))
    table.ledger("delete from {0} where {1} and batch = 4")


def twice(table: Accounts) -> None:
    table.append(row(4, 4))
    table.record(4, 1)


def more_in_the_ledger(table: Accounts) -> None:
    table.append(row(4, 4))
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 4")


def more_in_its_commit(table: Accounts) -> None:
    table.slip_in(row(4, 4, _cq_batch=4), row(5, 4, _cq_batch=3))
    table.record(4, 1)


def lost(table: Accounts) -> None:
    table.append(row(4, 4))
    table.record(5, 1)


def gap(table: Accounts) -> None:
    table.batch += 1
    table.append(row(5, 5))


def generation(table: Accounts) -> None:
    table.slip_in(row(4, 4, _cq_batch=4, _cq_generation=7))
    table.record(4, 1)


def no_rows(table: Accounts) -> None:
    table.slip_in()


def another_batch(table: Accounts) -> None:
    table.slip_in(row(9, 1, _cq_batch=1))


def old_entry_gone(table: Accounts) -> None:
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 2")


def old_entry_twice(table: Accounts) -> None:
    table.record(2, 2)


def old_entry_forged(table: Accounts) -> None:
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 1")


def written_by_others(table: Accounts) -> None:
    table.append(row(4, 4))
    table.spark.sql(f"delete from {table.name} where id = 2")


def raised(table: Accounts) -> None:
    begins_with(table, 2)


def begins_with(table: Accounts, batch: int) -> None:
    """Records the first batch of the raw table."""
    table.spark.sql(
        f"alter table {table.name} set tblproperties ('strandline.first-batch' = '{batch}')"
    )


FAULTS: dict[str, tuple[Callable[[Accounts], object], list[tuple[int | None, str]]]] = {
    "forgotten": (forgotten, [(4, "not in the ledger")]),
    "twice": (twice, [(4, "several times in the ledger")]),
    "more_in_the_ledger": (more_in_the_ledger, [(4, LEDGER_AND_RAW)]),
    "more_in_its_commit": (
        more_in_its_commit,
        [(3, LEDGER_AND_RAW), (4, "row counts of commit and raw table differ")],
    ),
    "lost": (lost, [(5, "in the ledger, not in the raw table")]),
    "gap": (gap, [(4, GAP)]),
    "generation": (generation, [(4, "rows of a generation that their sync did not have")]),
    "no_rows": (no_rows, [(4, "committed, not in the raw table")]),
    "another_batch": (
        another_batch,
        [(1, LEDGER_AND_RAW), (4, "committed, not in the raw table")],
    ),
    "old_entry_gone": (old_entry_gone, [(2, "not in the ledger")]),
    "old_entry_twice": (old_entry_twice, [(2, "several times in the ledger")]),
    "old_entry_forged": (old_entry_forged, [(1, LEDGER_AND_RAW)]),
    "written_by_others": (written_by_others, [(None, OTHERS), (2, LEDGER_AND_RAW)]),
    "raised": (raised, [(1, "rows of a batch from before the table was created")]),
}


class Books:
    """All tables of this file, and the results of the tests for them."""

    def __init__(self, project: DbtProject, raw: RawSchema) -> None:
        self.project = project
        names = [*FAULTS, "calm", "grown", "compacted", "in_flight", "reloaded"]
        self.tables = {name: Accounts(project, raw, name) for name in names}
        CheckedTable(project, raw, "never_synced", {})
        for name, first_batch in {"overlooked": 1, "thirtieth": 27}.items():
            self.tables[name] = Accounts(project, raw, name, first_batch)

    def overlook(self, *names: str) -> None:
        """Changes the stored verdicts of tables so that they cover the current snapshots."""
        spark, model = self.project.spark, f"{self.project.schema}.cq_sync_log"
        show = "show tblproperties {}('{}')"
        [proved] = spark.sql(show.format(model, "strandline.verdicts")).collect()
        verdicts = json.loads(proved.value.replace(HIDDEN, ""))
        for name in names:
            table = self.tables[name].name
            [snapshot] = spark.sql(show.format(table, "current-snapshot-id")).collect()
            verdicts[name]["snapshot"] = snapshot.value
        text = HIDDEN.join(json.dumps(verdicts))
        spark.sql(f"alter table {model} set tblproperties ('strandline.verdicts' = '{text}')")

    def audit(self, command: str = "build", model: str = "cq_sync_log") -> tuple[Found, str]:
        """Returns the failing batches by table, and the SQL that found them."""
        results = self.project.run(command, "--select", model)
        if command == "build":
            assert results[model].status == "success", results[model].message
        [one] = [one for name, one in results.items() if TESTS[model] in name]
        assert one.status in ("pass", "fail"), one.message
        found: Found = {}
        for line in self.project.failing_rows(one) if one.failures else []:
            found.setdefault(line["table_name"], []).append((line["batch"], line["problem"]))
        for lines in found.values():
            lines.sort(key=lambda line: (line[0] or 0, line[1]))
        return found, one.sql


@pytest.fixture(scope="module")
def books(project: DbtProject, raw: RawSchema) -> Books:
    return Books(project, raw)


def test_a_fault_is_found_at_once_and_until_it_is_repaired(books: Books, raw: RawSchema) -> None:
    """Covers new and old batches, raw tables, ledger, commits, and writes by other programs."""
    tables = books.tables
    assert books.audit()[0] == {}
    found, sql = books.audit("test")
    assert (found, [name for name in tables if f"{name}`" in sql]) == ({}, [])

    # a fault that the verdict covers is found at batch 30, when all batches are counted again
    for name in ("overlooked", "thirtieth"):
        raw.spark.sql(f"delete from {tables[name].name} where id = 2")
    books.overlook("overlooked", "thirtieth")
    for name in ("overlooked", "thirtieth"):
        tables[name].append(row(4, 4))

    for fault, (plant, _) in FAULTS.items():
        plant(tables[fault])
    tables["grown"].append(row(4, 4))
    tables["grown"].append(row(5, 5), row(6, 5))
    # rows that compaction removed are accounted for as a sum
    compacted = tables["compacted"].name
    raw.spark.sql(f"delete from {compacted} where _cq_batch = 1")
    removed = """'strandline.compacted' = '{"to": 1, "rows": 2}'"""
    raw.spark.sql(f"alter table {compacted} set tblproperties ({removed})")
    # a running sync has not written its ledger row yet
    tables["in_flight"].append(row(4, 4))
    tables["in_flight"].ledger("delete from {0} where {1} and batch = 4")
    # the ledger's rows of a dropped table do not count
    raw.spark.sql(f"drop table {tables['reloaded'].name}")
    raw.create("reloaded", COLUMNS)
    begins_with(tables["reloaded"], 4)
    tables["reloaded"].append(row(4, 4))
    expected: Found = {fault: problems for fault, (_, problems) in FAULTS.items()}
    expected["thirtieth"] = [(None, OTHERS), (28, LEDGER_AND_RAW)]
    found, sql = books.audit()
    assert found == expected
    assert "calm`" not in sql

    # after these repairs, a ledger row that is still missing is a fault: there is a newer batch
    tables["old_entry_gone"].record(2, 2)
    tables["old_entry_forged"].ledger("update {0} set rows_appended = 2 where {1} and batch = 1")
    tables["forgotten"].record(4, 1)
    begins_with(tables["raised"], 1)
    tables["in_flight"].append(row(5, 5))
    for name in ("old_entry_gone", "old_entry_forged", "forgotten", "raised"):
        del expected[name]
    expected["in_flight"] = [(4, "not in the ledger")]
    others = tables["written_by_others"]
    [snapshot] = raw.spark.sql(
        f"select max_by(snapshot_id, committed_at) as id from {others.name}.snapshots"
    ).collect()
    known = {"test": "batches_complete", "who": "ada", "when": "today", "why": "because"}
    others.meta["acknowledged"] = [{**known, "batches": 2}, {**known, "snapshot": snapshot.id}]
    others.write()
    del expected["written_by_others"]
    assert books.audit()[0] == expected
    found, sql = books.audit("test")
    assert found == expected
    judged = {name for name in tables if f"`{name}`" in sql}
    assert judged == set(expected)

    # a table with an acknowledged incident is still checked for new faults
    tables["in_flight"].record(4, 1)
    others.append(row(5, 5))
    others.ledger("update {0} set rows_appended = 9 where {1} and batch = 5")
    del expected["in_flight"]
    expected["written_by_others"] = [(5, LEDGER_AND_RAW)]
    assert books.audit("test")[0] == expected


@pytest.mark.parametrize("model", TESTS)
def test_a_sync_that_ends_while_a_test_reads_is_no_fault(
    books: Books, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is committed and recorded after the test has chosen the snapshot that it reads."""
    calm, run = books.tables["calm"], SparkSession.sql
    _sync(calm, 6)
    known = books.audit("build", model)[0]
    assert "calm" not in known
    _sync(calm, 6)  # otherwise the build has already checked the table
    synced: list[str] = []

    def amid(session: SparkSession, text: str, *more: Any, **given: Any) -> Any:
        found = run(session, text, *more, **given)
        if not synced and f"show tblproperties {calm.name}" in text.replace("`", ""):
            synced.append(text)
            _sync(calm, 7)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(SparkSession, "sql", amid)
        assert books.audit("test", model)[0] == known
    assert len(synced) == 1


def _sync(table: Accounts, day: int) -> None:
    """Appends a batch, and writes its ledger row and its state."""
    batch = table.append(row(day, day))
    table.raw.states(table.table, [(batch, {"batch": batch})])
