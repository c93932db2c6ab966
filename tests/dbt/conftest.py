"""Fixtures: a raw schema and a dbt project for each module, on the suite's Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import outcomes

__all__ = ["outcomes", "project", "raw"]


@pytest.fixture(scope="module")
def raw(spark: SparkSession, request: pytest.FixtureRequest) -> RawSchema:
    """A raw schema for one module, with an empty state table and ledger."""
    # in importlib mode a module's name is its path; only the last part is used
    return RawSchema(spark, f"raw_{request.module.__name__.split('.test_')[-1]}")


@pytest.fixture(scope="module")
def project(
    spark: SparkSession,
    raw: RawSchema,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> DbtProject:
    """A project for one module that installs the package by ``packages: - local:``.

    The module may have `PROJECT_SETTINGS`, more entries for its ``dbt_project.yml``.
    """
    name = raw.schema.removeprefix("raw_")
    folder: Path = tmp_path_factory.mktemp(name)
    settings = getattr(request.module, "PROJECT_SETTINGS", None)
    return DbtProject(
        spark, folder, schema=f"analytics_{name}", raw_schema=raw.schema, settings=settings
    )
