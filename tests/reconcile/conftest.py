"""Databases whose rows change without their cursors, for the tests of `loader reconcile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.crash.conftest import workers as workers
from tests.reconcile.shop import DerbyShop, ServerShop, Shop
from tests.services import Database
from tests.sync.conftest import project as project

Opened = Callable[[str], Shop]


@pytest.fixture
def derby(spark: SparkSession, tmp_path: Path) -> Iterator[DerbyShop]:
    """A new Derby database, in Spark's JVM."""
    manager: Any = spark._jvm.java.sql.DriverManager  # type: ignore[union-attr]
    url = f"jdbc:derby:{tmp_path / 'shop'}"
    connection = manager.getConnection(f"{url};create=true")
    yield DerbyShop(url, connection)
    connection.close()
    with pytest.raises(Py4JJavaError, match="shutdown"):  # that is how Derby reports success
        manager.getConnection(f"{url};shutdown=true")


@pytest.fixture(params=["postgresql", "mariadb", "derby"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """A database of each kind."""
    kind: str = request.param
    if kind == "derby":
        derby: DerbyShop = request.getfixturevalue("derby")
        return derby
    fixture = {"postgresql": "postgres_database", "mariadb": "mariadb_database"}[kind]
    database: Database = request.getfixturevalue(fixture)
    return ServerShop(database)
