"""dbt builds through a Thrift server that was started with docs/dbt/thrift.md."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from loader.spark.class_path import list_own_jars
from loader.spark.spark_version import find_spark
from tests.cluster.lake import ORDERS, PURCHASES, FilledLake
from tests.cluster.project import Place
from tests.cluster.slow_sync import wait_for
from tests.services.server import free_port
from tests.setup.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "dbt" / "thrift.md").read_text()
SCHEMA = "through_thrift"
pytestmark = pytest.mark.parametrize("place", ["jdbc"], indirect=True)


def _environment(place: Place) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    java = str(place.cluster.folder / "java")
    return {**place.environment(), "PATH": programs, "JAVA_HOME": java}


def _properties(place: Place) -> str:
    """Returns the page's settings with values for the test cluster."""
    jars = [str(jar) for jar in list_own_jars(find_spark(), {})]
    values = {
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.sql.catalog.lake.uri": place.variables["STRANDLINE_CATALOG_URI"],
        "spark.sql.catalog.lake.jdbc.user": place.variables["STRANDLINE_CATALOG_USER"],
        "spark.sql.catalog.lake.warehouse": place.variables["STRANDLINE_WAREHOUSE"],
        "spark.sql.catalog.lake.client.region": place.variables["AWS_REGION"],
        "spark.sql.catalog.lake.s3.endpoint": place.variables["STRANDLINE_S3_ENDPOINT"],
    }
    [properties] = blocks(PAGE, "properties")
    for name, value in values.items():
        properties, count = re.subn(rf"(?m)^{re.escape(name)} .*$", f"{name} {value}", properties)
        assert count == 1, name
    return properties + "spark.sql.shuffle.partitions 1\n"  # like the other JVMs of the suite


@pytest.fixture
def port(place: Place, filled: FilledLake, tmp_path: Path) -> Iterator[int]:
    """The port of a server that was started with the page's commands."""
    (tmp_path / "thrift.properties").write_text(_properties(place))
    [script] = [block for block in blocks(PAGE, "bash") if "spark-submit" in block]
    script, count = re.subn(r"spark://\S+", place.cluster.url, script)
    assert count == 1
    commands = re.sub(r"(?m)^export .*\n", "set -e\n", script)  # `_environment` sets them
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["bash", "-c", commands],
            cwd=tmp_path,
            env={
                **_environment(place),
                "HIVE_SERVER2_THRIFT_PORT": str(port),
                "HIVE_SERVER2_THRIFT_BIND_HOST": "127.0.0.1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for("the server did not start", lambda: server.poll() is not None or _listens(port))
        assert server.poll() is None, log.read_text()[-5000:]
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_dbt_builds_through_the_server(place: Place, filled: FilledLake, port: int) -> None:
    """The tables equal those of the loader's own build."""
    project = filled.project
    [text] = blocks(PAGE, "yaml")
    [target] = yaml.safe_load(text).values()
    path = project.folder / "profiles.yml"
    profiles = yaml.safe_load(path.read_text())
    own = {"host": "127.0.0.1", "port": port, "schema": SCHEMA}
    profiles["strandline"]["outputs"]["thrift"] = {**target, **own}
    path.write_text(yaml.safe_dump(profiles))
    command = ["dbt", "build", "--target", "thrift", "--exclude", "test_name:no_cursor_ties"]
    done = subprocess.run(
        command,
        cwd=project.folder,
        env=_environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for table in (f"shop_{ORDERS}_latest", f"shop_{PURCHASES}_latest", f"shop_{PURCHASES}_history"):
        built = project.spark.table(f"{SCHEMA}.{table}")
        wanted = project.spark.table(f"analytics.{table}").select(*built.columns)
        assert built.count() == wanted.count() > 0
        assert built.exceptAll(wanted).isEmpty(), table
