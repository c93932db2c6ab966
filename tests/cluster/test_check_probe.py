"""`loader check` finds what only an executor can find, and `loader run` says the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.spark.jars import find_jar
from loader.spark.spark_version import find_spark
from tests.cluster.commands import run_loader
from tests.cluster.project import Place, create_project, jdbc_place
from tests.crash import shop
from tests.services import Database
from tests.services.seaweed import Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.sync.project import Project

_UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]


@pytest.fixture(scope="module")
def place(cluster: SparkCluster, object_store: Seaweed, catalog_database: Database) -> Place:
    return jdbc_place(cluster, object_store, catalog_database)


@pytest.fixture
def project(
    place: Place, tmp_path: Path, spark: SparkSession, postgres_database: Database
) -> Project:
    """A project with a table that nobody has loaded."""
    project = create_project(place, tmp_path, spark, f"raw_{uuid.uuid4().hex[:8]}")
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    return project


def test_a_healthy_cluster(place: Place, project: Project) -> None:
    checked = run_loader(place, project, "check")
    assert (checked.code, checked.errors) == (0, []), checked.text
    assert [e["table"] for e in checked.events if e["event"] == "check"] == ["shop.orders"]


def test_executors_without_iceberg(place: Place, project: Project) -> None:
    """The user has given the jar to the driver only."""
    iceberg = find_jar(find_spark().line.iceberg)
    driver = {"PYSPARK_SUBMIT_ARGS": f"--driver-class-path {iceberg} pyspark-shell"}
    checked = run_loader(place, project, "check", **driver)
    ran = run_loader(place, project, "run", **driver)
    assert (checked.code, ran.code) == (1, 1)
    for output in (checked, ran):
        [error] = output.errors
        assert f"the executors lack {iceberg.name} (" in error, output.text
        assert "the `jars` folder of each worker's Spark" in error
    # The table was checked nevertheless, without the cluster.
    assert [e["table"] for e in checked.events if e["event"] == "check"] == ["shop.orders"]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkCluster, Path]]:
    """A cluster whose workers see an empty folder where this machine has the warehouse."""
    folder = tmp_path_factory.mktemp("lake")
    probe = [*_UNSHARE, "mount", "-t", "tmpfs", "none", str(folder)]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    cluster = _Apart(folder)
    yield cluster, folder
    cluster.remove()


class _Apart(SparkCluster):
    def __init__(self, folder: Path) -> None:
        script = f'mount -t tmpfs none "{folder}" && exec "$@"'
        self.prefix = [*_UNSHARE, "sh", "-c", script, "sh"]
        super().__init__({})

    def _start(self, name: str, main: str, *arguments: str, **more: Any) -> Any:
        own, self._command = self._command, [*self.prefix, *self._command]
        try:
            return super()._start(name, main, *arguments, **more)
        finally:
            self._command = own


def test_a_warehouse_that_machines_do_not_share(
    apart: tuple[SparkCluster, Path], place: Place, project: Project
) -> None:
    cluster, folder = apart
    own = {
        "STRANDLINE_SPARK_MASTER": cluster.url,
        "STRANDLINE_CATALOG_TYPE": "hadoop",
        "STRANDLINE_WAREHOUSE": f"file:{folder}",
    }
    checked = run_loader(place, project, "check", **own)
    assert checked.code == 1
    [error] = checked.errors
    assert "an executor has written a file below file:" in error, checked.text
    assert "this machine does not find the file" in error


def test_an_object_store_that_does_not_answer(place: Place, project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        own = {
            "STRANDLINE_S3_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "STRANDLINE_S3_TIMEOUT_MS": "1000",
            "STRANDLINE_S3_RETRIES": "0",
        }
        began = time.monotonic()
        checked = run_loader(place, project, "check", **own)
    assert checked.code == 1
    assert time.monotonic() - began < 60
    assert "the object store does not answer: Read timed out" in checked.errors[0], checked.text
    assert checked.errors[0].endswith(f"at {own['STRANDLINE_S3_ENDPOINT']}")
