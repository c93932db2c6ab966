"""The process list, event log, messages and files contain no secret of the profile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "DBT_ENV_SECRET_S3": "planted-s3-key",
    "DBT_ENV_SECRET_TENANT": "planted-tenant",
    "PLANTED_S3": "planted-s3-variable",
    "PLANTED_CREDENTIAL": "planted-credential-variable",
}
CREDENTIAL, OPTION = "planted-credential", "planted-java-option"
SPEC = """\
kind: source
spec:
  name: drop
  path: file
  tables: [events]
  destinations: [lake]
  spec: {path: drop, format: csv, table_options: {events: {primary_key: id}}}
---
kind: destination
spec: {name: lake, path: spark, spec: {schema: raw, profile: planted, target: written}}
"""
PROJECT = """\
name: planted
version: "1.0"
profile: planted
models: {planted: {+materialized: table, +file_format: iceberg}}
"""


class ProcessList:
    """Collects the command lines of all processes that start within the block."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        # Reading all processes each time would take a third of a core on a busy machine.
        self._older = set(os.listdir("/proc"))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for name in set(os.listdir("/proc")) - self._older:
                try:
                    line = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ")
                    self.lines.add(line.decode("utf-8", "replace"))
                except OSError:
                    continue

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _write_profiles(folder: Path) -> None:
    """Writes two targets with secrets: `written` contains values, `named` names of variables."""
    shipped = yaml.safe_load((ROOT / "profiles/profiles.yml").read_text())["strandline"]
    embedded = shipped["outputs"]["embedded"]
    parameters: Mapping[str, Any] = embedded["server_side_parameters"]
    java = parameters["spark.driver.extraJavaOptions"]
    (folder / "events").mkdir()
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{folder}/events",
        # one uncompressed file per application, which can be searched for secrets
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    written = {
        **parameters,
        **logged,
        "spark.driver.extraJavaOptions": f"{java} -Dplanted.password={OPTION}",
        "spark.hadoop.fs.s3a.secret.key": "{{ env_var('DBT_ENV_SECRET_S3') }}",
        "spark.sql.catalog.lake.header.X-Tenant": "{{ env_var('DBT_ENV_SECRET_TENANT') }}",
        "spark.sql.catalog.lake.credential": CREDENTIAL,
    }
    named = {
        **parameters,
        **logged,
        "spark.hadoop.fs.s3a.secret.key": "${env.PLANTED_S3}",
        "spark.sql.catalog.lake.credential": "env:PLANTED_CREDENTIAL",
    }
    outputs = {
        "written": {**embedded, "server_side_parameters": written},
        "named": {**embedded, "server_side_parameters": named},
    }
    profiles = {"planted": {"target": "written", "outputs": outputs}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))


@pytest.mark.slow
def test_no_process_list_log_or_file_contains_a_secret(tmp_path: Path) -> None:
    _write_profiles(tmp_path)
    (tmp_path / "loader.yml").write_text(SPEC)
    (tmp_path / "drop/events").mkdir(parents=True)
    (tmp_path / "drop/events/one.csv").write_text("id,note\n1,a\n")
    (tmp_path / "dbt_project.yml").write_text(PROJECT)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/one.sql").write_text("select 1 as id")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DBT_", "STRANDLINE_TARGET"))},
        **PLANTED,
        "PYTHONPATH": str(ROOT),
        "STRANDLINE_WAREHOUSE": str(tmp_path / "warehouse"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    dbt = Path(sys.executable).with_name("dbt")
    reported = ""
    with ProcessList() as shown:
        for command in (
            [sys.executable, "-m", "loader", "--debug", "run"],
            [str(dbt), "--debug", "build", "--profiles-dir", ".", "--target", "named"],
        ):
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            reported += done.stdout + done.stderr
    secrets = (*PLANTED.values(), CREDENTIAL, OPTION)
    java = [line for line in shown.lines if "org.apache.spark.deploy.SparkSubmit" in line]
    assert len(java) >= 2
    assert not [line for line in shown.lines for secret in secrets if secret in line]
    assert not [secret for secret in secrets if secret in reported]
    # The JVM exits after its command, and renames its event log when it does.
    deadline = time.monotonic() + 60
    while list((tmp_path / "events").glob("*.inprogress")) and time.monotonic() < deadline:
        time.sleep(0.1)
    logs = [file for file in (tmp_path / "events").iterdir() if file.is_file()]
    assert len(logs) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "profiles.yml"]
    for kind in (".metadata.json", "manifest.json", "dbt.log"):
        assert any(path.name.endswith(kind) for path in files), kind
    holding = {
        (str(path.relative_to(tmp_path)), secret)
        for path in files
        for secret in secrets
        if secret.encode() in path.read_bytes()
    }
    assert not holding
