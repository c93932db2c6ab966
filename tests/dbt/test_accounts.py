"""`batches_accounted` once it has held: one look at what is new, and no fault slips through it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.provings import Proving, proved_again, red, row
from tests.dbt.rawtables import RawSchema

WITHIN = 3
NAME = "accounted"
EMPTY = "where false"


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    return proved_again(spark, raw, tmp_path_factory.mktemp("accounts"), WITHIN)


class Accounts(Proving):
    """A raw table of which `batches_accounted` holds up to its third batch.

    Args:
        alone: whether the project is parsed, and the test has run.
    """

    def __init__(self, project: DbtProject, raw: RawSchema, table: str, alone: bool = True) -> None:
        self.alone = alone
        accounted = {"strandline.batches_accounted": {"name": f"{NAME}_{table}"}}
        super().__init__(project, raw, table, models=(), tests=[accounted])
        for day in (1, 2, 3):
            self.append(row(day, day), row(10 + day, day))
        if alone:
            assert red(self.prove()) == set()

    def write(self) -> None:
        if self.alone:
            super().write()
        else:
            self.lay_out()

    def ledger(self, change: str) -> None:
        """Changes the ledger, of which `{0}` is the name and `{1}` the condition for our rows."""
        own = f"table_name = '{self.table}'"
        self.spark.sql(change.format(f"{self.raw.schema}.{self.raw.syncs_table}", own))

    def proved(self) -> Result:
        """Runs the test."""
        [one] = self.prove().values()
        return one


def problems(one: Result, spark: SparkSession) -> list[tuple[int, str]]:
    """Returns batches and what is wrong, by the query that the test has sent."""
    if one.status == "pass":
        return []
    found = spark.sql(f"select batch, problem from ({one.sql})").collect()
    return sorted((line[0], line[1]) for line in found)


def test_a_look_is_enough(project: DbtProject, raw: RawSchema) -> None:
    """It reads raw's rows of new batches and of those whose turn it is, and the ledger once."""
    calm = Accounts(project, raw, "calm_accounts")
    calm.append(row(4, 4))
    one = calm.proved()
    assert (one.status, EMPTY in one.sql) == ("pass", True)
    calm.append(row(5, 5))
    calm.append(row(6, 6), row(7, 6))
    one = calm.proved()
    assert (one.status, EMPTY in one.sql) == ("pass", True)
    [look] = [asked for asked in project.asked if "count_if(odd)" in asked]
    assert "_cq_batch > 4" in look
    assert not [asked for asked in project.asked if "full join" in asked]

    # rows that compaction removed are accounted for as a sum of all
    settings = """'strandline.compacted' = '{"to": 1, "rows": 2}'"""
    raw.spark.sql(f"delete from {calm.name} where _cq_batch = 1")
    raw.spark.sql(f"alter table {calm.name} set tblproperties ({settings})")
    for _ in range(WITHIN):
        one = calm.proved()
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


def test_a_fault_is_found_at_once(project: DbtProject, raw: RawSchema) -> None:
    """Of a new batch any, of an earlier one what its ledger or a commit says; until mended."""
    tables = {fault: Accounts(project, raw, fault, alone=False) for fault in FAULTS}
    chosen = ("test", "--select", *(f"{NAME}_{fault}" for fault in FAULTS))
    manifest = project.parse()
    assert red(project.run(*chosen, manifest=manifest)) == set()
    for fault, (plant, _) in FAULTS.items():
        plant(tables[fault])
    expected = {f"{NAME}_{fault}": said for fault, (_, said) in FAULTS.items()}
    for _ in range(2):
        found = project.run(*chosen, manifest=manifest)
        assert {name: problems(one, project.spark) for name, one in found.items()} == expected


def test_what_others_write_is_found(project: DbtProject, raw: RawSchema) -> None:
    """It proves everything; what an acknowledged incident leaves is looked at again."""
    table = Accounts(project, raw, "written_by_others")
    table.append(row(4, 4))
    table.spark.sql(f"delete from {table.name} where id = 2")
    found = table.proved()
    assert (found.status, found.failures) == ("fail", 2)
    [snapshot] = table.spark.sql(
        f"select max_by(snapshot_id, committed_at) from {table.name}.snapshots"
    ).first() or [None]
    known = {"test": "batches_accounted", "who": "ada", "when": "today", "why": "because"}
    table.meta["acknowledged"] = [{**known, "batches": 2}, {**known, "snapshot": snapshot}]
    table.write()
    assert table.proved().status == "pass"
    table.append(row(5, 5))
    assert table.proved().status == "pass"
    more_in_the_ledger(table)
    assert table.proved().status == "fail"


def test_an_earlier_batch_has_its_turn(project: DbtProject, raw: RawSchema) -> None:
    """Rows are counted again within the stated number of builds."""
    table = Accounts(project, raw, "turn_of_accounts")
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 2")
    found = [table.proved().status for _ in range(WITHIN)]
    assert found == ["pass", "fail", "fail"]


def test_a_batch_without_its_ledger_row_is_not_judged(project: DbtProject, raw: RawSchema) -> None:
    """A sync is writing it; if it never does, the next build says so."""
    table = Accounts(project, raw, "in_flight")
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 4")
    assert table.proved().status == "pass"
    [record] = table.records().values()
    assert record["batch"] == 3
    table.append(row(5, 5))
    assert problems(table.proved(), table.spark) == [(4, "not in the ledger")]


def test_a_table_that_was_loaded_anew(project: DbtProject, raw: RawSchema) -> None:
    """The ledger's rows of the dropped one do not count."""
    anew = Accounts(project, raw, "anew_accounts")
    raw.spark.sql(f"drop table {anew.name}")
    raw.create("anew_accounts", "id int, at timestamp, payload string")
    first = "alter table {} set tblproperties ('strandline.first-batch' = '4')"
    raw.spark.sql(first.format(anew.name))
    for day in (4, 5):
        anew.append(row(day, day))
        assert anew.proved().status == "pass"
    anew.append(row(6, 6))
    one = anew.proved()
    assert (one.status, EMPTY in one.sql) == ("pass", True)


def test_what_was_found_stays_found(project: DbtProject, raw: RawSchema) -> None:
    """A look that something else made fail has found an old fault: it is not acquitted later."""
    table = Accounts(project, raw, "found_by_chance")
    assert table.proved().status == "pass"  # batch 1 has its turn
    table.ledger("update {0} set rows_appended = 9 where {1} and batch = 1")
    table.append(row(4, 4))
    table.ledger("delete from {0} where {1} and batch = 4")  # a sync is writing it
    expected = [(1, "ledger and raw table differ in rows")]
    assert problems(table.proved(), table.spark) == expected
    table.raw.syncs(table.table, [{"batch": 4, "rows_appended": 1}])
    assert problems(table.proved(), table.spark) == expected
    [record] = table.records().values()
    assert (record["batch"], record["reason"]) == (None, "it failed when it was proved whole")
    table.ledger("update {0} set rows_appended = 2 where {1} and batch = 1")
    one = table.proved()
    assert (one.status, EMPTY in one.sql) == ("pass", False)
    one = table.proved()
    assert (one.status, EMPTY in one.sql) == ("pass", True)


def test_a_first_batch_that_is_raised(project: DbtProject, raw: RawSchema) -> None:
    """Batches below it have no turn, so everything is proved."""
    table = Accounts(project, raw, "raised")
    raised = "alter table {} set tblproperties ('strandline.first-batch' = '2')"
    raw.spark.sql(raised.format(table.name))
    assert problems(table.proved(), table.spark) == [
        (1, "rows of a batch from before the table was made")
    ]
