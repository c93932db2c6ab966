"""Rounds of `loader run --every` reuse one Pipeline, and still detect changes in the source."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from loader.lake.locks import lock_table
from loader.spark.session import rows_written
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.services import Database
from tests.sync.project import Project


def _sync(pipeline: Pipeline) -> str:
    """Syncs the pipeline's only table; returns the status."""
    [outcome] = run_tables(pipeline, Watch(), (), False, 1)
    assert outcome.record is not None
    return outcome.record.status


def _read_statuses(project: Project) -> list[str]:
    return [
        str(status)
        for (status,) in project.rows("select status from raw._cq_syncs order by started_at")
    ]


def test_idle_syncs_are_recorded_once_a_minute(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int)", "insert into t values (1, 1)"
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    assert [_sync(pipeline) for _ in range(4)] == ["synced", *["nothing new"] * 3]
    assert _read_statuses(project) == ["synced", "nothing new"]

    postgres_database.execute("insert into t values (2, 2)")
    assert [_sync(pipeline) for _ in range(3)] == ["synced", *["nothing new"] * 2]
    assert _read_statuses(project)[2:] == ["synced", "nothing new"]

    with lock_table(project.lake(), "t", timeout=0):
        assert _sync(pipeline) == "locked"
    assert [_sync(pipeline) for _ in range(2)] == ["nothing new"] * 2
    assert _read_statuses(project)[4:] == ["locked", "nothing new"]

    pipeline.idle_since = {table: at - 61 for table, at in pipeline.idle_since.items()}
    assert [_sync(pipeline) for _ in range(2)] == ["nothing new"] * 2
    assert _read_statuses(project)[6:] == ["nothing new"]


def test_columns_that_change_between_rounds_are_detected(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, n numeric(9, 2), d text)",
        "insert into t values (1, 1, 1.5, 'x')",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    assert _sync(pipeline) == "synced"
    for number, change in enumerate(
        (
            "alter table t add column w bigint default 7",
            "alter table t alter column n type numeric(12, 2)",
            "drop table t; create table t (id int primary key, c int, n numeric(12, 2), w bigint, "
            "at timestamptz default now())",
        ),
        start=2,
    ):
        postgres_database.execute(change)
        postgres_database.execute(f"insert into t (id, c, n) values ({number}, {number}, 2.5)")
        assert _sync(pipeline) == "synced"
    assert dict(project.spark.table(f"{project.schema}.t").dtypes).items() >= {
        ("n", "decimal(12,2)"),
        ("w", "bigint"),
        ("at", "timestamp"),
    }


def test_rows_are_counted_while_they_are_appended(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create view slow as select id, id as c, pg_sleep(0.01)::text as s "
        "from generate_series(1, 200) as id"
    )
    options = {"slow": {"cursor_field": "c", "primary_key": "id"}}
    project.jdbc(postgres_database, ["slow"], table_options=options)
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    counted = set()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_sync, pipeline)
        while not running.done():
            counted.add(rows_written(project.spark, "shop.slow"))
            time.sleep(0.05)
    assert running.result() == "synced"
    assert counted - {None}
