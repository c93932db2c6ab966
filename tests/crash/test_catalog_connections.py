"""How many connections a run has to the database of a JDBC catalog."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.crash import shop
from tests.crash.test_lease import _shared_lake
from tests.services import Database, Postgres
from tests.sync.project import Project


def test_their_number_grows_neither_with_tables_nor_with_rounds(
    spark: SparkSession, postgres: Postgres, postgres_database: Database, tmp_path: Path
) -> None:
    tables = shop.names(8)
    shop.create(postgres_database, tables)
    with postgres.database() as catalog:
        project = Project(tmp_path, _shared_lake(spark, catalog, tmp_path).spark, "raw")
        shop.configure(project, postgres_database, tables)
        pipeline = Pipeline(load_spec(tmp_path / "loader.yml"), project.spark)
        for number in range(3):  # the rounds of a loop
            if number:
                postgres_database.execute(*(f"update {table} set at = now()" for table in tables))
            outcomes = list(run_tables(pipeline, Watch(), concurrency=2))
            assert [outcome.error for outcome in outcomes] == [None] * len(tables)
            assert all(outcome.record and outcome.record.rows_appended for outcome in outcomes)
        own = "datname = current_database() and pid <> pg_backend_pid()"
        [(count,)] = catalog.query(f"select count(*) from pg_stat_activity where {own}")
    # One session of the process, one for the locks, one for each of the two threads, each with one
    # or two connections. The test's own lake has one, too.
    assert 0 < count <= 9
