"""Spark's standalone master and its workers, as processes of this machine.

They run from the PySpark of the suite, whose folder has neither Iceberg nor a JDBC driver, like a
cluster on which nobody has installed anything for the loader.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark
from tests.services.memory import NAME
from tests.services.server import ServerMissing, free_port, tail

_START_SECONDS = 60
# Spark 4.1 starts executors with a module that the JDK from PyPI lacks, and that only MLlib needs.
# The second compiler costs short tests more than it saves (tests/conftest.py).
_JAVA = """#!/bin/sh
for each; do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec '{java}' -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$@"
"""


class SparkCluster:
    """A master and two workers with room for four applications.

    An application gets one core of each worker, unless it asks for more or less.

    Args:
        environment: additional variables of the workers, which their executors inherit.

    Attributes:
        url: the master's URL for `spark.master`.
        workers: the workers' processes; a worker that was killed can be started again.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-", dir=os.environ.get(NAME)))
        home = find_spark()
        self._home = home.folder
        assert not list((self._home / "jars").glob("iceberg-*")), "the workers have Iceberg"
        java = self.folder / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(_JAVA.format(java=choose_java(home.line).program))
        java.chmod(0o755)
        self._command = [str(java), "-cp", f"{self._home}/jars/*", *home.line.options]
        own = ("SPARK_", "STRANDLINE_", "PYSPARK_", "DBT_")
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(own)},
            "SPARK_HOME": str(self._home),
            "SPARK_SCALA_VERSION": home.line.scala,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JAVA_HOME": str(self.folder / "java"),
            **environment,
        }
        port, self._page = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(self._page)),
            options=("-Dspark.deploy.defaultCores=2",),
        )
        self._wait("the master", lambda: True)
        self.workers = [self._start_worker(number) for number in range(2)]
        self._wait("the workers", lambda: self.state()["aliveworkers"] == 2)

    def state(self) -> dict[str, Any]:
        """The master's description of its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
            return state

    def kill_worker(self, number: int) -> None:
        """Kills a worker and its executors, as a machine that loses its power does."""
        worker = psutil.Process(self.workers[number].pid)
        for process in (worker, *worker.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.workers[number].wait()

    def executors(self, number: int) -> int:
        """Counts the running executors of a worker."""
        return len(psutil.Process(self.workers[number].pid).children())

    def replace_worker(self, number: int) -> None:
        """Starts a worker in the place of one that was killed."""
        self.workers[number] = self._start_worker(number)
        self._wait("the workers", lambda: self.state()["aliveworkers"] == 2)

    def remove(self) -> None:
        """Ends all processes and deletes their files."""
        for number, worker in enumerate(self.workers):
            if worker.poll() is None:
                self.kill_worker(number)
        self._master.kill()
        self._master.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """The ends of all logs, those of executors included."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/stderr")]
        return "\n".join(f"== {path}\n{tail(path)}" for path in sorted(logs))

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        return self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--webui-port", str(free_port())),
            *("--cores", "4", "--memory", "8g", "--work-dir", str(self.folder / f"work-{number}")),
            self.url,
        )

    def _start(
        self, name: str, main: str, *arguments: str, options: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._command, "-Xmx512m", *options, main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _wait(self, what: str, condition: Any) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                self.state()
                if condition():
                    return
            if time.monotonic() > deadline:
                raise ServerMissing(f"{what} of Spark did not start:\n{self.log()}")
            time.sleep(0.2)
