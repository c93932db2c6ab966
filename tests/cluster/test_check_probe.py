"""`loader check` detects problems that only executors have; `loader run` reports the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from loader.spark.jars import find_jar
from loader.spark.spark_version import find_spark
from tests.cluster.commands import ONE_CORE, run_loader
from tests.cluster.project import Machine, Place
from tests.crash import shop
from tests.services import Database
from tests.sync.project import Project

pytestmark = pytest.mark.parametrize("place", ["jdbc"], indirect=True)
_UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]


@pytest.fixture
def project(lakehouse: Project, postgres_database: Database) -> Project:
    """A project with a table that has not been loaded."""
    shop.create(postgres_database, ["orders"])
    shop.configure(lakehouse, postgres_database, ["orders"])
    return lakehouse


def test_executors_without_iceberg(place: Place, project: Project, tmp_path: Path) -> None:
    """The user has given the jar to the driver only."""
    iceberg = find_jar(find_spark().line.iceberg)
    driver = {**ONE_CORE, "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {iceberg} pyspark-shell"}
    machine = Machine(place, tmp_path, "etl-1", **driver)
    ran, checked = (machine.run(project, command) for command in ("run", "check"))
    machine.kill()
    assert (checked.code, ran.code) == (1, 1)
    for output in (checked, ran):
        [error] = output.errors
        assert f"the executors lack {iceberg.name} (" in error, output.text
        assert "the `jars` folder of each worker's Spark" in error
    # The table was checked nevertheless, without the cluster.
    assert [e["table"] for e in checked.events if e["event"] == "check"] == ["shop.orders"]


def test_a_warehouse_that_machines_do_not_share(
    place: Place, project: Project, tmp_path: Path
) -> None:
    """The warehouse's path is a different folder for the loader than for the workers."""
    folder = tmp_path / "lake"
    folder.mkdir()
    within = [*_UNSHARE, "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    probe = [*within, "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    hadoop = {"STRANDLINE_CATALOG_TYPE": "hadoop", "STRANDLINE_WAREHOUSE": f"file:{folder}"}
    own = ONE_CORE | hadoop
    checked = run_loader(place, project, "check", within=within, **own)
    assert checked.code == 1
    [error] = checked.errors
    assert "an executor wrote a file below file:" in error, checked.text
    assert "this machine cannot find the file" in error


def test_an_object_store_that_does_not_answer(place: Place, project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, never answers
        own = {
            **ONE_CORE,
            "STRANDLINE_S3_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "STRANDLINE_S3_TIMEOUT_MS": "1000",
            "STRANDLINE_S3_RETRIES": "0",
        }
        began = time.monotonic()
        checked = run_loader(place, project, "check", **own)
    assert checked.code == 1
    assert time.monotonic() - began < 60
    assert "the object store does not respond: Read timed out" in checked.errors[0], checked.text
    assert checked.errors[0].endswith(f"at {own['STRANDLINE_S3_ENDPOINT']}")
