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

WITHIN = 3
EMPTY = "where false"
ALL = {*RAW_TESTS, "latest_matches_raw", "history_matches_raw"}
ALL |= {"unique_key_latest", "unique_key_history"}


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    return proved_again(spark, raw, tmp_path_factory.mktemp("proofs"), WITHIN)


def test_only_what_is_new_is_asked(project: DbtProject, raw: RawSchema) -> None:
    """A fault in a new batch is found at once, and in each build until it is mended."""
    orders = Proving(project, raw, "orders")
    orders.append(*days(1, 1))
    orders.append(*days(2, 2))
    orders.merge()
    assert red(orders.prove()) == set()
    assert {one["reason"] for one in orders.records().values()} == {"never proved before"}

    orders.append(*days(3, 3))
    orders.merge()
    proved = orders.prove()
    assert (red(proved), set(proved)) == (set(), ALL)
    records = orders.records()
    assert {(one["batch"], one["reason"]) for one in records.values()} == {(3, None)}
    looks = [asked for asked in project.asked if "in_order" in asked or "is_new" in asked]
    assert looks
    assert all("_cq_batch > 2" in asked for asked in looks)
    # a look has shown that some of the tests would find nothing, so these no longer ask
    assert all("_cq_batch > 2" in one.sql or EMPTY in one.sql for one in proved.values())
    assert all(EMPTY not in one.sql for test, one in proved.items() if "history" in test)
    assert EMPTY in proved["latest_matches_raw"].sql
    # What all ask about proofs, and about a table's commits, is asked once by each thread at most.
    snapshots = re.findall(r"from (\S+)\.snapshots", "\n".join(project.asked))
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
    found = orders.prove("--select", "source:shop.orders")
    assert red(found) == wrong
    assert {one["batch"] for test, one in orders.records().items() if test in wrong} == {3}
    again = orders.prove("--select", "source:shop.orders")
    assert red(again) == wrong
    assert all("_cq_batch > 3" in one.sql for one in again.values())


def test_an_old_fault_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> None:
    """Within the stated number of builds, and it stays red: its turn does not pass."""
    stock = Proving(project, raw, "stock")
    for day in (1, 2, 3):
        stock.append(*days(day, day, keys=(day, 10 + day, 20)))
    stock.merge()
    assert red(stock.prove()) == set()

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
        found.append(red(stock.prove()))
        assert not found[:-1] or found[-1] >= found[-2], "a fault was no longer found"
    assert found[0] < ALL
    assert found[-1] == ALL


def test_a_forged_value_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> None:
    """Key, order and hash of the row are right; its turn compares all columns."""
    goods = Proving(project, raw, "goods", tests=[])
    for day in (1, 2, 3):
        goods.append(row(day, day), row(10 + day, day))
    goods.merge()
    assert red(goods.prove()) == set()
    matches = {"latest_matches_raw", "history_matches_raw"}
    for kind in ("latest", "history"):
        goods.forge(kind, "update {0} set payload = 'forged' where id = 12")
    found = [red(goods.prove()) for _ in range(WITHIN)]
    assert found[-1] == matches, found
    assert goods.reason("latest_matches_raw") is None

    # mended, and everything that was not proved meanwhile is
    for kind in ("latest", "history"):
        goods.forge(kind, "update {0} set payload = 'a' where id = 12")
    assert red(goods.prove()) == set()

    # what a new batch brought is compared at once
    goods.append(row(21, 4), row(22, 4))
    goods.merge()
    goods.forge("latest", "update {0} set payload = 'forged' where id = 21")
    goods.forge("history", "delete from {0} where id = 22")
    assert red(goods.prove()) == matches
    assert red(goods.prove()) == matches


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


def test_a_table_that_was_loaded_anew_begins_with_its_first_batch(
    project: DbtProject, raw: RawSchema
) -> None:
    """The loader goes on numbering, and what the dropped table had has no turn."""
    anew = Proving(project, raw, "anew", models=(), tests=["cursor_not_null"])
    first = "alter table {} set tblproperties ('strandline.first-batch' = '{}')"
    raw.spark.sql(first.format(anew.name, 101))
    anew.batch = 100
    for day in (1, 2, 3):
        anew.append(row(day, day))
    assert red(anew.prove()) == set()
    turns = []
    for _ in range(WITHIN):
        assert red(anew.prove()) == set()
        turns.append(anew.records()["cursor_not_null"]["again_batch"])
    assert turns == [101, 102, 103]


def slip_conflict(table: Proving) -> None:
    table.slip_in(row(1, 1, "other", _cq_batch=1, _cq_seq=70))


