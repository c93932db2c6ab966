"""A project on the cluster, and the machines that run its commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from loader.spark import setup
from loader.spark.profile import load_profile
from loader.spark.session import sibling
from tests.crash.worker import EXPIRY
from tests.crash.workers import Worker
from tests.services import Database
from tests.services.pyiceberg_catalog import PyIcebergCatalog
from tests.services.seaweed import ACCOUNT, BUCKET, Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.sync.project import ROOT, Project


@dataclass(frozen=True)
class Place:
    """A cluster, an object store, and a catalog in which the lake is.

    Attributes:
        variables: the variables of the profile's target `cluster`.
    """

    cluster: SparkCluster
    store: Seaweed
    variables: Mapping[str, str]

    def session(self, spark: SparkSession, folder: Path) -> SparkSession:
        """Returns a session of the test process in which the lake's tables can be read."""
        profile = load_profile("strandline", "cluster", folder, str(folder), env=self.environment())
        session = sibling(spark)
        for key, value in profile.conf.items():
            if key.startswith(("spark.sql.catalog.", "spark.sql.defaultCatalog")):
                session.conf.set(key, value)
        return session

    def environment(self) -> dict[str, str]:
        """Returns the variables of a process that runs the loader."""
        return {
            **os.environ,
            **ACCOUNT,
            **self.variables,
            "STRANDLINE_TARGET": "cluster",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


def jdbc_place(cluster: SparkCluster, store: Seaweed, database: Database) -> Place:
    """Returns a place whose catalog is in a PostgreSQL database."""
    account = f"user={database.user}&password={database.password}"
    variables = {
        **_variables(cluster, store),
        "STRANDLINE_CATALOG_TYPE": "jdbc",
        "STRANDLINE_CATALOG_URI": f"{database.url}?{account}",
        "STRANDLINE_WAREHOUSE": f"s3://{BUCKET}/{database.name}",
    }
    return Place(cluster, store, variables)


def serve_catalog(store: Seaweed, folder: Path) -> PyIcebergCatalog:
    """Starts a REST catalog that writes its metadata to the object store.

    The object store's own REST catalog refuses table names such as `_cq_state`.
    """
    properties = {
        "warehouse": f"s3://{BUCKET}/rest",
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": ACCOUNT["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": ACCOUNT["AWS_SECRET_ACCESS_KEY"],
        "s3.region": ACCOUNT["AWS_REGION"],
    }
    return PyIcebergCatalog(folder, properties)


def rest_place(cluster: SparkCluster, store: Seaweed, catalog: PyIcebergCatalog) -> Place:
    """Returns a place with a REST catalog."""
    variables = {
        **_variables(cluster, store),
        "STRANDLINE_CATALOG_TYPE": "rest",
        "STRANDLINE_CATALOG_URI": catalog.url,
        "STRANDLINE_WAREHOUSE": f"s3://{BUCKET}/rest",
    }
    return Place(cluster, store, variables)


def _variables(cluster: SparkCluster, store: Seaweed) -> dict[str, str]:
    return {
        "STRANDLINE_SPARK_MASTER": cluster.url,
        "STRANDLINE_DRIVER_HOST": "127.0.0.1",
        "STRANDLINE_EXECUTOR_MEMORY": "1g",
        "STRANDLINE_SPARK_JARS": str(_create_jar(cluster.folder)),
        "STRANDLINE_S3_ENDPOINT": store.endpoint,
        "STRANDLINE_S3_PATH_STYLE": "true",
    }


def _create_jar(folder: Path) -> Path:
    """Creates an empty jar, as a jar of the user: executors must also get the loader's jars."""
    jar = folder / "users.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return jar


class Machine(Worker):
    """A loader process on a machine of its own: with its own host name and its own lock files.

    Args:
        expiry: how many seconds without a heartbeat this machine waits for another one.
    """

    def __init__(self, place: Place, folder: Path, name: str, expiry: float | None = None) -> None:
        write_profile(folder)
        locks = folder / f"locks-{name}"
        environment = {**place.environment(), "STRANDLINE_LOCKS": str(locks)}
        if expiry is not None:
            environment[EXPIRY] = str(expiry)
        super().__init__(folder, environment, _on_host(name, folder))

    def run(self, project: Project, *arguments: str) -> Any:
        """Runs a command and waits for its end."""
        self.start(project, *arguments)
        return self.ended()

    def suspend(self) -> None:
        """Stops the process and its JVM, as a machine that sleeps."""
        for pid in (self.process.pid, self.jvm):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continues after :meth:`suspend`."""
        for pid in (self.jvm, self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process and its JVM."""
        if self.jvm:
            os.kill(self.jvm, signal.SIGKILL)
        super().kill()


_UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
_NAMESPACES = (*_UNSHARE, "--uts", "--mount", "sh", "-c")
_RENAME = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def _on_host(name: str, folder: Path) -> list[str]:
    """Returns the beginning of a command that runs on a host of this name, if the user may do so.

    Without a host name of its own, a machine still differs by its folder of lock files.
    """
    hosts = folder / f"hosts-{name}"
    hosts.write_text(f"127.0.0.1 localhost {name}\n")
    command = [*_NAMESPACES, _RENAME, "sh", name, str(hosts)]
    can_rename = shutil.which("unshare") and subprocess.run([*command, "true"]).returncode == 0
    return command if can_rename else []


def write_profile(folder: Path) -> None:
    """Copies the shipped profile into a folder."""
    shutil.copy(ROOT / "profiles" / "profiles.yml", folder / "profiles.yml")


def create_dbt_project(folder: Path, schema: str) -> None:
    """Creates what `loader init` creates, for raw tables in this schema."""
    folder.mkdir(exist_ok=True)
    setup.create(folder, lambda line: None)
    path = folder / "dbt_project.yml"
    text = path.read_text()
    assert "strandline__raw_schema: raw\n" in text
    path.write_text(text.replace("raw_schema: raw\n", f"raw_schema: {schema}\n"))


def create_project(place: Place, folder: Path, spark: SparkSession, schema: str) -> Project:
    """Creates a project with a dbt project, whose raw tables are in the place's lake."""
    create_dbt_project(folder, schema)
    write_profile(folder)
    own = {"profiles_dir": str(folder), "target": "cluster"}
    return Project(folder, place.session(spark, folder), schema, lakes={"lake": own})
