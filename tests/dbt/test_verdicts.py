"""Tests store verdicts and later read only what has changed, without missing a fault."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tests.dbt.checked_tables import KEY, ROW_TESTS, CheckedTable, days, named, red, row
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Command, Steps, in_step

ALL = ("matches_raw", "unique_key", *ROW_TESTS)
TIES = "no_cursor_ties"
AGAIN = ("--vars", "{strandline__prove_all: true}")


def reads_after(one: Result, batch: int) -> bool:
    """Returns whether a test has read only rows of later batches, or none at all."""
    return f"_cq_batch > {batch}" in one.sql or reads_nothing(one)


def reads_nothing(one: Result) -> bool:
    """Returns whether a test has read no row, because the build has checked all of them."""
    return "the build has checked all rows" in one.sql


def float32(value: float) -> float:
    """Returns the double to which a 32-bit float is widened."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def acknowledged(test: str, batches: Any) -> dict[str, Any]:
    known = {"test": test, "batches": batches, "who": "ada", "when": "today", "why": "because"}
    return {"acknowledged": [known]}


@in_step
def test_only_new_batches_are_read(project: DbtProject, raw: RawSchema) -> Steps:
    """A fault in a new batch is found at once, and in each build and test until it is repaired."""
    orders = CheckedTable(
        project, raw, "orders", {"latest": ALL, "history": ("matches_raw", "unique_key")}
    )
    orders.append(*days(1, 2))
    proved = yield orders.plan_build()
    assert (red(proved), len(proved)) == (set(), 7)
    assert all(reads_after(one, 1) for one in proved.values())
    orders.append(*days(3, 3))
    proved = yield orders.plan_build()
    assert (red(proved), len(proved)) == (set(), 7)
    assert len(orders.checks()) == 7
    # all new batches, and one bucket of keys in turn
    assert all("_cq_batch > 1" in asked and " in (1)" in asked for asked in orders.checks())
    assert all(reads_after(one, 2) for one in proved.values())

    orders.append(
        row(1, 3, "other"),  # the cursor of another version
        row(2, 3, "v3"),  # the same again, in the window
        row(3, 4),
        row(3, 4),  # twice
        row(4, None),
        row(5, 400),
    )
    wrong = {*ROW_TESTS}
    assert red((yield orders.plan_build())) == wrong
    assert red((yield orders.plan_build())) == wrong
    found = yield orders.plan_proof()
    assert red(found) == wrong
    assert all(reads_after(one, 3) for one in found.values())
    orders.append(*days(5, 5, keys=(6, 7)))
    assert red((yield orders.plan_build())) == wrong
    assert red((yield orders.plan_proof())) == wrong

    # loaded again: this shows which of the tied rows are right; duplicates stay duplicates
    orders.append(*days(6, 6, keys=(1, 2, 3, 4, 5)), generation=2)
    assert red((yield orders.plan_build())) == {"no_duplicates"}
    orders.meta = acknowledged("no_duplicates", 3)
    orders.write()
    assert red((yield orders.plan_proof())) == set()
    assert red((yield orders.plan_build())) == set()
    orders.meta = {}
    orders.write()
    assert red((yield orders.plan_proof())) == {"no_duplicates"}
    assert red((yield orders.plan_build())) == {"no_duplicates"}


@in_step
def test_a_small_table_is_checked_in_one_task(project: DbtProject, raw: RawSchema) -> Steps:
    """The checks of a small table shuffle nothing, and find what those of a large one find."""
    small = ("--vars", "{strandline__rebuild_up_to_rows: 1000}")
    wares = CheckedTable(project, raw, "wares", {"latest": ALL, "history": ("matches_raw",)})
    wares.append(*days(1, 2))
    assert red((yield wares.plan_build(*small))) == set()
    assert len(wares.checks()) == 6
    assert sum("/*+ coalesce(1) */" in asked for asked in wares.checks()) >= 3
    wares.append(row(1, 2, "other"))
    assert red((yield wares.plan_build(*small))) == {TIES}
    assert red((yield wares.plan_build(*small))) == {TIES}
    assert red((yield wares.plan_proof())) == {TIES}
    wares.append(*days(2, 3, keys=(1,)), generation=2)
    assert red((yield wares.plan_build(*small))) == set()
    wares.forge("latest", "insert into {0} select * from {0} where id = 2")
    assert red((yield wares.plan_proof(*AGAIN))) == {"matches_raw", "unique_key"}