def test_a_variable_proves_everything(project: DbtProject, raw: RawSchema) -> None:
    """What it finds stays red in ordinary builds, too."""
    bills = Proving(project, raw, "bills", models=(), tests=["cursor_conflict"])
    for day in (1, 2, 3):
        bills.append(*days(day, day))
    assert red(bills.prove()) == set()
    assert red(bills.prove()) == set()  # proves batch 1 again
    slip_conflict(bills)
    assert red(bills.prove()) == set()
    everything = project.run(
        "test", "--select", "source:shop.bills", "--vars", "{strandline__prove_all: true}"
    )
    assert {one.status for one in everything.values()} == {"fail"}
    assert bills.records()["cursor_conflict"]["batch"] is None
    assert red(bills.prove()) == {"cursor_conflict"}
    assert bills.reason("cursor_conflict") == "it failed when it was proved whole"

    # A build that had read what was proved before this failure, and ends after it, changes nothing.
    proofs = f"{project.schema}._cq_proofs"
    written_later = "case when batch is null then interval 1 hour else interval 2 hours end"
    own = f"raw_table = '{bills.name}'"
    raw.spark.sql(f"update {proofs} set proved_at = proved_at + {written_later} where {own}")
    assert red(bills.prove()) == set()
    raw.spark.sql(
        f"update {proofs} set proved_at = proved_at - {written_later} "
        f"where {own} and proved_at > now()"
    )
    assert red(bills.prove()) == {"cursor_conflict"}
    assert bills.reason("cursor_conflict") == "it failed when it was proved whole"


def test_what_starts_from_the_beginning(project: DbtProject, raw: RawSchema) -> None:
    """Each of these could have changed what was proved."""
    told = "cursor_not_null"
    loans = Proving(project, raw, "loans", models=("latest",), tests=[told])
    loans.append(*days(1, 1))
    loans.merge()

    def proved(reason: str | None, test: str = told) -> None:
        found = loans.prove()
        assert red(found) == set()
        assert reason in str(loans.reason(test)), loans.reason(test)

    proved("never proved before")
    proved("None")
    loans.append(*days(2, 2), mode="backfill")
    proved("batch 2 of raw_proofs.loans is a backfill")
    raw.spark.sql(f"update {loans.name} set payload = payload where id = 1 and _cq_batch = 1")
    proved("compacted, or something else wrote to it")
    raw.spark.sql(f"call lake.system.rewrite_data_files(table => '{loans.name}', "
                  "options => map('rewrite-all', 'true'))")  # fmt: skip
    proved("compacted, or something else wrote to it")
    loans.meta["acknowledged"] = [
        {"test": told, "batches": 1, "who": "ada", "when": "today", "why": "because"}
    ]
    loans.write()
    proved("configured differently")
    raw.spark.sql(f"alter table {loans.name} add column note string")
    assert red(loans.prove()) == {"latest_matches_raw"}
    assert "configured differently" in str(loans.reason(told))
    loans.merge()
    proved("None")
    loans.meta.pop("acknowledged")
    loans.write()
    proved("configured differently")
    proved("None")
    raw.spark.sql(f"drop table {loans.name}")
    raw.create("loans", "id int, at timestamp, payload string")
    loans.batch = 0
    loans.append(*days(1, 1))
    loans.append(*days(2, 2))
    loans.merge()
    proved("defined differently")  # it has other columns
    latest = "latest_matches_raw"
    assert "came after batch" in str(loans.reason(latest))
    proved("None", latest)
    loans.merge("--full-refresh")
    proved("the table is defined differently", latest)  # its floor is another
    proved("None", latest)
    table = f"{project.schema}.loans_latest"
    raw.spark.sql(f"update {table} set payload = payload where id = 1")
    proved("something else wrote to the table", latest)


def test_how_a_test_is_configured(project: DbtProject, raw: RawSchema) -> None:
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
    assert red(tolls.prove()) == set()
    tolls.append(*days(2, 2))
    assert red(tolls.prove()) == set()
    names = {"warning", "erring", "limited", "stored"}
    assert {test: one["reason"] for test, one in tolls.records().items()} == dict.fromkeys(names)

    tolls.append(row(9, None))
    for _ in range(2):
        found = tolls.prove()
        assert {one.status for name, one in found.items() if name in names} == {"warn", "fail"}
        assert {name for name in red(found) if name not in names} == {
            "some",
            "conditional",
            "counted",
        }
    assert project.rows(f"{project.schema}_dbt_test__audit.stored")[0]["id"] == 9

    # disabled for a while: what came meanwhile is asked
    tolls.tests = [case("erring", severity="error", enabled=False)]
    tolls.write()
    assert project.run("test", "--select", "source:shop.tolls", manifest=tolls.manifest) == {}
    tolls.append(*days(4, 4))
    tolls.tests = [case("erring", severity="error")]
    tolls.write()
    assert red(tolls.prove()) == {"erring"}


