"""The sync protocol: batches are atomic, without gaps or duplicates; idle syncs commit nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import lit

from loader.errors import StateError, TableError
from loader.lake.ledger import Ledger
from loader.lake.locks import lock_table
from loader.lake.staging import discard_staged, publish_batch, stage_batch
from loader.state import StateRow
from loader.state.lake_table import LakeState
from loader.sync import protocol
from loader.sync import publish as publish_module
from tests.services import Database
from tests.sync.project import Project

ORDERS = [
    "create table orders (id int primary key, note text, c int)",
    "insert into orders select g, 'n' || g, g from generate_series(1, 100) g",
]


@pytest.fixture
def orders(project: Project, postgres_database: Database) -> Database:
    """A table of 100 rows, synced once."""
    postgres_database.execute(*ORDERS)
    project.jdbc(postgres_database, ["orders"], table_options={"orders": {"cursor_field": "c"}})
    project.run()
    return postgres_database


class Crash(BaseException):
    """Ends a run as a kill would: the loader does not handle it."""


def _list_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_an_empty_delta_commits_nothing(
    project: Project, orders: Database, warehouse: Path
) -> None:
    raw = warehouse / project.schema / "orders"
    state = warehouse / project.schema / "_cq_state"
    before = _list_files(raw), _list_files(state), project.state("shop.orders")
    ran = project.run().table("shop.orders")
    assert (ran["status"], ran["read"], ran["redelivered"]) == ("nothing new", 1, 1)
    assert (_list_files(raw), _list_files(state), project.state("shop.orders")) == before
    assert project.rows(
        "select status, batch, rows_appended from raw._cq_syncs order by started_at"
    ) == [("synced", 1, 100), ("nothing new", None, 0)]


def test_an_empty_table_can_be_read_and_its_first_row_makes_the_first_batch(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key, c int)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    assert project.run().table("shop.t")["status"] == "nothing new"
    assert project.rows("select id, c, _cq_batch from raw.t") == []
    assert project.run().table("shop.t")["status"] == "nothing new"
    for command in ("compact", "reconcile", "status", "state rebuild", "state list", "check"):
        project.loader(*command.split())
    assert project.run("--full-refresh").table("shop.t")["status"] == "nothing new"
    postgres_database.execute("insert into t values (1, 1)")
    assert project.run().table("shop.t")["batch"] == 1
    assert project.rows("select id, c, _cq_batch from raw.t") == [(1, 1, 1)]


def test_an_empty_raw_table_is_recreated_if_columns_change(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key, c int, note int)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute(
        "alter table t drop column note, alter column id type text, add column name text"
    )
    assert project.run().table("shop.t")["status"] == "nothing new"
    postgres_database.execute("insert into t (id, c, name) values ('a', 1, 'first')")
    assert project.run().table("shop.t")["batch"] == 1
    assert project.rows("select id, c, name from raw.t") == [("a", 1, "first")]
    assert not any(name.startswith(("note", "id_")) for name in project.lake().frame("t").columns)


def test_the_commit_carries_batch_state_and_counts(project: Project, orders: Database) -> None:
    [(batch, state, sync, added)] = project.rows(
        "select summary['strandline.batch'], summary['strandline.state'], "
        "summary['strandline.sync'], summary['added-records'] from raw.orders.snapshots"
    )
    assert (batch, added) == ("1", "100")
    assert json.loads(state) == project.state("shop.orders")
    assert json.loads(sync)["rows_null_cursor"] == 0


@pytest.mark.parametrize("step", ["state", "ledger"])
def test_a_crash_after_the_commit_is_rolled_forward(
    project: Project, orders: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def crash(*_: object) -> None:
        raise Crash

    orders.execute("insert into orders values (101, 'late', 101)")
    with monkeypatch.context() as patch:
        broken = (LakeState, "append") if step == "state" else (Ledger, "append_all")
        patch.setattr(*broken, crash)
        with pytest.raises(Crash):
            project.loader("run")
    again = project.run()
    assert again.table("shop.orders")["status"] == "nothing new"
    assert project.rows("select count(*), count(distinct id) from raw.orders") == [(101, 101)]
    assert project.state("shop.orders")["batch"] == 2

    # Once more, but with new rows after the crash: they become a separate batch.
    orders.execute("insert into orders values (102, 'late', 102)")
    with monkeypatch.context() as patch:
        patch.setattr(*broken, crash)
        with pytest.raises(Crash):
            project.loader("run")
    orders.execute("insert into orders values (103, 'later', 103)")
    assert project.run().table("shop.orders")["batch"] == 4
    assert project.rows("select id, _cq_batch from raw.orders where id > 100 order by id") == [
        (101, 2),
        (102, 3),
        (103, 4),
    ]
    # State and ledger are written in parallel: if one fails, the other may have been written.
    status = "synced" if step == "state" else "recovered"
    assert project.rows(
        "select status, rows_read, rows_appended, rows_redelivered from raw._cq_syncs "
        "where batch = 2"
    ) == [(status, 2, 1, 1)]


def test_a_crash_before_the_commit_leaves_no_visible_rows(
    project: Project, orders: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise Crash

    orders.execute("insert into orders values (101, 'late', 101)")
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "publish_batch", crash)
        with pytest.raises(Crash):
            project.loader("run")
    assert project.rows("select count(*) from raw.orders") == [(100,)]
    assert project.snapshots("orders") == 2  # one of them is staged
    assert project.run().table("shop.orders")["appended"] == 1
    assert project.snapshots("orders") == 2  # the staged one was removed
    assert project.rows("select max(_cq_batch), count(*) from raw.orders") == [(2, 101)]


def test_a_batch_number_is_published_once(project: Project, orders: Database) -> None:
    lake = project.lake()
    rows = lake.frame("orders").limit(1)
    facts = {"state": "{}", "sync": {}}
    staged = stage_batch(lake, "orders", rows, 1, facts)
    with pytest.raises(TableError, match="published this batch number"):
        publish_batch(lake, "orders", staged)
    assert project.rows("select count(*) from raw.orders") == [(100,)]


def test_a_batch_published_over_somebody_elses_commit_keeps_its_state(
    project: Project, orders: Database
) -> None:
    lake = project.lake()
    staged = stage_batch(
        lake, "orders", lake.frame("orders").limit(1), 2, {"state": "{}", "sync": {}}
    )
    project.spark.sql(
        f"alter table {lake.name('orders')} unset tblproperties ('write.wap.enabled')"
    )
    project.spark.sql(f"delete from {lake.name('orders')} where id = 1")
    head = publish_batch(lake, "orders", staged)
    assert (head.batch, head.state) == (2, "{}")


def test_a_value_that_is_restored_at_the_same_cursor_is_a_new_version(
    project: Project, orders: Database
) -> None:
    for note, appended in (("B", 1), ("n100", 1), ("n100", 0)):
        orders.execute(f"update orders set note = '{note}' where id = 100")
        assert project.run().table("shop.orders")["appended"] == appended
    assert project.rows("select note from raw.orders where id = 100 order by _cq_batch") == [
        ("n100",),
        ("B",),
        ("n100",),
    ]


def test_finding_redeliveries_reads_only_files_at_the_cursor(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, pad text)",
        "insert into t select g, g, md5(g::text) from generate_series(1, 200000) g",
    )
    options = {"t": {"cursor_field": "c", "num_partitions": 4}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    files = project.rows("select file_path, lower_bounds from raw.t.files")
    assert len(files) == 4
    ran = project.run().table("shop.t")
    assert (ran["status"], ran["read"]) == ("nothing new", 1)
    boundary = project.spark.sql(f"select * from {project.schema}.t where c >= 200000")
    assert len(boundary.collect()) == 1
    scan = boundary._jdf.queryExecution().executedPlan().collectLeaves().head()
    metrics = scan.metrics()
    read, skipped = (
        metrics.get(name).get().value() for name in ("resultDataFiles", "skippedDataFiles")
    )
    assert (read, skipped) == (1, 3)


def test_a_state_reset_reads_everything_and_appends_nothing(
    project: Project, orders: Database
) -> None:
    assert project.loader("state", "reset", "shop.orders").code == 0
    assert project.state("shop.orders")["cursor"] is None
    ran = project.run().table("shop.orders")
    assert (ran["status"], ran["read"], ran["redelivered"]) == ("nothing new", 100, 100)
    assert project.state("shop.orders")["cursor"] == "100"
    assert project.run().table("shop.orders")["read"] == 1


def test_a_dropped_raw_table_is_loaded_again_in_a_new_generation(
    project: Project, orders: Database
) -> None:
    project.spark.sql(f"drop table {project.schema}.orders")
    ran = project.run()
    assert any("the raw table was dropped" in warning for warning in ran.warnings)
    assert ran.table("shop.orders")["appended"] == 100
    assert project.rows("select distinct _cq_batch, _cq_generation from raw.orders") == [(2, 2)]


def test_a_full_refresh_appends_everything_in_a_new_generation(
    project: Project, orders: Database
) -> None:
    orders.execute("delete from orders where id > 90")
    ran = project.run("--full-refresh").table("shop.orders")
    assert (ran["batch"], ran["appended"]) == (2, 90)
    assert project.rows(
        "select _cq_generation, count(*) from raw.orders group by 1 order by 1"
    ) == [(1, 100), (2, 90)]
    assert project.state("shop.orders")["cursor"] == "90"
    assert project.run().table("shop.orders")["status"] == "nothing new"


def test_a_table_that_another_run_has_locked_is_skipped(project: Project, orders: Database) -> None:
    with lock_table(project.lake(), "orders"):
        ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("shop.orders")["status"] == "locked"
    assert any("another run" in error for error in ran.errors)


def test_a_table_without_key_keeps_identical_rows_and_drops_redelivered_ones(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (a text, c int)", "insert into t values ('x', 1), ('x', 1), ('y', 1)"
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    assert project.run().table("shop.t")["appended"] == 3
    postgres_database.execute("insert into t values ('x', 1)")
    assert project.run().table("shop.t")["appended"] == 1
    assert project.run().table("shop.t")["appended"] == 0


def test_columns_added_and_dropped(project: Project, orders: Database) -> None:
    orders.execute(
        "alter table orders add extra text",
        "alter table orders drop note",
        "insert into orders values (101, 101, 'new')",
    )
    assert project.run().table("shop.orders")["appended"] == 2  # the row at the cursor, too
    assert project.rows("select note, extra from raw.orders where id = 101") == [(None, "new")]
    assert project.rows("select schema_changes from raw._cq_syncs where batch = 2") == [
        ("added extra string; dropped note string",)
    ]


def test_a_raw_table_altered_during_a_sync_fails_and_the_next_run_succeeds(
    project: Project, orders: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema changes of the sync were planned for other columns of the raw table."""
    orders.execute("insert into orders values (101, 'late', 101)")
    publish = protocol.publish

    def alter_first(*arguments: Any) -> Any:
        project.spark.sql(f"alter table {project.schema}.orders drop column note")
        return publish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "publish", alter_first)
        ran = project.loader("run")
    assert ran.code == 1
    assert "was altered, dropped or created while the source was read" in ran.errors[0]
    assert project.rows("select max(_cq_batch), count(*) from raw.orders") == [(1, 100)]
    assert project.run().table("shop.orders")["appended"] == 1
    assert project.rows("select note from raw.orders where id = 101") == [("late",)]


