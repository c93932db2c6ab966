"""Proofs follow what changed: what held is not asked again, and nothing wrong slips through."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.icebergrows import IcebergRows
from tests.dbt.provings import RAW_TESTS, Proving, days, proved_again, red, row
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Steps, in_step

WITHIN = 3
EMPTY = "where false"
NOT_NULL, LATEST = "cursor_not_null", "latest_matches_raw"
ALL = {*RAW_TESTS, "latest_matches_raw", "history_matches_raw"}
ALL |= {"unique_key_latest", "unique_key_history"}


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    return proved_again(spark, raw, tmp_path_factory.mktemp("proofs"), WITHIN)


@in_step
def test_only_what_is_new_is_asked(project: DbtProject, raw: RawSchema) -> Steps:
    """A fault in a new batch is found at once, and in each build until it is mended."""
    orders = Proving(project, raw, "orders")
    orders.append(*days(1, 1))
    orders.append(*days(2, 2))
    yield orders.plan_merge()
    assert red((yield orders.plan_proof())) == set()
    assert {one["reason"] for one in orders.records().values()} == {"never proved before"}

    orders.append(*days(3, 3))
    yield orders.plan_merge()
    proved = yield orders.plan_proof()
    assert (red(proved), set(proved)) == (set(), ALL)
    records = orders.records()
    assert {(one["batch"], one["reason"]) for one in records.values()} == {(3, None)}
    looks = [asked for asked in orders.asked if "in_order" in asked or "is_new" in asked]
    assert looks
    assert all("_cq_batch > 2" in asked for asked in looks)
    # a look has shown that some of the tests would find nothing, so these no longer ask
    assert all("_cq_batch > 2" in one.sql or EMPTY in one.sql for one in proved.values())
    assert all(EMPTY not in one.sql for test, one in proved.items() if "history" in test)
    assert EMPTY in proved["latest_matches_raw"].sql
    # What all ask about proofs, and about a table's commits, is asked once by each thread at most.
    snapshots = re.findall(r"from (\S+)\.snapshots", "\n".join(orders.asked))
    assert len(set(snapshots)) == 3, set(snapshots)
    asked = Counter(snapshots)
    asked["proofs"] = sum("proof || ' ' || table_name" in one for one in project.asked)
    assert asked["proofs"] > 0
    assert max(asked.values()) <= 2 < len(proved), asked

    orders.append(
        row(1, 3, "other"),  # the cursor of another version
        row(2, 3, "v3"),  # again, in the window
        row(3, 4),
        row(3, 4),  # twice
        row(4, None),
        row(5, 400),
        low=3,
    )
    orders.append(row(2, 1, "v1"), low=2)  # again, below the window
    wrong = {*RAW_TESTS}
    found = yield orders.plan_proof(select="source:shop.orders")
    assert red(found) == wrong
    assert {one["batch"] for test, one in orders.records().items() if test in wrong} == {3}
    again = yield orders.plan_proof(select="source:shop.orders")
    assert red(again) == wrong
    assert all("_cq_batch > 3" in one.sql for one in again.values())


@in_step
def test_an_old_fault_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> Steps:
    """Within the stated number of builds, and it stays red: its turn does not pass."""
    stock = Proving(project, raw, "stock")
    for day in (1, 2, 3):
        stock.append(*days(day, day, keys=(day, 10 + day, 20)))
    yield stock.plan_merge()
    assert red((yield stock.plan_proof())) == set()

    stock.slip_in(
        row(2, 2, "other", _cq_batch=2, _cq_seq=70),
        row(12, 2, "v2", _cq_batch=2, _cq_seq=71),
        row(12, 2, "v2", _cq_batch=2, _cq_seq=72),
        row(30, None, _cq_batch=2, _cq_seq=73),
        row(31, 400, _cq_batch=2, _cq_seq=74),
        row(1, 0, _cq_batch=2, _cq_seq=75),
        row(11, 1, "v1", _cq_batch=2, _cq_seq=76),
    )
    for kind in ("latest", "history"):
        stock.forge(kind, "insert into {0} select * from {0} where id = 3")
    found: list[set[str]] = []
    for _ in range(WITHIN):
        found.append(red((yield stock.plan_proof())))
        assert not found[:-1] or found[-1] >= found[-2], "a fault was no longer found"
    assert found[0] < ALL
    assert found[-1] == ALL


@in_step
def test_a_forged_value_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> Steps:
    """Key, order and hash of the row are right; its turn compares all columns."""
    goods = Proving(project, raw, "goods", tests=[])
    for day in (1, 2, 3):
        goods.append(row(day, day), row(10 + day, day))
    yield goods.plan_merge()
    assert red((yield goods.plan_proof())) == set()
    matches = {"latest_matches_raw", "history_matches_raw"}
    for kind in ("latest", "history"):
        goods.forge(kind, "update {0} set payload = 'forged' where id = 12")
    found = []
    for _ in range(WITHIN):
        found.append(red((yield goods.plan_proof())))
    assert found[-1] == matches, found
    assert goods.reason("latest_matches_raw") is None

    # mended, and everything that was not proved meanwhile is
    for kind in ("latest", "history"):
        goods.forge(kind, "update {0} set payload = 'a' where id = 12")
    assert red((yield goods.plan_proof())) == set()

    # what a new batch brought is compared at once
    goods.append(row(21, 4), row(22, 4))
    yield goods.plan_merge()
    goods.forge("latest", "update {0} set payload = 'forged' where id = 21")
    goods.forge("history", "delete from {0} where id = 22")
    assert red((yield goods.plan_proof())) == matches
    assert red((yield goods.plan_proof())) == matches


def test_a_share_follows_what_is_new(spark: SparkSession, raw: RawSchema, tmp_path: Path) -> None:
    """Without a number, what is proved again has as few rows as twice the new ones, or 100,000."""
    project = proved_again(spark, raw, tmp_path, None)
    pieces = Proving(project, raw, "pieces", models=(), tests=["cursor_not_null"])
    proofs = f"{project.schema}._cq_proofs"

    def again(*more: str) -> tuple[int, int]:
        assert red(pieces.prove(*more)) == set()
        told = pieces.records()["cursor_not_null"]
        assert told["reason"] in (None, "never proved before")
        return told["again_step"], told["again_batch"]

    pieces.append_at_once([10] * 60 + [60_000] * 29 + [10])
    assert again() == (-1, 0)
    assert again() == (0, 3)  # a thirtieth of the batches, with few rows
    spark.sql(f"update {proofs} set again_batch = 60")
    assert again() == (1, 61)  # the next one has 60,000, too
    pieces.append_at_once([90_000])
    assert again() == (2, 63)  # with 180,000 it would be 64, but that is a thirtieth of the rest

    # one batch more than are new, though two have more rows: it would never end if sizes fall
    spark.sql(f"update {proofs} set again_step = 28, again_batch = 60")
    pieces.append_at_once([10])
    assert again() == (28, 62)

    # in the last step, repeated, all that is left has its turn
    spark.sql(f"update {proofs} set again_batch = 88")
    assert again() == (28, 90)
    assert again() == (29, 92)
    assert again() == (0, 4)


@in_step
def test_a_table_that_was_loaded_again_begins_with_its_first_batch(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """The loader goes on numbering, and what the dropped table had has no turn."""
    reloaded = Proving(project, raw, "reloaded", models=(), tests=["cursor_not_null"])
    first = "alter table {} set tblproperties ('strandline.first-batch' = '{}')"
    raw.spark.sql(first.format(reloaded.name, 101))
    reloaded.batch = 100
    for day in (1, 2, 3):
        reloaded.append(row(day, day))
    assert red((yield reloaded.plan_proof())) == set()
    turns = []
    for _ in range(WITHIN):
        assert red((yield reloaded.plan_proof())) == set()
        turns.append(reloaded.records()["cursor_not_null"]["again_batch"])
    assert turns == [101, 102, 103]


def slip_conflict(table: Proving) -> None:
    table.slip_in(row(1, 1, "other", _cq_batch=1, _cq_seq=70))


@in_step
def test_a_variable_proves_everything(project: DbtProject, raw: RawSchema) -> Steps:
    """What it finds stays red in ordinary builds, too."""
    bills = Proving(project, raw, "bills", models=(), tests=["cursor_conflict"])
    for day in (1, 2, 3):
        bills.append(*days(day, day))
    assert red((yield bills.plan_proof())) == set()
    assert red((yield bills.plan_proof())) == set()  # proves batch 1 again
    slip_conflict(bills)
    assert red((yield bills.plan_proof())) == set()
    assert red((yield bills.plan_proof("--vars", "{strandline__prove_all: true}"))) == {
        "cursor_conflict"
    }
    assert bills.records()["cursor_conflict"]["batch"] is None
    assert red((yield bills.plan_proof())) == {"cursor_conflict"}
    assert bills.reason("cursor_conflict") == "it failed when it was proved whole"

    # A build that had read what was proved before this failure, and ends after it, changes nothing.
    proofs = f"{project.schema}._cq_proofs"
    written_later = "case when batch is null then interval 1 hour else interval 2 hours end"
    own = f"raw_table = '{bills.name}'"
    raw.spark.sql(f"update {proofs} set proved_at = proved_at + {written_later} where {own}")
    assert red((yield bills.plan_proof())) == set()
    raw.spark.sql(
        f"update {proofs} set proved_at = proved_at - {written_later} "
        f"where {own} and proved_at > now()"
    )
    assert red((yield bills.plan_proof())) == {"cursor_conflict"}
    assert bills.reason("cursor_conflict") == "it failed when it was proved whole"


def check_reason(table: Proving, reason: str, test: str = NOT_NULL) -> Steps:
    """Checks that all tests of a table pass, and why one of them read all of it."""
    assert red((yield table.plan_proof())) == set()
    assert reason in str(table.reason(test)), table.reason(test)


@in_step
def test_what_starts_from_the_beginning(project: DbtProject, raw: RawSchema) -> Steps:
    """Each of these could have changed what was proved."""
    loans = Proving(project, raw, "loans", models=("latest",), tests=[NOT_NULL])
    loans.append(*days(1, 1))
    yield loans.plan_merge()
    yield from check_reason(loans, "never proved before")
    yield from check_reason(loans, "None")
    loans.append(*days(2, 2), mode="backfill")
    yield from check_reason(loans, "batch 2 of raw_proofs.loans is a backfill")
    raw.spark.sql(f"update {loans.name} set payload = payload where id = 1 and _cq_batch = 1")
    yield from check_reason(loans, "compacted, or something else wrote to it")
    raw.spark.sql(f"call lake.system.rewrite_data_files(table => '{loans.name}', "
                  "options => map('rewrite-all', 'true'))")  # fmt: skip
    yield from check_reason(loans, "compacted, or something else wrote to it")


@in_step
def test_another_configuration_starts_from_the_beginning(
    project: DbtProject, raw: RawSchema
) -> Steps:
    debts = Proving(project, raw, "debts", models=("latest",), tests=[NOT_NULL])
    debts.append(*days(1, 1))
    yield debts.plan_merge()
    yield from check_reason(debts, "never proved before")
    debts.meta["acknowledged"] = [
        {"test": NOT_NULL, "batches": 1, "who": "ada", "when": "today", "why": "because"}
    ]
    debts.write()
    yield from check_reason(debts, "configured differently")
    raw.spark.sql(f"alter table {debts.name} add column note string")
    assert red((yield debts.plan_proof())) == {LATEST}
    assert "configured differently" in str(debts.reason(NOT_NULL))
    yield debts.plan_merge()
    yield from check_reason(debts, "None")
    debts.meta.pop("acknowledged")
    debts.write()
    yield from check_reason(debts, "configured differently")
    yield from check_reason(debts, "None")


@in_step
def test_another_table_starts_from_the_beginning(project: DbtProject, raw: RawSchema) -> Steps:
    """Raw dropped and loaded again, the snapshot built again, or written by something else."""
    rents = Proving(project, raw, "rents", models=("latest",), tests=[NOT_NULL])
    raw.spark.sql(f"alter table {rents.name} add column note string")
    rents.append(*days(1, 1))
    yield rents.plan_merge()
    yield from check_reason(rents, "never proved before")
    raw.spark.sql(f"drop table {rents.name}")
    raw.create("rents", "id int, at timestamp, payload string")
    rents.batch = 0
    rents.append(*days(1, 1))
    rents.append(*days(2, 2))
    yield rents.plan_merge()
    yield from check_reason(rents, "defined differently")  # it has other columns
    assert "came after batch" in str(rents.reason(LATEST))
    yield from check_reason(rents, "None", LATEST)
    yield rents.plan_merge("--full-refresh")
    yield from check_reason(rents, "the table is defined differently", LATEST)  # its floor
    yield from check_reason(rents, "None", LATEST)
    table = f"{project.schema}.rents_latest"
    raw.spark.sql(f"update {table} set payload = payload where id = 1")
    yield from check_reason(rents, "something else wrote to the table", LATEST)


@in_step
def test_how_a_test_is_configured(project: DbtProject, raw: RawSchema) -> Steps:
    """Where the verdict is not that of single rows, everything is asked, and nothing recorded."""

    def case(name: str, **config: Any) -> dict[str, Any]:
        arguments = config.pop("arguments", {})
        test = config.pop("test", "cursor_not_null")
        return {f"strandline.{test}": {"name": name, "arguments": arguments, "config": config}}

    recorded = [
        case("warning", severity="warn"),
        case("erring", severity="error"),
        case("limited", limit=10),
        case("stored", store_failures=True),
    ]
    whole = [
        case("some", where="id > 0"),
        case("conditional", arguments={"row_condition": "id > 0"}),
        case("counted", fail_calc="count(distinct id)"),
        case("tolerant", warn_if="> 5", error_if="> 10"),
        case("shared", arguments={"max_share": 0.5}),
        case("again", test="exact_redelivery", arguments={"max_share": 0.5}),
    ]
    tolls = Proving(project, raw, "tolls", models=(), tests=[*recorded, *whole])
    tolls.append(*days(1, 1))
    assert red((yield tolls.plan_proof())) == set()
    tolls.append(*days(2, 2))
    assert red((yield tolls.plan_proof())) == set()
    names = {"warning", "erring", "limited", "stored"}
    assert {test: one["reason"] for test, one in tolls.records().items()} == dict.fromkeys(names)

    tolls.append(row(9, None))
    for _ in range(2):
        found = yield tolls.plan_proof()
        assert red(found) == {*names, "some", "conditional", "counted"}
        assert {one.status for name, one in found.items() if name in names} == {"warn", "fail"}
    assert project.rows(f"{project.schema}_dbt_test__audit.stored")[0]["id"] == 9

    # disabled for a while: what came meanwhile is asked
    tolls.tests = [case("erring", severity="error", enabled=False)]
    tolls.write()
    assert (yield tolls.plan_proof()) == {}
    tolls.append(*days(4, 4))
    tolls.tests = [case("erring", severity="error")]
    tolls.write()
    assert red((yield tolls.plan_proof())) == {"erring"}


@in_step
def test_runs_that_break_off_and_runs_at_once(project: DbtProject, raw: RawSchema) -> Steps:
    """A lost record, or an older one that is written later, only makes the next build ask more."""
    mails = Proving(project, raw, "mails", models=(), tests=["cursor_not_null", "cursor_conflict"])
    proofs = f"{project.schema}._cq_proofs"
    mails.append(*days(1, 1))
    assert red((yield mails.plan_proof())) == set()
    early = f"{project.schema}.early_proofs"
    project.spark.sql(
        f"create table {early} using iceberg as select * from {proofs} "
        f"where raw_table = '{mails.name}' and test = 'cursor_conflict'"
    )
    for day in (2, 3):
        mails.append(*days(day, day))
        assert red((yield mails.plan_proof())) == set()
    # killed between the tests and the hook: no record of the newest batch
    project.spark.sql(f"delete from {proofs} where raw_table = '{mails.name}' and batch = 3")
    mails.append(row(9, None))
    found = yield mails.plan_proof(select="source:shop.mails,test_name:cursor_not_null")
    assert red(found) == {"cursor_not_null"}
    assert "_cq_batch > 2" in found["cursor_not_null"].sql
    assert mails.records()["cursor_conflict"]["batch"] == 2  # not selected
    assert red((yield mails.plan_proof())) == {"cursor_not_null"}
    assert mails.records()["cursor_conflict"]["batch"] == 4
    # a run that began before is done only now
    project.spark.sql(
        f"insert into {proofs} select proof, test, table_name, table_snapshot_id, configuration, "
        "raw_table, raw_id, raw_snapshot_id, batch, again_step, again_batch, reason, "
        f"invocation_id, current_timestamp() from {early}"
    )
    found = yield mails.plan_proof()
    assert found["cursor_conflict"].status == "pass"
    assert any("(_cq_batch > 1)" in asked for asked in mails.asked)
    assert mails.records()["cursor_conflict"]["batch"] == 4


def test_records_stay_few(project: DbtProject, raw: RawSchema) -> None:
    """Nobody has to compact them."""
    tests = ["cursor_not_null", "no_future_cursor"]
    files = Proving(project, raw, "files", models=(), tests=tests)
    proofs = f"{project.schema}._cq_proofs"

    def written() -> int:
        return int(project.spark.sql(f"select count(*) from {proofs}.files").collect()[0][0])

    files.append(*days(1, 1))
    before = written() if project.spark.catalog.tableExists(proofs) else 0
    assert red(files.prove()) == set()
    assert written() == before + 1  # whatever the number of tests
    table = IcebergRows(project.spark, proofs)
    newest = project.spark.sql(f"select * from {proofs} where raw_table = '{files.name}'").first()
    assert newest is not None
    for _ in range(33):
        table.append([list(newest.asDict().values())])
    assert red(files.prove()) == set()
    assert written() <= 3
    rows = project.spark.table(proofs).where(f"raw_table = '{files.name}'").count()
    assert rows == 2 * len(tests)
    assert files.reason("cursor_not_null") is None


@in_step
def test_nothing_is_recorded_where_nothing_may_be_written(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """All is proved then, always."""
    notes = Proving(project, raw, "notes", models=(), tests=["cursor_not_null"])
    notes.append(*days(1, 1))
    variables = ["--vars", "{strandline__record_proofs: false}"]
    for _ in range(2):
        found = yield notes.plan_proof(*variables)
        assert {one.status for one in found.values()} == {"pass"}
        assert "strandline proof" not in next(iter(found.values())).sql
    assert notes.records() == {}


@in_step
def test_a_snapshot_of_then(project: DbtProject, raw: RawSchema) -> Steps:
    """With `as_of`, batches that the snapshot does not show are none of its proof's business."""
    parts = Proving(project, raw, "parts", models=("latest",), tests=[])
    model = project.folder / "models/parts_latest.sql"
    text = model.read_text()

    def shown_to(batch: int) -> Steps:
        model.write_text(text.replace("cursor_field='at'", f"cursor_field='at', as_of={batch}"))
        parts.write()
        yield parts.plan_merge()
        assert red((yield parts.plan_proof())) == set()

    for day in (1, 2, 3, 4):
        parts.append(*days(day, day))
    yield from shown_to(2)
    assert parts.records()["latest_matches_raw"]["batch"] == 2
    yield from shown_to(3)
    assert parts.records()["latest_matches_raw"]["batch"] == 3
    assert parts.reason("latest_matches_raw") is None
    yield from shown_to(1)
    assert parts.records()["latest_matches_raw"]["batch"] == 1
    assert parts.reason("latest_matches_raw") is not None


