"""One Spark session and one dbt project for all tests of the dbt package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

SETTINGS = {
    "spark.sql.extensions": ("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"),
    "spark.sql.defaultCatalog": "lake",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that dbt finds too: method ``session`` takes the one that runs."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = SparkSession.builder.master("local[2]").appName("strandline tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.catalog.lake.warehouse", str(warehouse))
    # where Spark's own catalog would keep tables: it makes the folder even when it keeps none
    builder = builder.config("spark.sql.warehouse.dir", str(warehouse / "spark"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def raw(spark: SparkSession, request: pytest.FixtureRequest) -> RawSchema:
    """A raw schema of the module's own, with an empty state table and ledger."""
    # under importlib mode a module is named by its path: its last part is enough
    return RawSchema(spark, f"raw_{request.module.__name__.split('.test_')[-1]}")


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    """A project of the module's own that installs the package by ``packages: - local:``."""
    name = raw.schema.removeprefix("raw_")
    folder: Path = tmp_path_factory.mktemp(name)
    return DbtProject(spark, folder, schema=f"analytics_{name}", raw_schema=raw.schema)