def test_runs_that_break_off_and_runs_at_once(project: DbtProject, raw: RawSchema) -> None:
    """A lost record, or an older one that is written later, only makes the next build ask more."""
    mails = Proving(project, raw, "mails", models=(), tests=["cursor_not_null", "cursor_conflict"])
    proofs = f"{project.schema}._cq_proofs"
    mails.append(*days(1, 1))
    assert red(mails.prove()) == set()
    early = f"{project.schema}.early_proofs"
    project.spark.sql(
        f"create table {early} using iceberg as select * from {proofs} "
        f"where raw_table = '{mails.name}' and test = 'cursor_conflict'"
    )
    for day in (2, 3):
        mails.append(*days(day, day))
        assert red(mails.prove()) == set()
    # killed between the tests and the hook: no record of the newest batch
    project.spark.sql(f"delete from {proofs} where raw_table = '{mails.name}' and batch = 3")
    mails.append(row(9, None))
    found = mails.prove("--select", "source:shop.mails,test_name:cursor_not_null")
    assert red(found) == {"cursor_not_null"}
    assert "_cq_batch > 2" in found["cursor_not_null"].sql
    assert mails.records()["cursor_conflict"]["batch"] == 2  # not selected
    assert red(mails.prove()) == {"cursor_not_null"}
    assert mails.records()["cursor_conflict"]["batch"] == 4
    # a run that began before is done only now
    project.spark.sql(
        f"insert into {proofs} select proof, test, table_name, table_snapshot_id, configuration, "
        "raw_table, raw_id, raw_snapshot_id, batch, again_step, again_batch, reason, "
        f"invocation_id, current_timestamp() from {early}"
    )
    found = mails.prove()
    assert found["cursor_conflict"].status == "pass"
    assert any("(_cq_batch > 1)" in asked for asked in project.asked)
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


def test_nothing_is_recorded_where_nothing_may_be_written(
    project: DbtProject, raw: RawSchema
) -> None:
    """All is proved then, always."""
    notes = Proving(project, raw, "notes", models=(), tests=["cursor_not_null"])
    notes.append(*days(1, 1))
    variables = ["--vars", "{strandline__record_proofs: false}"]
    for _ in range(2):
        found = project.run("test", "--select", "source:shop.notes", *variables)
        assert {one.status for one in found.values()} == {"pass"}
        assert "strandline proof" not in next(iter(found.values())).sql
    assert notes.records() == {}


def test_a_snapshot_of_then(project: DbtProject, raw: RawSchema) -> None:
    """With `as_of`, batches that the snapshot does not show are none of its proof's business."""
    parts = Proving(project, raw, "parts", models=("latest",), tests=[])
    model = project.folder / "models/parts_latest.sql"
    text = model.read_text()

    def shown_to(batch: int) -> None:
        model.write_text(text.replace("cursor_field='at'", f"cursor_field='at', as_of={batch}"))
        parts.write()
        parts.merge()
        assert red(parts.prove()) == set()

    for day in (1, 2, 3, 4):
        parts.append(*days(day, day))
    shown_to(2)
    assert parts.records()["latest_matches_raw"]["batch"] == 2
    shown_to(3)
    assert parts.records()["latest_matches_raw"]["batch"] == 3
    assert parts.reason("latest_matches_raw") is None
    shown_to(1)
    assert parts.records()["latest_matches_raw"]["batch"] == 1
    assert parts.reason("latest_matches_raw") is not None


def test_what_has_nothing_to_ask_asks_nothing(project: DbtProject, raw: RawSchema) -> None:
    """But a table of failures has the columns of its test's own query."""
    calm = Proving(project, raw, "calm", models=("latest",))
    calm.append(*days(1, 1))
    calm.merge()
    for _ in range(2):  # everything, then the first batch again
        assert red(calm.prove()) == set()
    proved = calm.prove()
    assert red(proved) == set()
    assert [test for test, one in proved.items() if EMPTY not in one.sql] == []
    looks = ("in_order", "is_new", "touched")
    assert [asked for asked in project.asked if any(one in asked for one in looks)] == []
    # nor does Spark count the rows of a test that has none
    assert [asked for asked in project.asked if EMPTY in asked] == []
    counts = [asked for asked in project.asked if "values (0, false, false)" in asked]
    assert len(counts) == len(proved)

    calm.append(*days(2, 2), row(3, 2, "v2"))
    calm.merge()
    failed = calm.prove("--store-failures")
    assert red(failed) == {"duplicate_in_batch"}
    assert [test for test, one in failed.items() if EMPTY in one.sql] == []
    assert red(calm.prove()) == {"duplicate_in_batch"}
