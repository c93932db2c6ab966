"""Spark sorts and shuffles rows in a local folder that only this user can read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loader.spark.temporary_files import LOCAL_DIR, create_local_dir, name_prefix

LOCAL = {"spark.master": "local[*]"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    return tmp_path


def test_the_folder_is_private(folder: Path) -> None:
    made = Path(create_local_dir(LOCAL, "spark.local.directory /elsewhere\n")[LOCAL_DIR])
    assert made.parent == folder
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_java_writes_temporary_files_there_too() -> None:
    options = "spark.driver.extraJavaOptions"
    for given, defaults, expected in (
        ({}, "", '"-Djava.io.tmpdir={}"'),
        ({options: "-Da=b"}, f"{options} -Dc=d\n", '-Da=b "-Djava.io.tmpdir={}"'),
        ({options: "-Djava.io.tmpdir=/fast"}, "", None),
        ({}, f"{options}  -Da=b\n", None),
    ):
        made = create_local_dir({**LOCAL, **given}, defaults)
        assert made.get(options) == (expected and expected.format(made[LOCAL_DIR]))


def test_a_configured_folder_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert create_local_dir({**LOCAL, LOCAL_DIR: "/fast"}, "") == {}
    assert create_local_dir(LOCAL, "spark.ui.enabled false\n spark.local.dir  /fast\n") == {}
    assert create_local_dir({"spark.master": "spark://there:7077"}, "") == {}
    assert create_local_dir({}, "") == {}
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/fast")
    assert create_local_dir(LOCAL, "") == {}
    assert not list(folder.iterdir())


def test_a_killed_process_s_folder_stays_for_an_hour(folder: Path) -> None:
    """Its JVM may outlive it and still use the folder."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    old, young = (folder / f"{name_prefix('scratch')}{dead.pid}-{n}" for n in ("old", "young"))
    for left in (old, young):
        (left / "blockmgr-1").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    create_local_dir(LOCAL, "")
    assert not old.exists()
    assert young.exists()
