"""A run needs few connections to a JDBC catalog's database, and replaces closed ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from loader.spark.error_translation import translate_error
from loader.spark.session import sibling
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.crash import shop
from tests.crash.test_lease import _shared_lake
from tests.services import Database, Postgres
from tests.sync.project import ROOT, Project

TABLES = shop.names(8)
RETRIED = "retryable_status_codes"
OTHERS = "datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture
def catalog(postgres: Postgres) -> Iterator[Database]:
    """The database of the catalog."""
    with postgres.database() as database:
        yield database


@pytest.fixture
def pipeline(
    spark: SparkSession, postgres_database: Database, catalog: Database, tmp_path: Path
) -> Pipeline:
    """The pipeline of a project on this catalog, as `run --every` keeps it."""
    shop.create(postgres_database, TABLES)
    session = sibling(_shared_lake(spark, catalog, tmp_path).spark)
    profile = yaml.safe_load((ROOT / "profiles" / "profiles.yml").read_text())
    shipped = profile["strandline"]["outputs"]["cluster"]["server_side_parameters"]
    codes = shipped[f"spark.sql.catalog.lake.{RETRIED}"]
    session.conf.set(f"spark.sql.catalog.shared.{RETRIED}", codes)
    project = Project(tmp_path, session, "raw")
    shop.configure(project, postgres_database, TABLES)
    return Pipeline(load_spec(tmp_path / "loader.yml"), session)


def _run_round(pipeline: Pipeline) -> None:
    """Runs a round in which each table has new rows."""
    outcomes = list(run_tables(pipeline, Watch(), concurrency=2))
    assert [outcome.error for outcome in outcomes] == [None] * len(TABLES)
    assert all(outcome.record and outcome.record.rows_appended for outcome in outcomes)


def test_the_number_of_connections_does_not_grow_with_tables_or_rounds(
    pipeline: Pipeline, postgres_database: Database, catalog: Database
) -> None:
    for number in range(3):
        if number:
            postgres_database.execute(*(f"update {table} set at = now()" for table in TABLES))
        _run_round(pipeline)
    [(count,)] = catalog.query(f"select count(*) from pg_stat_activity where {OTHERS}")
    # One session of the process, one for the locks, one for each of the two threads, each with one
    # or two connections. The test's own lake has one, too.
    assert 0 < count <= 9


def test_terminated_connections_are_replaced(
    pipeline: Pipeline, postgres_database: Database, catalog: Database
) -> None:
    _run_round(pipeline)
    catalog.query(f"select pg_terminate_backend(pid) from pg_stat_activity where {OTHERS}")
    postgres_database.execute(*(f"update {table} set at = now()" for table in TABLES))
    _run_round(pipeline)


@pytest.mark.parametrize(
    ("type_", "uri", "what", "remedy"),
    [
        ("jbdc", "jdbc:postgresql://127.0.0.1/x", "Unknown catalog type: jbdc", "rest, jdbc, hive"),
        (
            "jdbc",
            "jdbc:postgresq://127.0.0.1/x",
            "the catalog's database: there is no JDBC driver",
            "STRANDLINE_CATALOG_URI",
        ),
    ],
)
def test_a_typo_in_the_settings_is_named(
    spark: SparkSession, tmp_path: Path, type_: str, uri: str, what: str, remedy: str
) -> None:
    session, setting = sibling(spark), "spark.sql.catalog.typo"
    session.conf.set(setting, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in {"type": type_, "uri": uri, "warehouse": str(tmp_path)}.items():
        session.conf.set(f"{setting}.{name}", value)
    with pytest.raises((Py4JJavaError, PySparkException)) as raised:
        session.sql("show namespaces in typo")
    error = translate_error(raised.value, "table shop.orders")
    assert error.what.startswith(what)
    assert remedy in error.remedy
