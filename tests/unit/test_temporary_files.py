"""Private temporary folders are removed when their process ends, even if it was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loader.spark.temporary_files import create_folder, name_prefix, private_folder


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_private_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    with private_folder("kind", tmp_path / "not" / "there") as folder:
        assert folder.parent == tmp_path / "not" / "there"
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "secret").write_text("")
    assert not folder.exists()


def test_the_default_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert create_folder("kind").parent == tmp_path


def test_folders_of_killed_processes_are_removed(tmp_path: Path, dead: int) -> None:
    left = tmp_path / f"{name_prefix('kind')}{dead}-x"
    (left / "below").mkdir(parents=True)
    (left / "below" / "secret").write_text("")
    with private_folder("kind", tmp_path):
        assert not left.exists()


def test_other_folders_are_kept(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a running process, of another kind, of another machine or with unknown names."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("")
    kept = [
        tmp_path / f"{name_prefix('kind')}{os.getpid()}-x",
        tmp_path / f"{name_prefix('other')}{dead}-x",
        tmp_path / f"{name_prefix('kind')}mine-x",
        tmp_path / f"{name_prefix('kind')}-x",
    ]
    with monkeypatch.context() as moved:
        moved.setattr(socket, "gethostname", lambda: "another-machine")
        kept.append(tmp_path / f"{name_prefix('kind')}{dead}-x")
    for folder in kept:
        folder.mkdir()
    link, file = (tmp_path / f"{name_prefix('kind')}{dead}-{name}" for name in ("link", "file"))
    link.symlink_to(elsewhere)
    file.write_text("")
    with private_folder("kind", tmp_path):
        assert [folder.name for folder in [*kept, link, file] if not folder.exists()] == []
        assert (elsewhere / "mine").exists()


def test_folders_that_may_be_in_use_are_kept_for_a_while(tmp_path: Path, dead: int) -> None:
    old, young = (tmp_path / f"{name_prefix('kind')}{dead}-{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 61,) * 2)
    create_folder("kind", tmp_path, age=60)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_disappears_is_no_error(tmp_path: Path, dead: int) -> None:
    (tmp_path / f"{name_prefix('kind')}{dead}-y").symlink_to(tmp_path / "nowhere")
    with private_folder("kind", tmp_path) as folder:
        assert folder.exists()
