"""A loader project that is also a dbt project."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.sync.project import Project


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Project:
    """A loader.yml without sources; its raw tables are in the test's own namespace."""
    return Project(tmp_path, spark, f"raw_{uuid.uuid4().hex[:8]}")


@pytest.fixture
def dbt(project: Project) -> DbtProject:
    """The dbt project in the same folder, which installs the package."""
    schema = project.schema.replace("raw_", "analytics_")
    return DbtProject(project.spark, project.folder, schema=schema, raw_schema=project.schema)