@in_step
def test_an_old_fault_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> Steps:
    """It is found within thirty builds with new batches, and in each build until it is repaired."""
    stock = CheckedTable(project, raw, "stock", {"latest": ALL, "history": ("matches_raw",)})
    stock.append(*days(1, 1))
    stock.append(*days(2, 2))
    assert red((yield stock.plan_build())) == set()
    stock.slip_in(
        row(2, 2, "other", _cq_batch=1, _cq_seq=70),
        row(2, 1, "v1", _cq_batch=1, _cq_seq=71),
        row(2, None, _cq_batch=1, _cq_seq=72),
    )
    stock.forge("latest", "insert into {0} select * from {0} where id = 2")
    wrong = {*ALL, "matches_raw_of_history"}
    stock.await_turn(2, builds=3)
    found = []
    for day in (3, 4, 5):
        stock.append(*days(day, day, keys=(1,)))
        found.append(red((yield stock.plan_build())))
    assert found == [set(), set(), wrong]
    stock.append(*days(6, 6, keys=(1,)))
    assert red((yield stock.plan_build())) == wrong
    assert red((yield stock.plan_proof())) == wrong
    assert red((yield stock.plan_build())) == wrong
    turn = int(stock.properties("latest")["strandline.turn"])
    raw.spark.sql(f"delete from {stock.name} where _cq_batch = 1 and _cq_seq >= 70")
    assert red((yield stock.plan_proof())) == {"matches_raw", "unique_key"}
    stock.forge("latest", "delete from {0} where id = 2")
    stock.forge(
        "latest", f"insert into {{0}} select * from {stock.name} where id = 2 and _cq_batch = 2"
    )
    assert red((yield stock.plan_build())) == set()
    assert stock.properties("latest")["strandline.failed_turns"] == "{}"
    assert int(stock.properties("latest")["strandline.turn"]) != turn


@in_step
def test_a_failing_check_does_not_stop_the_others(project: DbtProject, raw: RawSchema) -> Steps:
    """Each check has its own verdicts: an old fault is found while another check keeps failing."""
    goods = CheckedTable(project, raw, "goods", {"latest": ("matches_raw", "no_duplicates")})
    goods.append(row(1, 1), row(2, 1), row(3, 1))
    goods.append(row(1, 1))
    assert red((yield goods.plan_build())) == {"no_duplicates"}
    goods.forge("latest", "update {0} set payload = 'forged' where id = 2")
    goods.await_turn(2, builds=2)
    found = []
    for day in (2, 3):
        goods.append(row(3, day))
        found.append(red((yield goods.plan_build())))
    assert found == [{"no_duplicates"}, {"no_duplicates", "matches_raw"}]
    goods.append(row(3, 4))
    proved = yield goods.plan_build()
    assert red(proved) == {"no_duplicates", "matches_raw"}
    assert all(reads_after(one, 5) for one in proved.values())
    goods.forge("latest", "update {0} set payload = 'a' where id = 2")
    assert red((yield goods.plan_proof())) == {"no_duplicates"}


@in_step
def test_a_variable_makes_tests_read_all_rows(project: DbtProject, raw: RawSchema) -> Steps:
    """A fault that a build finds with `strandline__prove_all` fails later builds without it."""
    bills = CheckedTable(project, raw, "bills", {"latest": (TIES,)})
    for day in (1, 2, 3):
        bills.append(*days(day, day))
    assert red((yield bills.plan_build())) == set()
    bills.slip_in(row(1, 1, "other", _cq_batch=1, _cq_seq=70))
    bills.await_turn(1, builds=20)
    assert red((yield bills.plan_proof())) == set()
    assert red((yield bills.plan_proof(*AGAIN))) == {TIES}
    assert red((yield bills.plan_build(*AGAIN))) == {TIES}
    assert red((yield bills.plan_proof())) == {TIES}
    bills.append(*days(4, 4, keys=(2,)))
    assert red((yield bills.plan_build())) == {TIES}
    raw.spark.sql(f"delete from {bills.name} where _cq_seq = 70")
    assert red((yield bills.plan_build())) == set()