@in_step
def test_what_has_nothing_to_ask_asks_nothing(project: DbtProject, raw: RawSchema) -> Steps:
    """But a table of failures has the columns of its test's own query."""
    calm = Proving(project, raw, "calm", models=("latest",))
    calm.append(*days(1, 1))
    yield calm.plan_merge()
    for _ in range(2):  # everything, then the first batch again
        assert red((yield calm.plan_proof())) == set()
    proved = yield calm.plan_proof()
    assert red(proved) == set()
    assert [test for test, one in proved.items() if EMPTY not in one.sql] == []
    looks = ("in_order", "is_new", "touched")
    assert [asked for asked in calm.asked if any(one in asked for one in looks)] == []
    # nor does Spark count the rows of a test that has none
    assert [asked for asked in calm.asked if EMPTY in asked] == []
    counts = [asked for asked in calm.asked if "values (0, false, false)" in asked]
    assert len(counts) == len(proved)

    calm.append(*days(2, 2), row(3, 2, "v2"))
    yield calm.plan_merge()
    failed = yield calm.plan_proof("--store-failures")
    assert red(failed) == {"duplicate_in_batch"}
    assert [test for test, one in failed.items() if EMPTY in one.sql] == []
    assert red((yield calm.plan_proof())) == {"duplicate_in_batch"}
