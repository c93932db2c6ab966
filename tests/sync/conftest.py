"""The `project` fixture: an empty loader project for each test."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sync.project import Project


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession, warehouse: Path) -> Iterator[Project]:
    """An empty project whose raw tables are in a namespace that no other test uses.

    Its tables are deleted afterwards, because some commands read all tables of the lake.
    """
    name = uuid.uuid4().hex[:8]
    yield Project(tmp_path, spark, f"raw_{name}")
    for folder in warehouse.glob(f"*_{name}"):
        shutil.rmtree(folder, ignore_errors=True)
