"""Codegen writes either all files or none, even if the disk fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loader.codegen.dbt_project import read, write_all
from loader.errors import SpecError


def _files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_all_are_written_with_their_folders_and_rights(tmp_path: Path) -> None:
    known = tmp_path / "known.sql"
    known.write_text("old")
    known.chmod(0o600)
    write_all({known: "new\r\n", tmp_path / "models" / "strandline" / "a.yml": "ä"})
    assert read(known) == "new\r\n"
    assert known.stat().st_mode & 0o777 == 0o600
    assert sorted(_files(tmp_path)) == ["known.sql", "models/strandline/a.yml"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.yml").write_text("old")
    (tmp_path / "link.yml").symlink_to(tmp_path / "real.yml")
    write_all({tmp_path / "link.yml": "new"})
    assert (tmp_path / "link.yml").is_symlink()
    assert (tmp_path / "real.yml").read_text() == "new"


def test_no_file_is_written_if_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("old a")
    (tmp_path / "taken").write_text("a file where a folder should be")
    before = _files(tmp_path)
    with pytest.raises(SpecError, match="no file was changed"):
        write_all({tmp_path / "a.sql": "new a", tmp_path / "taken" / "b.sql": "new b"})
    assert _files(tmp_path) == before


def test_replaced_files_are_restored_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.sql").write_text("old a")
    (tmp_path / "c.sql").write_text("old c")
    before = _files(tmp_path)
    rename, seen = os.replace, []

    def failing(source: Path, target: Path) -> None:
        seen.append(target)
        if len(seen) == 3:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(SpecError, match="No space left on device; no file was changed"):
        write_all({tmp_path / f"{name}.sql": f"new {name}" for name in "abc"})
    assert _files(tmp_path) == before


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.yml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"a\.yml"):
        read(path)
    assert read(tmp_path / "none.yml") is None
