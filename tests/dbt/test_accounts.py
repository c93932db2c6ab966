"""`batches_accounted` once it has held: one look at what is new, and no fault slips through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.provings import Proving, proved_again, row
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Command, Steps, in_step

WITHIN = 3
NAME = "accounted"
EMPTY = "where false"


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    return proved_again(spark, raw, tmp_path_factory.mktemp("accounts"), WITHIN)


class Accounts(Proving):
    """A raw table of which `batches_accounted` is to hold up to its third batch."""

    def __init__(self, project: DbtProject, raw: RawSchema, table: str) -> None:
        accounted = {"strandline.batches_accounted": {"name": f"{NAME}_{table}"}}
        super().__init__(project, raw, table, models=(), tests=[accounted])
        for day in (1, 2, 3):
            self.append(row(day, day), row(10 + day, day))

    def ledger(self, change: str) -> None:
        """Changes the ledger, of which `{0}` is the name and `{1}` the condition for our rows."""
        own = f"table_name = '{self.table}'"
        self.spark.sql(change.format(f"{self.raw.schema}.{self.raw.syncs_table}", own))

    def plan(self) -> Command:
        """Returns a run of the test; answered with its result."""
        return Command(("test",), tuple(self.chosen), self._read)

    def _read(self, results: Mapping[str, Result]) -> Result:
        [one] = self._own(results).values()
        return one

    def hold(self) -> Steps:
        """Runs the test for the first time."""
        assert (yield self.plan()).status == "pass"


def problems(one: Result, spark: SparkSession) -> list[tuple[int, str]]:
    """Returns batches and what is wrong, by the query that the test has sent."""
    if one.status == "pass":
        return []
    found = spark.sql(f"select batch, problem from ({one.sql})").collect()
    return sorted((line[0], line[1]) for line in found)


@in_step
def test_a_look_is_enough(project: DbtProject, raw: RawSchema) -> Steps:
    """It reads raw's rows of new batches and of those whose turn it is, and the ledger once."""
    calm = Accounts(project, raw, "calm_accounts")
    yield from calm.hold()
    calm.append(row(4, 4))
    one = yield calm.plan()
    assert (one.status, EMPTY in one.sql) == ("pass", True)
    calm.append(row(5, 5))
    calm.append(row(6, 6), row(7, 6))
    one = yield calm.plan()
    assert (one.status, EMPTY in one.sql) == ("pass", True)
    [look] = [asked for asked in calm.asked if "count_if(odd)" in asked]
    assert "_cq_batch > 4" in look
    assert not [asked for asked in calm.asked if "full join" in asked]

    # rows that compaction removed are accounted for as a sum of all
    settings = """'strandline.compacted' = '{"to": 1, "rows": 2}'"""
    raw.spark.sql(f"delete from {calm.name} where _cq_batch = 1")
    raw.spark.sql(f"alter table {calm.name} set tblproperties ({settings})")
    for _ in range(WITHIN):
        one = yield calm.plan()
        assert (one.status, "rows_compacted" in one.sql) == ("pass", True)


def forgotten(table: Accounts) -> None:
    table.append(row(4, 4))
    table.append(row(5, 5))
    table.ledger("delete from {0} where {1} and batch = 4")


def twice(table: Accounts) -> None:
    table.append(row(4, 4))
    table.raw.syncs(table.table, [{"batch": 4, "rows_appended": 1}])


def more_in_the_ledger(table: Accounts) -> None:
    table.append(row(4, 4))
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 4")


def more_in_its_commit(table: Accounts) -> None:
    table.slip_in(row(4, 4, _cq_batch=4), row(5, 4, _cq_batch=3))
    table.raw.syncs(table.table, [{"batch": 4, "rows_appended": 1}])


def lost(table: Accounts) -> None:
    table.append(row(4, 4))
    table.raw.syncs(table.table, [{"batch": 5, "rows_appended": 1}])


def gap(table: Accounts) -> None:
    table.batch += 1
    table.append(row(5, 5))


def generation(table: Accounts) -> None:
    table.append(row(4, 4, _cq_generation=7))


def no_rows(table: Accounts) -> None:
    table.slip_in()


def another_batch(table: Accounts) -> None:
    table.slip_in(row(9, 1, _cq_batch=1))


def old_entry_gone(table: Accounts) -> None:
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 2")


def old_entry_twice(table: Accounts) -> None:
    table.append(row(4, 4))
    table.raw.syncs(table.table, [{"batch": 2, "rows_appended": 2}])


FAULTS: dict[str, tuple[Callable[[Accounts], object], list[tuple[int, str]]]] = {
    "forgotten": (forgotten, [(4, "not in the ledger")]),
    "twice": (twice, [(4, "several times in the ledger")]),
    "more_in_the_ledger": (more_in_the_ledger, [(4, "ledger and raw table differ in rows")]),
    "more_in_its_commit": (
        more_in_its_commit,
        [(3, "ledger and raw table differ in rows"), (4, "commit and raw table differ in rows")],
    ),
    "lost": (lost, [(5, "in the ledger, not in the raw table")]),
    "gap": (gap, [(4, "missing everywhere")]),
    "generation": (generation, [(4, "rows of a generation that their sync did not have")]),
    "no_rows": (no_rows, [(4, "committed, not in the raw table")]),
    "another_batch": (
        another_batch,
        [
            (1, "ledger and raw table differ in rows"),
            (4, "committed, not in the raw table"),
        ],
    ),
    "old_entry_gone": (old_entry_gone, [(2, "not in the ledger")]),
    "old_entry_twice": (old_entry_twice, [(2, "several times in the ledger")]),
}


