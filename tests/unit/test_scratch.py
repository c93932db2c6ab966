"""Rows that Spark sorts and shuffles lie where only this user may look."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loader.spark.private_folder import name_prefix
from loader.spark.spark_local_dir import SETTING, scratch

LOCAL = {"spark.master": "local[*]"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    return tmp_path


def test_a_folder_of_this_user(folder: Path) -> None:
    made = Path(scratch(LOCAL, "spark.local.directory /elsewhere\n")[SETTING])
    assert made.parent == folder
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_java_s_temporary_files_are_there_too() -> None:
    options = "spark.driver.extraJavaOptions"
    for given, defaults, expected in (
        ({}, "", '"-Djava.io.tmpdir={}"'),
        ({options: "-Da=b"}, f"{options} -Dc=d\n", '-Da=b "-Djava.io.tmpdir={}"'),
        ({options: "-Djava.io.tmpdir=/fast"}, "", None),
        ({}, f"{options}  -Da=b\n", None),
    ):
        made = scratch({**LOCAL, **given}, defaults)
        assert made.get(options) == (expected and expected.format(made[SETTING]))


def test_somebody_elses_choice_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scratch({**LOCAL, SETTING: "/fast"}, "") == {}
    assert scratch(LOCAL, "spark.ui.enabled false\n spark.local.dir  /fast\n") == {}
    assert scratch({"spark.master": "spark://there:7077"}, "") == {}
    assert scratch({}, "") == {}
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/fast")
    assert scratch(LOCAL, "") == {}
    assert not list(folder.iterdir())


def test_a_killed_process_s_folder_stays_for_an_hour(folder: Path) -> None:
    """Its JVM may outlive it, and sorts there."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    old, young = (folder / f"{name_prefix('scratch')}{dead.pid}-{n}" for n in ("old", "young"))
    for left in (old, young):
        (left / "blockmgr-1").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    scratch(LOCAL, "")
    assert not old.exists()
    assert young.exists()