def test_discarding_a_batch_expires_nothing_else(project: Project, orders: Database) -> None:
    lake = project.lake()
    # All snapshots are older than the maximum age, which is five days by default.
    lake.set_properties("orders", {"history.expire.max-snapshot-age-ms": "1"})
    orders.execute("insert into orders values (101, 'late', 101)")
    project.run()
    kept = project.rows("select snapshot_id from raw.orders.snapshots order by committed_at")
    assert len(kept) == 2
    rows = lake.frame("orders").limit(1).withColumn("_cq_batch", lit(3).cast("bigint"))
    facts = {"state": "{}", "sync": {}}
    staged = [stage_batch(lake, "orders", rows, 3, facts) for _ in range(2)]
    assert project.snapshots("orders") == 4
    assert discard_staged(lake, "orders", staged[0]) == 1
    assert discard_staged(lake, "orders") == 1
    assert kept == project.rows(
        "select snapshot_id from raw.orders.snapshots order by committed_at"
    )


def test_a_run_records_all_its_tables_in_one_commit_each(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State and ledger get one commit each. If one state is refused, the others are stored."""
    names = [f"t{number}" for number in range(5)]
    for name in names:
        postgres_database.execute(
            f"create table {name} (id int primary key)", f"insert into {name} values (1)"
        )
    project.jdbc(
        postgres_database, names, table_options={name: {"cursor_field": "id"} for name in names}
    )

    def commits() -> list[int]:
        return [project.snapshots(table) for table in ("_cq_state", "_cq_syncs")]

    first = project.run()
    assert [first.table(f"shop.{name}")["batch"] for name in names] == [1] * 5
    assert commits() == [1, 1]
    assert project.rows("select count(*) from raw._cq_state") == [(5,)]
    for name in names:
        postgres_database.execute(f"insert into {name} values (2)")
    project.run()
    assert commits() == [2, 2]
    project.run()
    assert commits() == [2, 3], "nothing new: no state, and a ledger row for each table"
    assert project.rows("select count(*) from raw._cq_syncs") == [(15,)]

    newer = json.dumps({**project.state("shop.t0"), "format": 99})
    project.spark.sql(
        f"insert into {project.schema}._cq_state values ('shop.t0', '{newer}', 3, now())"
    )
    for name in names:
        postgres_database.execute(f"insert into {name} values (3)")
    ran = project.loader("run")
    assert (ran.code, len(ran.errors)) == (1, 1), ran.text
    assert "shop.t0" in ran.errors[0]
    assert [ran.table(f"shop.{name}")["batch"] for name in names[1:]] == [3] * 4

    append = LakeState.append

    def refuses_several(state: LakeState, rows: list[StateRow]) -> None:
        if len(rows) > 1:
            raise StateError("one of them is taken")
        append(state, rows)

    monkeypatch.setattr(LakeState, "append", refuses_several)
    for name in names:
        postgres_database.execute(f"insert into {name} values (4)")
    project.run("--select", "shop.t[1-4]")
    assert {project.state(f"shop.{name}")["batch"] for name in names[1:]} == {4}
