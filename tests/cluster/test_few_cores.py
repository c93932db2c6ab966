"""Commands beside a loop that holds all cores of the cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.cluster.commands import run_loader, start_loader
from tests.cluster.project import Place, create_project, jdbc_place
from tests.crash import shop
from tests.services import Database, Postgres
from tests.services.seaweed import Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.sync.project import Project

_SHORT_DEADLINE = "from loader.sync import destination_check as d; d.DEADLINE = 20.0; "


@pytest.fixture(scope="module")
def place(cluster: SparkCluster, object_store: Seaweed, catalog_database: Database) -> Place:
    return jdbc_place(cluster, object_store, catalog_database)


@pytest.fixture(scope="module")
def project(
    place: Place, spark: SparkSession, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """A project whose table a loop has loaded."""
    folder = tmp_path_factory.mktemp("few")
    project = create_project(place, folder, spark, f"raw_{uuid.uuid4().hex[:8]}")
    with postgres.database() as database:
        shop.create(database, ["orders"])
        shop.configure(project, database, ["orders"])
        yield project


@pytest.fixture
def loop(place: Place, project: Project) -> Iterator[subprocess.Popen[str]]:
    """A loop that holds all eight cores of the cluster, after its first round."""
    loop = start_loader(place, project, "run", "--every", "1h", STRANDLINE_CORES_MAX="8")
    assert loop.stdout is not None
    deadline = time.monotonic() + 120
    while place.cluster.state()["coresused"] < place.cluster.state()["cores"]:
        assert time.monotonic() < deadline
        assert loop.poll() is None, loop.stdout.read()
        time.sleep(0.5)
    for line in loop.stdout:
        if '"event": "table"' in line or '"event": "round"' in line:
            break
    yield loop
    loop.kill()
    loop.wait()


def test_commands_beside_a_loop(
    place: Place, project: Project, loop: subprocess.Popen[str]
) -> None:
    """Those that read a few rows need no executor; the others say what they wait for."""
    began = time.monotonic()
    status = run_loader(place, project, "status")
    listed = run_loader(place, project, "state", "list")
    assert (status.code, listed.code) == (0, 0), status.text + listed.text
    assert [e["last_attempt"] for e in status.events if e["event"] == "status"] == ["synced"]
    assert time.monotonic() - began < 60

    checked = run_loader(place, project, "check", prefix=_SHORT_DEADLINE)
    assert checked.code == 1
    [error] = checked.errors
    assert "no executor has written a row within 20 seconds: the cluster has no free cores" in error
    assert [w for w in checked.warnings if w.startswith("the cluster has no free cores: spark://")]
    assert [e["table"] for e in checked.events if e["event"] == "check"] == ["shop.orders"]

    waiting = start_loader(place, project, "run", "--full-refresh", STRANDLINE_CORES_MAX="2")
    assert waiting.stdout is not None
    warning = next(line for line in waiting.stdout if "the cluster has no free cores" in line)
    assert json.loads(warning)["event"] == "warning"
    loop.send_signal(signal.SIGTERM)
    output, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output
