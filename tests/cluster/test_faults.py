"""A worker, the driver, the catalog or the object store fails in the middle of a sync."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.cli.signals import GRACE
from tests.cluster.commands import ONE_CORE
from tests.cluster.project import Machine, Place, create_project
from tests.cluster.slow_sync import SlowSync
from tests.crash import shop
from tests.services import Database, Postgres
from tests.services.pyiceberg_catalog import PyIcebergCatalog
from tests.services.seaweed import Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.sync.project import Project


def test_a_worker_that_is_killed(
    place: Place,
    cluster: SparkCluster,
    machine: Machine,
    lakehouse: Project,
    postgres_database: Database,
) -> None:
    """The other worker reads its rows again."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    lost = sync.start(machine)
    cluster.kill_worker(lost)
    sync.end(machine)
    cluster.replace_worker(lost)


def test_a_driver_that_is_killed(
    place: Place,
    machine: Machine,
    other: Machine,
    lakehouse: Project,
    postgres_database: Database,
) -> None:
    """The next run on the same machine takes over the table at once."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    sync.start(other)
    other.kill()
    other.start_again()
    other.start(lakehouse, "run")
    ran = sync.end(other)
    assert any("whose process has exited" in warning for warning in ran.warnings), ran.text


def test_a_catalog_that_is_away_for_20_seconds(
    place: Place,
    machine: Machine,
    lakehouse: Project,
    postgres_database: Database,
    catalog: Postgres | PyIcebergCatalog,
) -> None:
    """The run waits for the catalog. The object store is available."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    sync.start(machine)
    catalog.stop()
    time.sleep(20)
    catalog.start()
    ran = sync.end(machine)
    lost = "the connection to the catalog was lost: shop.slow_orders. Syncing again, up to 3 times"
    assert lost in ran.warnings, ran.warnings


def test_an_object_store_that_is_away_for_10_seconds(
    place: Place,
    machine: Machine,
    lakehouse: Project,
    postgres_database: Database,
    object_store: Seaweed,
) -> None:
    """The run waits for the object store."""
    sync = SlowSync(place, machine, lakehouse, postgres_database)
    sync.start(machine)
    object_store.stop()
    time.sleep(10)
    object_store.start()
    sync.end(machine)


@pytest.mark.parametrize("place", ["jdbc"], indirect=True)
def test_one_signal_ends_a_run_whose_object_store_does_not_answer(
    place: Place, postgres_database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """The store accepts connections, but neither reads nor writes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        variables = {**place.variables, **ONE_CORE, "STRANDLINE_S3_ENDPOINT": endpoint}
        lost = replace(place, variables=variables)
        lakehouse = create_project(lost, tmp_path, spark, f"raw_{tmp_path.name}")
        shop.create(postgres_database, ["orders"])
        shop.configure(lakehouse, postgres_database, ["orders"])
        run = subprocess.Popen(
            [sys.executable, "-m", "loader", "run"], cwd=tmp_path, env=lost.environment()
        )
        try:
            silent.settimeout(60)
            connection, _ = silent.accept()
            time.sleep(1)
            run.send_signal(signal.SIGTERM)
            run.wait(GRACE + 10)
        finally:
            run.kill()
            run.wait()
        connection.close()