@in_step
def test_what_another_program_writes_is_found_at_once(project: DbtProject, raw: RawSchema) -> Steps:
    """Tests then read all rows; they write nothing, so a role that may only read can run them."""
    loans = CheckedTable(project, raw, "token_urls", {"latest": ("matches_raw", TIES)})
    loans.append(*days(1, 1))
    loans.append(*days(2, 2))
    proved = yield loans.plan_build()
    assert (red(proved), [reads_after(one, 2) for one in proved.values()]) == (set(), [True] * 2)
    before = loans.properties("latest")
    metadata = raw.spark.table(f"{loans.built('latest')}.metadata_log_entries").count()

    raw.spark.sql(f"update {loans.name} set payload = 'forged' where id = 1 and _cq_batch = 2")
    assert red((yield loans.plan_proof())) == {"matches_raw"}
    assert red((yield loans.plan_proof())) == {"matches_raw"}
    assert loans.properties("latest") == before
    assert raw.spark.table(f"{loans.built('latest')}.metadata_log_entries").count() == metadata
    loans.append(*days(3, 3, keys=(2,)))
    assert red((yield loans.plan_build())) == {"matches_raw"}
    assert red((yield loans.plan_build())) == {"matches_raw"}
    raw.spark.sql(f"update {loans.name} set payload = 'v2' where id = 1 and _cq_batch = 2")
    assert red((yield loans.plan_proof())) == set()
    assert red((yield loans.plan_build())) == set()

    # another program writes to the latest table: the tests fail, the next build repairs it
    raw.spark.sql(f"delete from {loans.built('latest')} where id = 1")
    assert red((yield loans.plan_proof())) == {"matches_raw"}
    assert red((yield loans.plan_build())) == set()

    # rewritten files contain the same rows
    raw.spark.sql(
        f"call lake.system.rewrite_data_files(table => '{loans.built('latest')}', "
        "options => map('rewrite-all', 'true'))"
    )
    proved = yield loans.plan_proof()
    assert (red(proved), [reads_after(one, 3) for one in proved.values()]) == (set(), [True] * 2)

    # without verdicts, as after a build by an older package, the tests read everything
    loans.set("latest", "strandline.proved", "{}")
    proved = yield loans.plan_proof()
    assert (red(proved), [reads_after(one, 3) for one in proved.values()]) == (set(), [False] * 2)


