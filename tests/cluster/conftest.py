"""A cluster of two workers, an object store, and two catalogs, for all tests of this folder.

`make test` does not collect this folder; `make test-cluster` runs it.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.lake import FilledLake, fill
from tests.cluster.project import (
    PASSWORDS,
    Machine,
    Place,
    create_dbt_project,
    create_project,
    jdbc_place,
    rest_place,
    serve_catalog,
)
from tests.services import Database, Postgres, ServerMissing
from tests.services.pyiceberg_catalog import PyIcebergCatalog
from tests.services.seaweed import ACCOUNT, Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.sync.project import Project

# The JVM of the tests reads the lake, too. `make test-cluster` fetches the jar for S3.
os.environ.update(ACCOUNT)
os.environ["PGPASSFILE"] = str(PASSWORDS)
os.environ["STRANDLINE_JARS"] = str(Path(sys.prefix) / "cluster-jars")


@pytest.fixture(scope="session")
def object_store() -> Iterator[Seaweed]:
    """The object store."""
    try:
        store = Seaweed()
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)
    yield store
    store.remove()


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """The master and its workers, whose environment has the account of the object store."""
    cluster = SparkCluster(ACCOUNT)
    yield cluster
    cluster.remove()


@pytest.fixture(scope="session")
def catalog_server() -> Iterator[Postgres]:
    """A PostgreSQL server that contains only the catalog, so that a test can stop it."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def catalog_database(catalog_server: Postgres) -> Iterator[Database]:
    """The database of the JDBC catalog."""
    with catalog_server.database("catalog") as database:
        yield database


@pytest.fixture(scope="session")
def rest_catalog(
    object_store: Seaweed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PyIcebergCatalog]:
    """A REST catalog in the process of the tests."""
    catalog = serve_catalog(object_store, tmp_path_factory.mktemp("rest"))
    yield catalog
    catalog.stop()


@pytest.fixture(scope="session", params=["jdbc", "rest"])
def place(request: pytest.FixtureRequest, cluster: SparkCluster, object_store: Seaweed) -> Place:
    """The cluster with each of the two catalogs."""
    if request.param == "jdbc":
        return jdbc_place(cluster, object_store, request.getfixturevalue("catalog_database"))
    return rest_place(cluster, object_store, request.getfixturevalue("rest_catalog"))


@pytest.fixture
def catalog(request: pytest.FixtureRequest, place: Place) -> Postgres | PyIcebergCatalog:
    """The server of the place's catalog, which a test may stop and start again."""
    kind = place.variables["STRANDLINE_CATALOG_TYPE"]
    name = {"jdbc": "catalog_server", "rest": "rest_catalog"}[kind]
    server: Postgres | PyIcebergCatalog = request.getfixturevalue(name)
    return server


@pytest.fixture(scope="session")
def machine(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A loader process on the cluster, for all tests that leave it alive."""
    machine = Machine(place, tmp_path_factory.mktemp("machine"), "etl-1")
    yield machine
    machine.kill()


@pytest.fixture(scope="session")
def other(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A loader process on another machine. A test that kills it must start it again."""
    machine = Machine(place, tmp_path_factory.mktemp("machine"), "etl-2")
    yield machine
    machine.kill()


@pytest.fixture(scope="session")
def filled(
    place: Place,
    machine: Machine,
    spark: SparkSession,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FilledLake]:
    """A lake that was filled by commands on the cluster."""
    folder = tmp_path_factory.mktemp("filled")
    project = create_project(place, folder, spark, FilledLake.SCHEMA)
    with postgres.database() as database:
        yield fill(project, database, lambda *command: machine.run(project, *command))


@pytest.fixture(scope="session")
def embedded(
    warehouse: Path,
    spark: SparkSession,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FilledLake]:
    """A lake in a folder that was filled by a single process."""
    folder = tmp_path_factory.mktemp("embedded")
    project = Project(folder, spark, FilledLake.SCHEMA)
    create_dbt_project(folder, project.schema)
    with postgres.database() as database:
        yield fill(project, database, project.loader)


@pytest.fixture
def lakehouse(place: Place, tmp_path: Path, spark: SparkSession) -> Project:
    """An empty project on the cluster; its raw tables are in a namespace of its own."""
    return create_project(place, tmp_path / "lakehouse", spark, f"raw_{uuid.uuid4().hex[:8]}")
