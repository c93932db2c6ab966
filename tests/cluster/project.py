"""A project on the cluster, and the machines that run its commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from loader.spark import setup
from loader.spark.profile import load_profile
from loader.spark.session import sibling
from tests.crash.workers import Worker
from tests.services import Database, memory
from tests.services.pyiceberg_catalog import PyIcebergCatalog
from tests.services.seaweed import ACCOUNT, BUCKET, Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.setup.pages import ROOT, blocks
from tests.sync.project import Project, Ran

PASSWORDS = memory.folder() / "pgpass"
"""The file with the password of the JDBC catalog."""

_PAGE = (ROOT / "docs" / "cluster.md").read_text()


@dataclass(frozen=True)
class Place:
    """A cluster, an object store and a catalog, which hold one lake.

    Attributes:
        variables: those that docs/cluster.md exports, and those that the test machine needs.
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
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


def jdbc_place(cluster: SparkCluster, store: Seaweed, database: Database) -> Place:
    """Returns a place whose catalog is in a PostgreSQL database."""
    account = (database.server.port, database.name, database.user, database.password)
    PASSWORDS.write_text(":".join(map(str, ("127.0.0.1", *account))) + "\n")
    PASSWORDS.chmod(0o600)
    values = {
        "STRANDLINE_CATALOG_TYPE": "jdbc",
        "STRANDLINE_CATALOG_URI": database.url,
        "STRANDLINE_CATALOG_USER": database.user,
        "STRANDLINE_WAREHOUSE": f"s3://{BUCKET}/{database.name}",
        "PGPASSFILE": str(PASSWORDS),
    }
    return _place(cluster, store, _exported("STRANDLINE_TARGET=cluster"), values)


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
    names = _exported("STRANDLINE_TARGET=cluster") - {"STRANDLINE_CATALOG_USER", "PGPASSFILE"}
    # The catalog of the tests needs no credential.
    names |= _exported("STRANDLINE_CATALOG_TYPE=rest") - {"STRANDLINE_CATALOG_CREDENTIAL"}
    values = {
        "STRANDLINE_CATALOG_TYPE": "rest",
        "STRANDLINE_CATALOG_URI": catalog.url,
        "STRANDLINE_WAREHOUSE": f"s3://{BUCKET}/rest",
    }
    jar = str(_create_jar(cluster.folder))
    return _place(cluster, store, names, values, STRANDLINE_SPARK_JARS=jar)


def _exported(marker: str) -> set[str]:
    """Returns the variables that the page's block with this text exports."""
    [block] = [block for block in blocks(_PAGE.replace("\n   ", "\n"), "bash") if marker in block]
    return set(re.findall(r"\b([A-Z0-9_]+)=", block))


def _place(
    cluster: SparkCluster,
    store: Seaweed,
    names: Iterable[str],
    values: Mapping[str, str],
    **more: str,
) -> Place:
    known = {
        **ACCOUNT,
        **values,
        "STRANDLINE_TARGET": "cluster",
        "STRANDLINE_SPARK_MASTER": cluster.url,
        "STRANDLINE_S3_ENDPOINT": store.endpoint,
        "STRANDLINE_S3_PATH_STYLE": "true",
    }
    variables = {name: known[name] for name in names}
    # In the tests, all machines are this one, which has little memory.
    own = {"STRANDLINE_DRIVER_HOST": "127.0.0.1", "STRANDLINE_EXECUTOR_MEMORY": "1g"}
    return Place(cluster, store, {**variables, **own, **more})


def _create_jar(folder: Path) -> Path:
    """Creates an empty jar as a user's own jar; executors must also get the loader's jars."""
    jar = folder / "users.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return jar


class Machine(Worker):
    """A loader process on a machine of its own: with its own host name and its own lock files.

    Args:
        variables: additional variables.
    """

    def __init__(self, place: Place, folder: Path, name: str, **variables: str) -> None:
        shutil.copy(ROOT / "profiles" / "profiles.yml", folder / "profiles.yml")
        locks = folder / f"locks-{name}"
        environment = {**place.environment(), "STRANDLINE_LOCKS": str(locks), **variables}
        self._own = (folder, environment, _on_host(name, folder))
        super().__init__(*self._own)

    def start_again(self) -> None:
        """Starts a new process on the same machine after :meth:`kill`."""
        super().__init__(*self._own)

    def run(self, project: Project, *arguments: str, **variables: str) -> Ran:
        """Runs a command and waits for its end."""
        self.start(project, *arguments, **variables)
        return self.ended()

    def suspend(self) -> None:
        """Suspends the process and its JVM, like a machine that sleeps."""
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
    """Returns a command prefix that changes the host name, if the user may do so.

    Without it, machines still have different folders of lock files.
    """
    hosts = folder / f"hosts-{name}"
    hosts.write_text(f"127.0.0.1 localhost {name}\n")
    command = [*_NAMESPACES, _RENAME, "sh", name, str(hosts)]
    can_rename = shutil.which("unshare") and subprocess.run([*command, "true"]).returncode == 0
    return command if can_rename else []


def create_dbt_project(folder: Path, schema: str, target: str = setup.EMBEDDED) -> None:
    """Creates what `loader init` creates, for raw tables in this schema."""
    folder.mkdir(exist_ok=True)
    setup.create(folder, lambda line: None, target=target)
    path = folder / "dbt_project.yml"
    text = path.read_text()
    assert "strandline__raw_schema: raw\n" in text
    path.write_text(text.replace("raw_schema: raw\n", f"raw_schema: {schema}\n"))


def create_project(place: Place, folder: Path, spark: SparkSession, schema: str) -> Project:
    """Creates a project with a dbt project, whose raw tables are in the place's lake."""
    create_dbt_project(folder, schema, setup.CLUSTER)
    own = {"profiles_dir": str(folder), "target": "cluster"}
    return Project(folder, place.session(spark, folder), schema, lakes={"lake": own})
