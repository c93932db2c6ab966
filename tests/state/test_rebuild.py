"""If the state or the ledger is dropped, it is rebuilt from the commits of the raw tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.lake.locks import lock_table
from tests.dbt.dbtproject import DbtProject
from tests.services import Database, Postgres
from tests.sync.original import Original
from tests.sync.project import Project

TESTS = ["batches_complete", "state_consistent", "inclusive_cursor"]


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    """The database of all tests."""
    with postgres.database("rebuilt") as database:
        yield database


@pytest.fixture(scope="module")
def original(
    spark: SparkSession,
    warehouse: Path,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Original]:
    """Two tables; orders has three batches, the third from a full refresh."""
    folder = tmp_path_factory.mktemp("rebuilt")
    project = Project(folder, spark, "raw_rebuilt")
    database.execute(
        "create table orders (id int primary key, note text, version bigint)",
        "insert into orders select i, 'n', i from generate_series(1, 10) as i",
        "create table items (id int primary key, version bigint)",
        "insert into items values (1, 5)",
    )
    options = {name: {"cursor_field": "version"} for name in ("orders", "items")}
    project.jdbc(database, ["orders", "items"], table_options=options)
    project.run()
    database.execute("insert into orders values (11, 'late', 11)")
    project.run()
    project.run("--full-refresh", "--select", "shop.orders")
    original = Original(project, database, warehouse, folder / "copy")
    yield original
    original.remove()


@pytest.fixture
def shop(original: Original, tmp_path: Path) -> Project:
    """Restores the project for one test."""
    return original.again(tmp_path)


def _assert_dbt_tests_pass(project: Project, spark: SparkSession, folder: Path) -> None:
    """Checks that the dbt tests of the raw tables, the state and the ledger pass."""
    folder.mkdir()
    dbt = DbtProject(spark, folder, schema=f"{project.schema}_dbt", raw_schema=project.schema)
    settings = {"config": {"meta": {"strandline": {"unique_key": "id"}}}}
    tables = [{"name": name, **settings} for name in ("orders", "items")]
    source = {"name": "raw", "schema": project.schema, "tables": tables}
    dbt.write("models/sources.yml", {"sources": [source]})
    results = dbt.run("test", "--select", *(f"test_name:{name}" for name in TESTS))
    assert len(results) == len(TESTS)
    assert {r.name: r.message for r in results.values() if r.status != "pass"} == {}
    for name in ("batches_complete", "state_consistent"):
        [judged] = [result for result in results.values() if name in result.name]
        assert "orders" in judged.sql
        assert "items" in judged.sql


def _states(project: Project) -> list[tuple[object, ...]]:
    return project.rows("select key, version, value from raw._cq_state order by key, version")


def _without_marks(states: list[tuple[object, ...]]) -> set[tuple[object, str]]:
    """Returns tables and states without marks, as each test has a copy of the database."""
    found = [(key, json.loads(str(value))) for key, _, value in states]
    return {(key, json.dumps({**value, "mark": None})) for key, value in found}


def _syncs(project: Project) -> list[tuple[object, ...]]:
    """Returns the ledger rows that the commits record."""
    return project.rows(
        "select source_name, table_name, batch, generation, mode, cursor_field, cursor_type, "
        "cursor_low, cursor_high, rows_appended, rows_redelivered, started_at, snapshot_id "
        "from raw._cq_syncs where batch is not null order by table_name, batch"
    )


def test_dropped_state_and_ledger_are_rebuilt(
    shop: Project, spark: SparkSession, tmp_path: Path
) -> None:
    before = _states(shop), _syncs(shop)
    assert len(before[0]) == len(before[1]) == 4
    spark.sql(f"drop table {shop.schema}._cq_state")
    spark.sql(f"drop table {shop.schema}._cq_syncs")
    made = shop.loader("state", "rebuild")
    assert made.code == 0, made.text
    assert [
        (e["table"], e["batches"], e["states_added"], e["syncs_added"]) for e in made.events
    ] == [("shop.items", 1, 1, 1), ("shop.orders", 3, 3, 3)]
    assert (_states(shop), _syncs(shop)) == before
    assert shop.rows("select distinct status from raw._cq_syncs") == [("recovered",)]
    _assert_dbt_tests_pass(shop, spark, tmp_path / "dbt")

    again = shop.loader("state", "rebuild")
    assert [(e["states_added"], e["syncs_added"]) for e in again.events] == [(0, 0), (0, 0)]
    assert (_states(shop), _syncs(shop)) == before

    ran = shop.run()
    assert {e["status"] for e in ran.events if e["event"] == "table"} == {"nothing new"}
    assert _without_marks(_states(shop)) == _without_marks(before[0])


def test_only_the_selected_table_is_rebuilt(shop: Project, spark: SparkSession) -> None:
    spark.sql(f"drop table {shop.schema}._cq_syncs")
    made = shop.loader("state", "rebuild", "--select", "shop.it*")
    assert [(e["table"], e["states_added"], e["syncs_added"]) for e in made.events] == [
        ("shop.items", 0, 1)
    ]
    missing = shop.loader("state", "rebuild", "--select", "shop.nothing")
    assert (missing.code, len(missing.errors)) == (2, 1)
    with lock_table(shop.lake(), "orders", timeout=0):
        busy = shop.loader("state", "rebuild")
    assert busy.code == 1
    assert [e["table"] for e in busy.events if e["event"] == "rebuilt"] == ["shop.items"]
    assert busy.errors[0].startswith("table shop.orders: a run is syncing this table.")


def test_a_wrong_state_is_replaced_by_that_of_the_newest_commit(
    shop: Project, spark: SparkSession
) -> None:
    right = shop.state("shop.orders")
    skipping = {**right, "cursor": "999"}
    for version, value in ((4, str(skipping).replace("'", '"')), (5, "not ours")):
        spark.sql(
            f"insert into {shop.schema}._cq_state values "
            f"('shop.orders', '{value}', {version}, now())"
        )
        made = shop.loader("state", "rebuild", "-s", "shop.orders")
        assert made.code == 0, made.text
        if version == 4:
            assert made.events[0]["states_added"] == 1
            assert shop.state("shop.orders") == right
            spark.sql(f"delete from {shop.schema}._cq_state where version = 5")
    assert shop.state("shop.orders") == right


def test_expired_commits_are_rebuilt_from_their_rows(
    shop: Project, spark: SparkSession, tmp_path: Path
) -> None:
    before = _syncs(shop)
    handle = shop.lake().handle("orders")
    handle.expireSnapshots().retainLast(1).expireOlderThan(
        handle.currentSnapshot().timestampMillis() + 1
    ).commit()
    spark.sql(f"drop table {shop.schema}._cq_state")
    spark.sql(f"drop table {shop.schema}._cq_syncs")
    assert shop.loader("state", "rebuild").code == 0
    reported = "table_name, batch, generation, mode, rows_appended"
    assert shop.rows(
        f"select {reported} from raw._cq_syncs where table_name = 'orders' order by batch"
    ) == [
        ("orders", 1, 1, "incremental", 10),
        ("orders", 2, 1, "incremental", 1),
        ("orders", 3, 2, "full_refresh", 11),
    ]
    assert _syncs(shop)[-1] == before[-1]  # the newest comes from its commit
    assert [version for key, version, _ in _states(shop) if key == "shop.orders"] == [1]
    _assert_dbt_tests_pass(shop, spark, tmp_path / "dbt")
    assert shop.run().table("shop.orders")["status"] == "nothing new"


def test_an_expired_repair_is_not_taken_for_a_full_refresh(
    shop: Project, database: Database
) -> None:
    """`delete_stale` hides rows from before a full refresh, but not rows from before a repair."""
    database.execute("update orders set version = 1 where id = 3")
    repaired = shop.loader("reconcile", "--repair", "-s", "shop.orders")
    assert repaired.code == 0, repaired.text
    database.execute("insert into orders values (12, 'new', 12)")
    shop.run()
    generations = "select batch, max(generation) from raw._cq_syncs where table_name = 'orders'"
    assert shop.rows(f"{generations} and batch > 3 group by 1 order by 1")[0] == (4, 3)
    handle = shop.lake().handle("orders")
    handle.expireSnapshots().retainLast(1).expireOlderThan(
        handle.currentSnapshot().timestampMillis() + 1
    ).commit()
    modes = (
        "select batch, mode from raw._cq_syncs where table_name = 'orders' and batch > 0 order by 1"
    )
    before = shop.rows(modes)
    shop.spark.sql(f"drop table {shop.schema}._cq_syncs")
    assert shop.loader("state", "rebuild").code == 0
    assert [mode for _, mode in shop.rows(modes)] == [
        "incremental",
        "incremental",
        "full_refresh",
        "incremental",
        "incremental",
    ]
    assert [mode == "full_refresh" for _, mode in before] == [False, False, True, False, False]


def test_if_the_newest_commit_has_expired_all_rows_are_read_again(
    shop: Project, spark: SparkSession
) -> None:
    lake = shop.lake()
    name = lake.name("orders")
    # as compaction leaves it: the rows exist, their commits do not
    spark.sql(f"alter table {name} set tblproperties ('commit.retry.num-retries' = '3')")
    spark.sql(f"insert overwrite {name} select * from {name}")
    handle = lake.handle("orders")
    handle.expireSnapshots().retainLast(1).expireOlderThan(
        handle.currentSnapshot().timestampMillis() + 1
    ).commit()
    spark.sql(f"drop table {shop.schema}._cq_state")
    made = shop.loader("state", "rebuild", "-s", "shop.orders")
    assert made.code == 0, made.text
    assert any("the commit of batch 3 has expired" in text for text in made.warnings)
    assert shop.state("shop.orders") == {
        "batch": 3,
        "cursor": None,
        "cursor_field": None,
        "cursor_type": None,
        "generation": 2,
    }
    ran = shop.run().table("shop.orders")
    assert (ran["status"], ran["redelivered"]) == ("nothing new", 11)
    assert shop.state("shop.orders")["cursor"] == "11"
    # from now on, the state has the cursor
    again = shop.loader("state", "rebuild", "-s", "shop.orders")
    assert (again.events[0]["states_added"], again.warnings) == (0, [])


def test_states_are_rebuilt_in_another_backend(shop: Project) -> None:
    before = [state for state in _states(shop) if state[0] == "shop.orders"]
    shop.sources[0] |= {"backend": "local", "backend_spec": {"path": "cursors"}}
    shop.write()
    assert shop.loader("state", "list").events == []
    assert shop.loader("state", "rebuild").code == 0
    exported = shop.loader("state", "export")
    lines = [event for event in exported.text.splitlines() if event.startswith("{")]
    assert len(lines) == 4
    file = next((shop.folder / "cursors").glob("shop.items-*.json"))
    assert file.read_text("utf-8").count('"version"') == 1
    assert shop.run().table("shop.orders")["status"] == "nothing new"
    kept = shop.loader("state", "show", "shop.orders").events
    found = [("shop.orders", e["version"], e["value"]) for e in reversed(kept)]
    assert found[: len(before)] == before
    assert _without_marks(found) == _without_marks(before)
