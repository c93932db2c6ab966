"""The dbt plugin starts the only JVM of a dbt command, and its errors do not stop dbt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark

ROOT = Path(__file__).resolve().parents[2]
_TARGETS: dict[str, Any] = {
    "lake": {
        "server_side_parameters": {
            "spark.master": "local[1]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.defaultCatalog": "lake",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": "{{ env_var('WAREHOUSE') }}",
            "spark.hadoop.planted.password": "hunter2hunter2",
            # This variable is not set, and Spark does not start with an empty number.
            "spark.executor.memory": "{{ env_var('NOBODY_SETS_THIS', '') }}",
        },
    },
    "elsewhere": {"method": "thrift", "port": 1},
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A dbt project without the package, and a `java` that records its command lines."""
    folder = tmp_path / "project"
    (tmp_path / "warehouse" / "built").mkdir(parents=True)  # dbt fails if a namespace has no folder
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "one.sql").write_text(
        "{{ config(materialized='table', file_format='iceberg') }} select 1 as id\n"
    )
    (folder / "dbt_project.yml").write_text("name: plain\nprofile: plain\nconfig-version: 2\n")
    target = {"type": "spark", "method": "session", "host": "NA", "schema": "built"}
    outputs = {name: {**target, **more} for name, more in _TARGETS.items()}
    profiles = {"plain": {"target": "lake", "outputs": outputs}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    real = choose_java(find_spark().line)
    (tmp_path / "jdk" / "release").write_text((real.home / "release").read_text())
    java.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/started\nexec {real.program} "$@"\n')
    java.chmod(0o755)
    return folder


def _dbt(project: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _python(project, "-m", "dbt.cli.main", *command, "--profiles-dir", ".", **environment)


def _python(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "JAVA_HOME": str(project.parent / "jdk"),
        "WAREHOUSE": str(project.parent / "warehouse"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )


def _starts(project: Path) -> list[str]:
    try:
        return (project.parent / "started").read_text().splitlines()
    finally:
        (project.parent / "started").unlink(missing_ok=True)


_PASSED = """
import sys
from dbt.adapters.factory import FACTORY
from dbt.cli.main import dbtRunner

assert dbtRunner().invoke([sys.argv[1], "--profiles-dir", "."]).success
[adapter] = FACTORY.adapters.values()
print("passed:", *sorted(adapter.config.credentials.server_side_parameters))
"""
"""Runs a dbt command, and prints the settings that dbt passes to Spark before each statement."""


def test_one_jvm_starts_with_iceberg_and_without_settings_on_its_command_line(
    project: Path,
) -> None:
    done = _python(project, "-c", _PASSED, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = done.stdout.rpartition("passed: ")[2].split()
    # dbt-spark adds `spark.sql.ansi.enabled`.
    assert [name.removeprefix("spark.sql.") for name in passed] == [
        *("ansi.enabled", "catalogImplementation", "defaultCatalog")
    ]
    [start] = _starts(project)
    assert "org.apache.spark.deploy.SparkSubmit" in start
    assert "iceberg-spark-runtime" in start
    assert "hunter2hunter2" not in start
    settings = start.partition("--properties-file ")[2].split()[0]
    assert not Path(settings).exists()
    deadline = time.monotonic() + 30  # the JVM ends with dbt, a moment later
    while time.monotonic() < deadline and _runs(settings):
        time.sleep(0.1)
    assert not _runs(settings)


def test_empty_settings_that_the_loader_refuses_are_kept(project: Path) -> None:
    """Iceberg reports an empty warehouse; other empty settings are removed, as by the loader."""
    done = _python(project, "-c", _PASSED, "parse", WAREHOUSE="")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = done.stdout.rpartition("passed: ")[2].split()
    assert "spark.sql.catalog.lake.warehouse" in passed
    assert "spark.executor.memory" not in passed


def _runs(argument: str) -> bool:
    found = subprocess.run(["pgrep", "-f", argument], capture_output=True, check=False)
    return found.returncode == 0


_SILENT = (
    "parse",
    "ls",
    "compile --no-populate-cache --no-introspect --target elsewhere",
    "parse --target elsewhere",
)
_EACH = """
import sys
from pathlib import Path
from dbt.cli.main import dbtRunner

started, *commands = sys.argv[1:]
for command in commands:
    outcome = dbtRunner().invoke([*command.split(), "--profiles-dir", "."])
    assert outcome.success, (command, outcome.exception)
    assert not Path(started).exists(), command
"""
"""Runs several dbt commands in one process, because starting dbt takes longest."""


def test_a_command_that_opens_no_session_starts_no_jvm(project: Path) -> None:
    done = _python(project, "-c", _EACH, str(project.parent / "started"), *_SILENT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_error_of_the_plugin_leaves_the_start_to_spark(project: Path) -> None:
    """If `JAVA_HOME` contains no Java, the plugin warns, and dbt reports Spark's own error."""
    shutil.rmtree(project.parent / "jdk")
    done = _dbt(project, "run")
    assert done.returncode != 0
    assert (
        "warning: Spark starts without the loader's Java and jars: Java: JAVA_HOME" in done.stderr
    )
    assert "JAVA_GATEWAY_EXITED" in done.stdout + done.stderr


def test_a_variable_turns_the_plugin_off(project: Path) -> None:
    """Without the plugin, Spark starts its launcher first; the test lets that fail to save time."""
    java = project.parent / "jdk" / "bin" / "java"
    java.write_text(java.read_text().replace("\nexec ", "\nexit 1\nexec "))
    _dbt(project, "run", STRANDLINE_DBT_PLUGIN="off")
    first, *_ = _starts(project)
    assert "org.apache.spark.launcher.Main" in first
