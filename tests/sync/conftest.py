"""A project for each test."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sync.project import Project


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Project:
    """An empty project; its raw tables lie in a namespace that no other test has."""
    return Project(tmp_path, spark, f"raw_{uuid.uuid4().hex[:8]}")
