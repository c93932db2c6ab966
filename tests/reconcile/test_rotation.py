"""The `reconcile` option: each run compares some of the keys in turn, and repairs differences."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import Any

import pytest

from loader.reconcile import rotation
from loader.sync.table_comparisons import LakeComparisons
from tests.crash.workers import Workers
from tests.reconcile.shop import (
    FIRST,
    MISSED,
    Shop,
    assert_equal,
    line,
    missed,
    moment,
    reconcile,
)
from tests.services import Database
from tests.sync.project import Project, Ran

TOTAL = sum(MISSED.values())
DAILY = {"every": "1 day"}
PARTS = 2
"""The number of groups here, where each database is tested. `test_rotation_rounds.py` has eight."""
AT_ONCE = {"every": "0.1 s", "budget": "100 %"}
"""Compares all keys in each run, without a pause."""


def _read_orders(ran: Ran) -> tuple[Any, ...]:
    summary = ran.table("shop.orders")
    return summary["status"], summary["appended"]


def _count_comparisons(project: Project) -> list[tuple[Any, ...]]:
    """Returns how often the buckets of orders were compared, and the differences and repairs."""
    return project.rows(
        "select count(*), count(distinct bucket), "
        "sum(missed_updates + missed_rows + missed_deletes), count_if(repaired) > 0 "
        "from raw._cq_reconciled where table_name = 'orders'"
    )


@pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
def test_a_run_repairs_what_cursors_cannot_see(project: Project, shop: Shop) -> None:
    shop.open(project, reconcile=DAILY)
    shop.damage()
    ran = project.run()
    assert _read_orders(ran) == ("synced", TOTAL)
    event = ran.table("shop.orders")
    assert event["read"] == event["appended"] + event["redelivered"]
    lost = ("rows_below_cursor", "rows_at_cursor", "rows_cursor_unmoved")
    assert [event[name] for name in lost] == [10, 0, 7]
    assert (
        "shop.orders: 64 of 64 buckets of its keys were compared with the source, and 7 missed "
        "updates, 3 missed rows and 5 missed deletes were appended"
    ) in ran.warnings
    assert_equal(project, shop)
    assert _count_comparisons(project) == [(64, 64, TOTAL, True)]
    # the ledger; without a consistent snapshot, the source is synced again before the repair
    ledger = "select distinct batch, mode, status, rows_appended from raw._cq_syncs"
    assert set(project.rows(ledger)) == {
        (1, "incremental", "synced", FIRST),
        (None, "incremental", "nothing new", 0),
        (2, "reconcile", "synced", TOTAL),
    }
    [status] = [e for e in project.loader("status").events if e["event"] == "status"]
    assert status["verified_until"] is not None
    assert [status[name] for name in (*lost, "unrepaired")] == [10, 0, 7, 0]

    notes = project.loader("check").events[0]["notes"]
    if "mariadb" in project.folder.joinpath("loader.yml").read_text():
        # only the inserted rows were late, not the updates that did not move the cursor
        assert "3 rows were up to 3 hours 17 minutes below the last cursor" in notes

    # less than a day later nothing is compared; another `every` and `budget` are accepted
    shop.execute("update orders set note = 'again' where id = 11")
    assert _read_orders(project.run()) == ("nothing new", 0)
    assert _count_comparisons(project) == [(64, 64, TOTAL, True)]
    shop.configure(project, ["orders"], cursor_field="changed", reconcile=AT_ONCE)
    assert _read_orders(project.run()) == ("synced", 2)
    assert_equal(project, shop)
    assert _read_orders(project.run("--full-refresh"))[0] == "synced"
    assert _count_comparisons(project) == [(128, 64, TOTAL + 2, True)]


def test_each_part_is_compared_in_turn(
    project: Project, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs compare one part each, while rows change. A third run starts again."""
    shop.open(project)
    more = [f"({n}, 'p', 'more', 1, timestamp('{moment(FIRST + 1)}'))" for n in range(3000, 4500)]
    shop.execute(f"insert into orders values {', '.join(more)}")
    assert _read_orders(project.run()) == ("synced", 1500)
    shop.configure(project, ["orders"], cursor_field="changed", reconcile=DAILY)
    shop.damage()
    monkeypatch.setattr(rotation, "SMALL_ROWS", 0)
    monkeypatch.setattr(rotation, "_GROUPS", PARTS)
    # a clock that is ahead by one group's share of a day, so that the next group is due
    later = partial(rotation.Rotation, clock=lambda: time.time() + 86_400 / PARTS)
    monkeypatch.setattr(rotation, "Rotation", later)
    appended = 0
    for number in range(PARTS):
        ran = project.run()
        appended += _read_orders(ran)[1]
        seen = (number + 1) * 64 // PARTS
        assert _count_comparisons(project)[0][:2] == (seen, seen)
    assert appended == TOTAL
    assert _count_comparisons(project) == [(64, 64, TOTAL, True)]
    assert_equal(project, shop)
    assert _read_orders(project.run()) == ("nothing new", 0)
    again = "select bucket from raw._cq_reconciled group by bucket having count(*) = 2 order by 1"
    assert project.rows(again) == [(bucket,) for bucket in range(64 // PARTS)]


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_many_deletes_and_foreign_histories(project: Project, shop: Shop) -> None:
    shop.open(project, reconcile=AT_ONCE)
    # too many deletes
    shop.execute("delete from orders where id > 150")
    ran = project.run()
    assert _read_orders(ran) == ("nothing new", 0)
    assert any(
        "64 of 64 buckets of its keys were compared: 50 of 200 rows (more than a tenth) are" in t
        and "`loader reconcile --repair --allow-deletes --select shop.orders`" in t
        for t in ran.warnings
    )
    assert _count_comparisons(project) == [(64, 64, 50, False)]
    # a history from an older loader, and one that another program has altered
    schema = project.schema
    project.spark.sql(f"alter table {schema}._cq_reconciled drop column seconds")
    assert project.loader("status").code == 0
    project.run()
    assert project.rows("select count(*), count(seconds) from raw._cq_reconciled") == [(128, 64)]
    project.spark.sql(f"alter table {schema}._cq_reconciled rename column bucket to other")
    shop.execute(f"insert into orders values (777, 'p', 'new', 1, timestamp('{moment(777)}'))")
    ran = project.loader("run")
    assert ran.code == 1
    assert any("bucket" in error for error in ran.errors), ran.text
    assert project.rows("select count(*) from raw.orders where id = 777") == [(1,)]


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_too_many_missing_rows_are_compared_again_in_each_run(project: Project, shop: Shop) -> None:
    shop.open(project, reconcile={"every": "1 day", "budget": "100 %"})
    project.run()
    assert _count_comparisons(project) == [(64, 64, 0, False)]
    assert _verified_until(project) is not None
    project.spark.sql(f"delete from {project.schema}._cq_reconciled")

    shop.execute(
        "delete from orders where id > 150",
        "update orders set note = 'changed' where id = 11",
        "update orders set id = 2012 where id = 12",
    )
    for appended, rows in ((2, 200), (0, 201)):  # the next run compares them again
        ran = project.run()
        assert _read_orders(ran) == ("synced" if appended else "nothing new", appended)
        repaired = " 1 missed update and 1 missed row were appended." if appended else ""
        assert any(
            f"51 of {rows} rows (more than a tenth) are missing from the source, so no deletes "
            f"were appended, and the next comparison repeats this one.{repaired} Check" in text
            for text in ran.warnings
        ), ran.text
        [status] = [e for e in project.loader("status").events if e["event"] == "status"]
        assert status["unrepaired"] == 51
        assert _verified_until(project) is None
    assert _count_comparisons(project)[0][:3] == (128, 64, 53 + 51)
    assert project.rows("select id, note from raw.orders where _cq_batch = 2 order by id") == [
        (11, "changed"),
        (2012, "note 12"),
    ]
    ran = reconcile(project, "--repair", "--buckets", "8", "--per-run", "8", code=1)
    assert line(ran)["verified"] == 0
    again = reconcile(project, "--repair", "--buckets", "8", "--per-run", "2", code=1)
    assert missed(again)["missed_deletes"] > 0
    compared = "select bucket from raw._cq_reconciled where buckets = 8 group by 1 having count(*)"
    assert project.rows(f"{compared} > 1 order by 1") == [(0,), (1,)]

    ran = reconcile(project, "--repair", "--allow-deletes")
    assert (line(ran)["verified"], line(ran)["repaired"]) == (64, 51)
    assert _verified_until(project) is not None
    assert_equal(project, shop)
    ran = project.run()
    assert ran.warnings == []
    assert _count_comparisons(project)[0][0] == 3 * 64 + 8 + 2


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_differences_that_a_report_found_are_compared_by_the_next_run(
    project: Project, shop: Shop
) -> None:
    shop.open(project, reconcile={"every": "1 day", "budget": "100 %"})
    project.run()
    shop.damage()
    assert line(reconcile(project, code=1))["repaired"] == 0
    assert _read_orders(project.run()) == ("synced", TOTAL)
    assert_equal(project, shop)
    assert _read_orders(project.run()) == ("nothing new", 0)


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_full_refresh_or_another_key_restarts_the_rotation(project: Project, shop: Shop) -> None:
    shop.open(project)
    reconcile(project)
    assert _verified_until(project) is not None
    assert _read_orders(project.run("--full-refresh")) == ("synced", FIRST)
    assert _verified_until(project) is None
    project.spark.sql(f"drop table {project.schema}.orders")
    reconcile(project)  # syncs all rows, and then compares them in the same run
    assert _verified_until(project) is not None

    shop.execute("alter table orders drop constraint orders_pkey, add primary key (part, id)")
    reconcile(project, "--buckets", "2", "--per-run", "1")
    assert _verified_until(project) is None
    reconcile(project, "--buckets", "2", "--per-run", "1")
    assert _verified_until(project) is not None
    keys = "select distinct key_columns from raw._cq_reconciled order by 1"
    assert project.rows(keys) == [("id, part",), ("part, id",)]


def _verified_until(project: Project) -> Any:
    """Returns `verified_until` in `loader status`, which Spark and pyiceberg must read equally."""
    [status] = [e for e in project.loader("status").events if e["event"] == "status"]
    [found] = LakeComparisons(project.lake()).by_table().values()
    assert (found.verified_until is not None) is (status["verified_until"] is not None)
    assert found.unrepaired == status["unrepaired"]
    return status["verified_until"]


def test_tables_that_cannot_be_compared(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table keyless (id int, at timestamptz default now())",
        "insert into keyless values (1)",
        "create table full_table (id int primary key)",
        "insert into full_table values (1)",
    )
    options = {
        "*": {"reconcile": AT_ONCE},
        "keyless": {"cursor_field": "at"},
        "full_table": {"sync_mode": "full_refresh"},
    }
    project.jdbc(postgres_database, ["keyless", "full_table"], table_options=options)
    project.run()
    ran = project.run()
    assert any("the `reconcile` option has no effect: it has no primary" in t for t in ran.warnings)
    assert not any("reconcile" in text for text in ran.warnings if "no primary" not in text)
    assert not project.lake().exists("_cq_reconciled")
    text = project.loader("check").text
    assert "the `reconcile` option has no effect: without a key no rows are compared" in text


@pytest.mark.slow
def test_repairs_killed_at_each_step(
    project: Project,
    postgres_database: Database,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four tables, each killed at a different step. The next run compares all keys of the four.

    A fifth table's comparison is not repeated at once, because it may be what killed the process.
    """
    steps = {"prepared": "", "staged": "", "published": "", "recorded": ""}
    daily = "daily"
    worker = workers.take()
    for table in (*steps, daily):
        postgres_database.execute(
            f"create table {table} (id int primary key, note text, at timestamptz)",
            f"insert into {table} select i, 'n', now() - i * interval '1 day' "
            "from generate_series(1, 20) i",
        )
    own = {"cursor_field": "at", "sweep": "never", "reconcile": AT_ONCE}
    options = {**dict.fromkeys(steps, own), daily: {**own, "reconcile": DAILY}}
    project.jdbc(postgres_database, [*options], table_options=options)
    project.run()
    for table in steps:
        postgres_database.execute(
            f"delete from {table} where id = 4", f"update {table} set note = 'm' where id > 18"
        )
    postgres_database.execute(f"delete from {daily} where id = 4")
    # the syncs before the repairs append nothing, but write to the ledger (hence `#2`)
    places = [f"{step}:shop.{step}" for step in ("prepared", "staged", "published")]
    places += ["ledger-recorded:shop.recorded#2", f"prepared:shop.{daily}"]
    worker.start(project, "run", "--concurrency", "5", crash_at=",".join(places))
    assert worker.died() == signal.SIGKILL
    assert not project.lake().exists("_cq_reconciled"), "a part was skipped"
    for table in steps:
        count = 23 if table in ("published", "recorded") else 20
        assert project.rows(f"select count(*) from raw.{table}") == [(count,)]

    postgres_database.execute(f"insert into {daily} values (21, 'n', now())")
    ran = project.run()
    for table in steps:
        is_done = table in ("published", "recorded")
        assert ran.table(f"shop.{table}")["appended"] == (0 if is_done else 3)
        assert project.rows(
            f"select count(distinct bucket) from raw._cq_reconciled where table_name = '{table}'"
        ) == [(64,)]
        newest = project.rows(
            "select count(*), count_if(newest.note = 'm') from ("
            "select max_by(struct(note, _cq_deleted), struct(_cq_generation, _cq_batch, _cq_seq)) "
            f"as newest from raw.{table} group by id) where not newest._cq_deleted"
        )
        assert newest == [(19, 2)]
        assert project.snapshots(table) == 2, "a staged batch was left behind"

    only = ("--select", f"shop.{daily}")
    for appended, again in ((1, ran), (0, project.run(*only))):
        assert again.table(f"shop.{daily}")["appended"] == appended
        [text] = [t for t in again.warnings if "killed during its last comparison" in t]
        assert text.startswith(f"shop.{daily}: ")
        assert "after an eighth of reconcile.every (3 hours)" in text
    later = partial(rotation.Rotation, clock=lambda: time.time() + 86_400 / 8)
    monkeypatch.setattr(rotation, "Rotation", later)
    assert project.run(*only).table(f"shop.{daily}")["appended"] == 1
    assert project.rows(f"select id from raw.{daily} where _cq_deleted") == [(4,)]
    assert project.lake().properties(daily)[rotation.COMPARING_SINCE] == ""
