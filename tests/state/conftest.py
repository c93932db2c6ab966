"""The servers that keep state, and a project whose cursors live elsewhere than its tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.services import Redis, ServerMissing
from tests.sync.project import Project


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The Redis server."""
    try:
        server = Redis()
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.remove()


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Project:
    """An empty project; its raw tables lie in a namespace that no other test has."""
    return Project(tmp_path, spark, f"raw_{uuid.uuid4().hex[:8]}")