@in_step
def test_a_replaced_table_is_checked_from_the_beginning(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """The raw table was dropped and loaded again, or the model shows it as of an earlier batch."""
    rents = CheckedTable(project, raw, "rents", {"latest": ("matches_raw", TIES)})
    for day in (1, 2):
        rents.append(*days(day, day))
    assert red((yield rents.plan_build())) == set()
    rents.config = {"as_of": 1}
    rents.write()
    proved = yield rents.plan_build()
    assert (red(proved), [reads_after(one, 1) for one in proved.values()]) == (set(), [True] * 2)
    # a fault in a batch that the model does not show is ignored
    rents.append(row(1, 2, "other"))
    assert red((yield rents.plan_build())) == set()
    rents.config = {}
    rents.write()
    assert red((yield rents.plan_build())) == {TIES}

    raw.spark.sql(f"drop table {rents.name}")
    raw.create("rents", "id int, at timestamp, payload string")
    raw.spark.sql(f"delete from {raw.schema}._cq_syncs where table_name = 'rents'")
    rents.batch = 0
    rents.append(*days(1, 1))
    rents.append(*days(2, 2), row(2, 2, "other"))
    assert red((yield rents.plan_build())) == {TIES}
    raw.spark.sql(f"delete from {rents.name} where payload = 'other'")
    raw.spark.sql(
        f"update {raw.schema}._cq_syncs set rows_appended = 3 "
        "where table_name = 'rents' and batch = 2"
    )
    assert red((yield rents.plan_build("--full-refresh"))) == set()


@in_step
def test_configured_tests(project: DbtProject, raw: RawSchema) -> Steps:
    """A test whose config rules out a verdict by rows reads everything and stores no verdict."""

    def case(name: str, **config: Any) -> dict[str, Any]:
        arguments = config.pop("arguments", {})
        return {"cursor_plausible": {"name": name, "arguments": arguments, "config": config}}

    stored = [
        case("warning", severity="warn"),
        case("erring", severity="error"),
        case("limited", limit=10),
        case("kept", store_failures=True),
        case("of_key", arguments={"unique_key": ["id", "payload"]}),
        case("tolerant", arguments={"tolerance": "1000 days"}),
    ]
    whole = [
        case("some", where="id > 0"),
        case("conditional", arguments={"row_condition": "id > 0"}),
        case("others", where="id > 9"),
        case("counted", fail_calc="count(distinct id)"),
        case("patient", warn_if="> 5", error_if="> 10"),
        {"unique_key": {"name": "keys", "config": {"where": "id > 0"}}},
    ]
    tolls = CheckedTable(project, raw, "tolls", {"history": [*stored, *whole]})
    tolls.append(*days(1, 1))
    tolls.append(*days(2, 2))
    proved = yield tolls.plan_build()
    assert red(proved) == set()
    names = {f"{one['cursor_plausible']['name']}_of_history" for one in stored}
    assert {name for name, one in proved.items() if reads_after(one, 2)} == names
    assert len(proved) == len(stored) + len(whole)

    tolls.append(row(9, None), row(8, 400))
    for command in (tolls.plan_build(), tolls.plan_proof()):
        found = yield command
        own = names | {f"{name}_of_history" for name in ("some", "conditional", "counted")}
        assert red(found) == own
        assert found["warning_of_history"].status == "warn"
        assert found["tolerant_of_history"].failures == 1
        assert found["erring_of_history"].failures == 2
    audit = f"{project.schema}_dbt_test__audit.kept_tolls_history"
    assert {one["id"] for one in project.rows(audit)} == {8, 9}

    # after it was disabled, a test reads the batches that came meanwhile
    tolls.tests = {"history": [case("erring", enabled=False)]}
    tolls.write()
    tolls.append(row(9, 5), row(8, 5), generation=2)
    tolls.append(row(7, None))
    yield Command(("build",), ("tolls_history",), tolls._of_build)
    tolls.tests = {"history": [case("erring")]}
    tolls.write()
    found = yield tolls.plan_proof()
    assert (red(found), found["erring_of_history"].failures) == ({"erring_of_history"}, 1)


@in_step
def test_equal_keys_are_checked_in_the_same_turn(project: DbtProject, raw: RawSchema) -> Steps:
    """0.0 equals -0.0, also in a struct, and a float equals the double to which it was widened."""
    columns = "id float, part struct<x: double>, at timestamp, payload string"
    key = {**KEY, "unique_key": ["id", "part"]}
    pairs = CheckedTable(
        project, raw, "pairs", {"latest": ("matches_raw",)}, columns=columns, key=key
    )
    pairs.append(*({**row(None, 1), "id": x, "part": (0.0,)} for x in (0.0, 1.1)))
    assert red((yield pairs.plan_build())) == set()
    pairs.append(*({**row(None, 2, "newer"), "id": x, "part": (-0.0,)} for x in (-0.0, 1.1)))
    assert red((yield pairs.plan_build())) == set()
    pairs.spark.sql(f"alter table {pairs.name} alter column id type double")
    for text in ("0.0", "1.1", str(float32(1.1))):
        pairs.await_turn(text, "{0.0}", builds=1)
        pairs.set("latest", "strandline.day", "2001-01-01")
        assert red((yield pairs.plan_build())) == set()
        assert len(pairs.checks()) == 1


@in_step
def test_a_column_may_have_the_name_of_an_alias(project: DbtProject, raw: RawSchema) -> Steps:
    """The checks find a fault in a table whose columns have the names of the queries' aliases."""
    columns = "id int, candidates int, judged string, touched int, at timestamp, payload string"
    key = {**KEY, "unique_key": ["id", "candidates", "touched"]}
    names = CheckedTable(
        project,
        raw,
        "names",
        {"latest": ALL, "history": ("matches_raw",)},
        columns=columns,
        key=key,
    )
    more = {"candidates": 7, "judged": "yes", "touched": None}
    names.append(*(one | more for one in days(1, 2)))
    assert red((yield names.plan_build())) == set()
    names.append(*(one | more for one in days(3, 3)))
    assert red((yield names.plan_build())) == set()
    names.append(row(1, 3, "other", **more), row(2, 400, **more))
    assert red((yield names.plan_build())) == {"no_cursor_ties", "cursor_plausible"}


@in_step
def test_a_build_without_a_new_batch_checks_once_a_day(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """Without a new batch, a build checks one bucket of keys once a day."""
    calm = CheckedTable(project, raw, "calm", {"latest": ALL})
    calm.append(*days(1, 1))
    calm.append(*days(2, 2))
    assert red((yield calm.plan_build())) == set()
    turn = int(calm.properties("latest")["strandline.turn"])
    calm.hold_day("latest")
    assert red((yield calm.plan_build())) == set()
    assert calm.checks() == []
    calm.forge("latest", "update {0} set payload = 'forged' where id = 3")
    calm.await_turn(3, builds=1)
    calm.hold_day("latest")
    assert red((yield calm.plan_build())) == set()
    assert calm.checks() == []
    calm.set("latest", "strandline.day", "2001-01-01")
    assert red((yield calm.plan_build())) == {"matches_raw"}
    assert len(calm.checks()) == len(ALL)
    assert red((yield calm.plan_build())) == {"matches_raw"}
    calm.forge("latest", "update {0} set payload = 'v2' where id = 3")
    assert red((yield calm.plan_build())) == set()
    calm.hold_day("latest")
    assert red((yield calm.plan_build())) == set()
    assert calm.checks() == []
    assert turn == 1


@in_step
def test_a_wrong_test_ends_with_an_error_but_not_the_build(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """The build and the other tests succeed; a test that ended with an error has no verdict."""
    wrong = [
        TIES,  # without a cursor
        {"no_duplicates": {"arguments": {"kinds": ["sometimes"]}}},
        {"unique_key": {"arguments": {"unique_key": "idd"}}},
        "row_hash_valid",  # of a nested column
    ]
    odd = CheckedTable(
        project,
        raw,
        "odd",
        {"latest": ["matches_raw", *wrong]},
        columns="id int, tags map<string,int>",
        key={"unique_key": "id"},
    )
    odd.append({"id": 1, "tags": {"a": 1}}, {"id": 2, "tags": None})
    for _ in range(2):
        built: dict[str, Result] = yield odd.plan_build()
        assert {name: one.status for name, one in built.items()} == {
            "matches_raw": "pass",
            TIES: "error",
            "no_duplicates": "error",
            "unique_key": "error",
            "row_hash_valid": "error",
        }
        assert "needs a cursor_field" in built[TIES].message
        assert "there is no kind 'sometimes'" in built["no_duplicates"].message
        assert "'idd' is not one of its columns" in " ".join(built["unique_key"].message.split())
        assert "the column tags is nested" in " ".join(built["row_hash_valid"].message.split())
    odd.append({"id": 2, "tags": {"b": 2}})
    built = yield odd.plan_build()
    assert built["matches_raw"].status == "pass"
    assert reads_after(built["matches_raw"], 2)


@in_step
def test_several_raw_tables_are_checked_by_their_own_batches(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """A key in two of them is no tie or duplicate; an incident is acknowledged for one table."""
    parts = {name: CheckedTable(project, raw, name, {}) for name in ("north", "south")}
    project.write(
        "models/both.sql",
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'at'}}) }}\n"
        "select * from ({{ strandline.union_raw([source('shop', 'north'), "
        "source('shop', 'south')]) }}) as versions",
    )
    tests = [named(one, "both") for one in ALL]
    project.write("models/both.yml", {"models": [{"name": "both", "data_tests": tests}]})

    def build(word: str = "build") -> Command:
        def read(results: Mapping[str, Result]) -> dict[str, Result]:
            tests = {name: one for name, one in results.items() if one.tested == "both"}
            model = results.get("both") if word == "build" else None
            assert model is None or model.status == "success", model.message
            return {name.removesuffix("_both"): tests[name] for name in tests if name != "both"}

        return Command((word,), ("both",), read)

    parts["north"].append(row(1, 2, "a"), row(2, 2))
    parts["south"].append(row(1, 2, "b"), row(2, 1))
    parts["south"].append(row(2, 2))
    proved = yield build()
    assert (red(proved), len(proved)) == (set(), 5)
    assert all(reads_nothing(one) for one in proved.values())
    parts["north"].append(row(2, 2, "tie"))
    proved = yield build("test")  # the table does not show the batch yet
    assert red(proved) == set()
    assert all("_cq_batch > 1" in one.sql and "_cq_batch > 2" in one.sql for one in proved.values())
    found = yield build()
    assert red(found) == {TIES}
    [tie] = project.failing_rows(found[TIES])
    assert (tie["_cq_table"], tie["_cq_batch"]) == (parts["north"].name, 2)
    parts["south"].meta = acknowledged(TIES, 2)
    parts["south"].write()
    assert red((yield build())) == {TIES}
    parts["north"].meta = acknowledged(TIES, 2)
    parts["north"].write()
    assert red((yield build())) == set()
    assert red((yield build("test"))) == set()
