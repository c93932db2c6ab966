"""Changes that cursors do not show are reported and repaired exactly, on each kind of database."""

from __future__ import annotations

import pytest

from loader.lake.locks import Lease
from loader.spark.error_translation import CatalogLostError
from tests.reconcile.shop import (
    FIRST,
    MISSED,
    Shop,
    assert_equal,
    line,
    missed,
    moment,
    nothing,
    reconcile,
)
from tests.sync.project import Project

TOTAL = sum(MISSED.values())


def test_what_cursors_cannot_see_is_found_and_repaired(project: Project, shop: Shop) -> None:
    shop.open(project)
    shop.damage()
    before = project.state("shop.orders")
    repaired = reconcile(project, "--repair")
    assert missed(repaired) == MISSED
    assert (line(repaired)["status"], line(repaired)["repaired"]) == ("repaired", TOTAL)
    assert project.rows(
        "select count(*), count_if(_cq_deleted), min(_cq_generation), max(_cq_generation), "
        "count(distinct _cq_seq) from raw.orders where _cq_batch = 2"
    ) == [(TOTAL, 5, 2, 2, TOTAL)]
    assert_equal(project, shop)

    # the cursor is unchanged, the ledger records the repair, and the next sync appends nothing
    after = project.state("shop.orders")
    assert after["cursor"] == before["cursor"]
    assert (after["batch"], after["generation"], after["base_generation"]) == (2, 2, 1)
    assert project.rows(
        "select mode, status, generation, rows_appended, cursor_high from raw._cq_syncs "
        "where batch = 2"
    ) == [("reconcile", "synced", 2, TOTAL, after["cursor"])]
    ran = project.run().table("shop.orders")
    assert (ran["status"], ran["appended"]) == ("nothing new", 0)
    equal = reconcile(project)
    assert (missed(equal), line(equal)["status"]) == (nothing(), "equal")
    there = FIRST + MISSED["missed_rows"] - MISSED["missed_deletes"]
    assert (line(equal)["rows"], line(equal)["verified"]) == (there, 64)


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_table_that_is_compared_again_has_one_result(
    project: Project, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.open(project)
    shop.damage()
    release, errors = Lease.release, [CatalogLostError("the catalog cannot be reached")]

    def release_and_lose_the_answer(lease: Lease) -> None:
        release(lease)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(Lease, "release", release_and_lose_the_answer)
    found = reconcile(project, code=1)
    assert not errors
    assert [e["missed_rows"] for e in found.events if e["event"] == "reconciled"] == [
        MISSED["missed_rows"]
    ]


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_deleted_row_that_is_inserted_again(project: Project, shop: Shop) -> None:
    shop.open(project)
    shop.execute("delete from orders where id in (20, 21, 22)")
    assert missed(reconcile(project, "--repair")) == {**nothing(), "missed_deletes": 3}
    [(generation, note, changed)] = project.rows(
        "select _cq_generation, note, changed from raw.orders where _cq_deleted and id = 20"
    )
    assert (generation, note, changed) == (2, None, None)
    # if the row's cursor is newer, the next sync appends it, otherwise the next `reconcile`;
    # updates that move the cursor are synced in the new generation as before
    shop.execute(
        f"update orders set note = 'bumped', changed = timestamp('{moment(FIRST + 5)}') "
        "where id < 20",
        "delete from orders where id = 60",
        f"insert into orders values (20, 'p2', 'new', 1, timestamp('{moment(FIRST + 1)}'))",
        f"insert into orders values (21, 'p0', 'note 21', 21.25, timestamp('{moment(21)}'))",
    )
    assert project.run().table("shop.orders")["appended"] == 1 + 19
    wanted = {**nothing(), "missed_rows": 1, "missed_deletes": 1}
    assert missed(reconcile(project, "--repair")) == wanted
    assert_equal(project, shop)
    assert project.run().table("shop.orders")["appended"] == 0


@pytest.mark.parametrize("shop", ["postgresql", "derby"], indirect=True)
def test_rows_that_the_spec_does_not_load_are_not_missed(project: Project, shop: Shop) -> None:
    shop.execute(
        "create table notes (id int primary key, note varchar(20), c int)",
        "insert into notes values (1, 'a', 1), (2, 'b', 10), (3, 'c', 20), (4, 'd', null)",
    )
    options = {
        "cursor_field": "c",
        "initial_cursor": "10",
        "null_cursor": "exclude",
        "lookback": 0,
    }
    shop.configure(project, ["notes"], **options)
    assert project.run().table("shop.notes")["appended"] == 2
    shop.execute(
        "update notes set note = 'A' where id = 1",
        "update notes set note = 'D' where id = 4",
        "insert into notes values (5, 'e', 2), (6, 'f', null)",
    )
    ran = reconcile(project)
    assert (missed(ran, "shop.notes"), line(ran, "shop.notes")["rows"]) == (nothing(), 2)
    # the row that left the range still exists; the new row within the range was missed
    shop.execute(
        "update notes set c = null where id = 2",
        "insert into notes values (7, 'g', 15)",
    )
    ran = reconcile(project, code=1)
    assert missed(ran, "shop.notes") == {**nothing(), "missed_rows": 1}


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_what_differs_is_reported_and_buckets_take_turns(project: Project, shop: Shop) -> None:
    shop.open(project)
    shop.damage()
    found = reconcile(project, code=1)
    assert (missed(found), line(found)["status"]) == (MISSED, "differs")
    assert len([e for e in found.events if e["event"] == "difference"]) == 10
    assert project.rows("select count(*) from raw.orders") == [(FIRST,)]
    project.spark.sql(f"drop table {project.schema}._cq_reconciled")

    turns = []
    for _ in range(3):
        ran = project.loader("reconcile", "--repair", "--buckets", "8", "--per-run", "3")
        assert ran.code == 0, ran.text
        turns.append(line(ran)["repaired"])
        assert (line(ran)["verified"], line(ran)["buckets"]) == (3, 8)
    assert sum(turns) == TOTAL
    assert_equal(project, shop)
    verified = project.rows(
        "select bucket, count(*) from raw._cq_reconciled group by bucket order by bucket"
    )
    assert verified == [(bucket, 2 if bucket == 0 else 1) for bucket in range(8)]
    [(output_text, unrepaired, batches)] = project.rows(
        "select sum(missed_updates + missed_rows + missed_deletes), "
        "count_if(not repaired and missed_updates + missed_rows + missed_deletes > 0), "
        "count(distinct batch) from raw._cq_reconciled"
    )
    assert (output_text, unrepaired, batches) == (TOTAL, 0, len([turn for turn in turns if turn]))


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_table_in_which_every_row_differs(project: Project, shop: Shop) -> None:
    # more keys than a query lists one by one
    shop.execute("create table notes (id int primary key, note varchar(20), c int)")
    for start in range(0, 2500, 500):
        rows = ", ".join(f"({i}, 'a', {i})" for i in range(start, start + 500))
        shop.execute(f"insert into notes values {rows}")
    shop.configure(project, ["notes"], cursor_field="c", lookback=0)
    project.run()
    shop.execute("update notes set note = 'b'")
    ran = reconcile(project, "--repair", "--buckets", "4")
    assert line(ran, "shop.notes")["synced"] == 1
    assert missed(ran, "shop.notes") == {**nothing(), "missed_updates": 2499}
    ran = reconcile(project)
    assert (line(ran, "shop.notes")["synced"], missed(ran, "shop.notes")) == (0, nothing())