@in_step
def test_a_fault_is_found_at_once(project: DbtProject, raw: RawSchema) -> Steps:
    """Of a new batch any, of an earlier one what its ledger or a commit says; until mended."""
    tables = {fault: Accounts(project, raw, fault) for fault in FAULTS}
    nodes = tuple(f"{NAME}_{fault}" for fault in FAULTS)

    def read(results: Mapping[str, Result]) -> dict[str, list[tuple[int, str]]]:
        own = {name: one for name, one in results.items() if one.tested in {*FAULTS, ""}}
        return {name: problems(one, project.spark) for name, one in own.items()}

    assert (yield Command(("test",), nodes, read)) == {name: [] for name in nodes}
    for fault, (plant, _) in FAULTS.items():
        plant(tables[fault])
    expected = {f"{NAME}_{fault}": said for fault, (_, said) in FAULTS.items()}
    for _ in range(2):
        assert (yield Command(("test",), nodes, read)) == expected


@in_step
def test_what_others_write_is_found(project: DbtProject, raw: RawSchema) -> Steps:
    """It proves everything; what an acknowledged incident leaves is looked at again."""
    table = Accounts(project, raw, "written_by_others")
    yield from table.hold()
    table.append(row(4, 4))
    table.spark.sql(f"delete from {table.name} where id = 2")
    found = yield table.plan()
    assert (found.status, found.failures) == ("fail", 2)
    [snapshot] = table.spark.sql(
        f"select max_by(snapshot_id, committed_at) from {table.name}.snapshots"
    ).first() or [None]
    known = {"test": "batches_accounted", "who": "ada", "when": "today", "why": "because"}
    table.meta["acknowledged"] = [{**known, "batches": 2}, {**known, "snapshot": snapshot}]
    table.write()
    assert (yield table.plan()).status == "pass"
    table.append(row(5, 5))
    assert (yield table.plan()).status == "pass"
    more_in_the_ledger(table)
    assert (yield table.plan()).status == "fail"


@in_step
def test_an_earlier_batch_has_its_turn(project: DbtProject, raw: RawSchema) -> Steps:
    """Rows are counted again within the stated number of builds."""
    table = Accounts(project, raw, "turn_of_accounts")
    yield from table.hold()
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 2")
    for status in ("pass", "fail", "fail"):
        assert (yield table.plan()).status == status


@in_step
def test_a_batch_without_its_ledger_row_is_not_judged(project: DbtProject, raw: RawSchema) -> Steps:
    """A sync is writing it; if it never does, the next build says so."""
    table = Accounts(project, raw, "in_flight")
    yield from table.hold()
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 4")
    assert (yield table.plan()).status == "pass"
    [record] = table.records().values()
    assert record["batch"] == 3
    table.append(row(5, 5))
    assert problems((yield table.plan()), table.spark) == [(4, "not in the ledger")]


@in_step
def test_a_table_that_was_loaded_again(project: DbtProject, raw: RawSchema) -> Steps:
    """The ledger's rows of the dropped one do not count."""
    reloaded = Accounts(project, raw, "reloaded_accounts")
    yield from reloaded.hold()
    raw.spark.sql(f"drop table {reloaded.name}")
    raw.create("reloaded_accounts", "id int, at timestamp, payload string")
    first = "alter table {} set tblproperties ('strandline.first-batch' = '4')"
    raw.spark.sql(first.format(reloaded.name))
    for day in (4, 5):
        reloaded.append(row(day, day))
        assert (yield reloaded.plan()).status == "pass"
    reloaded.append(row(6, 6))
    one = yield reloaded.plan()
    assert (one.status, EMPTY in one.sql) == ("pass", True)


@in_step
def test_what_was_found_stays_found(project: DbtProject, raw: RawSchema) -> Steps:
    """A look that something else made fail has found an old fault: it is not acquitted later."""
    table = Accounts(project, raw, "found_by_chance")
    yield from table.hold()
    assert (yield table.plan()).status == "pass"  # batch 1 has its turn
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 1")
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 4")  # a sync is writing it
    expected = [(1, "ledger and raw table differ in rows")]
    assert problems((yield table.plan()), table.spark) == expected
    table.raw.syncs(table.table, [{"batch": 4, "rows_appended": 1}])
    assert problems((yield table.plan()), table.spark) == expected
    [record] = table.records().values()
    assert (record["batch"], record["reason"]) == (None, "it failed when it was proved whole")
    table.ledger("update {0} set rows_appended = 2 where {1} and batch = 1")
    one = yield table.plan()
    assert (one.status, EMPTY in one.sql) == ("pass", False)
    one = yield table.plan()
    assert (one.status, EMPTY in one.sql) == ("pass", True)


@in_step
def test_a_first_batch_that_is_raised(project: DbtProject, raw: RawSchema) -> Steps:
    """Batches below it have no turn, so everything is proved."""
    table = Accounts(project, raw, "raised")
    yield from table.hold()
    raised = "alter table {} set tblproperties ('strandline.first-batch' = '2')"
    raw.spark.sql(raised.format(table.name))
    assert problems((yield table.plan()), table.spark) == [
        (1, "rows of a batch from before the table was made")
    ]
