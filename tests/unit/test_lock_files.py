"""Lock files are next to the tables of a local warehouse, otherwise in the user's own folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import names
from loader.errors import SpecError
from loader.lake import lock_files
from loader.lake.lock_files import lock_file
from loader.spark import temporary_files


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock folder, which does not exist yet."""
    folder = tmp_path / "cache" / "locks"
    monkeypatch.setenv(lock_files.FOLDER, str(folder))
    return folder


def test_locks_of_a_shared_catalog_are_in_a_private_folder(place: Path) -> None:
    folder = lock_files.find_user_folder("lake", "s3://bucket")
    assert folder.parent == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert lock_files.find_user_folder("lake", "s3://bucket") == folder
    assert lock_files.find_user_folder("lake", "s3://other") != folder
    place.chmod(0o755)  # if others can read a lock file, they can hold its lock
    lock_files.find_user_folder("lake", "s3://bucket")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(
        SpecError, match=r"others may write to .*Remove it, or set STRANDLINE_LOCKS"
    ):
        lock_files.find_user_folder("lake", "s3://bucket")
    place.chmod(0o700)
    monkeypatch.setattr(temporary_files.os, "getuid", lambda: 12345)
    with pytest.raises(SpecError, match="not a folder of this user"):
        lock_files.find_user_folder("lake", "s3://bucket")


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    place.parent.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="is a link"):
        lock_files.find_user_folder("lake", "s3://bucket")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_the_default_folder_is_in_the_users_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(lock_files.FOLDER, raising=False)
    monkeypatch.setattr(temporary_files, "home_folder", lambda: tmp_path)
    assert lock_files.find_user_folder("lake", "x").parent == tmp_path / ".cache/strandline/locks"
    # if the home is not writable: a folder named after the user's id, which is checked as well
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(temporary_files, "home_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(temporary_files.tempfile, "gettempdir", lambda: str(tmp_path))
    assert lock_files.find_user_folder("lake", "x").parent.parent == tmp_path


@pytest.mark.parametrize(
    ("kind", "warehouse", "folder"),
    [
        ("hadoop", "/data/ware#house?x%20y", "/data/ware#house?x%20y"),
        ("hadoop", "file:/data/a#b", "/data/a#b"),
        ("hadoop", "file:///data/a?b", "/data/a?b"),
        ("hadoop", "file://localhost/data", "/data"),
        ("hadoop", "/data/with:colon", "/data/with:colon"),
        ("hadoop", "s3://bucket/lake", None),
        ("hadoop", "hdfs://name/lake", None),
        ("rest", "/data", None),
        ("hadoop", "", None),
    ],
)
def test_the_path_of_a_local_warehouse_is_taken_literally(
    kind: str, warehouse: str, folder: str | None
) -> None:
    found = lock_files.find_local_warehouse(kind, warehouse)
    assert (str(found) if found else None) == folder


def test_names_are_escaped_for_files() -> None:
    assert names.file_name("orders") == "orders"
    assert names.file_name("Größe 1") == "Größe 1"
    assert names.file_name("../../etc") == "..%2F..%2Fetc"
    assert names.file_name("..") == "%.."
    assert names.in_the_lake("a.b/c`d\x85e\u2028") == "a_b_c_d_e_"


@given(st.text(), st.text())
def test_names_of_files_are_distinct_and_fit(one: str, other: str) -> None:
    found = names.file_name(one)
    assert "/" not in found
    assert "\0" not in found
    assert found not in ("", ".", "..")
    assert len(found.encode("utf-8", "surrogatepass")) <= 255 - len(".owner")
    assert (found == names.file_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "a\nb", "x" * 181])
def test_a_name_that_would_be_a_path_is_refused(name: str) -> None:
    assert names.explain_refusal(name)


@pytest.mark.parametrize("name", ["orders", "we.ird", "Größe", "a b", "a#b?c", "..x", "x" * 180])
def test_other_names_are_accepted(name: str) -> None:
    assert names.explain_refusal(name) is None


@pytest.mark.parametrize(
    ("folder", "file"), [(0o700, 0o600), (0o755, 0o600), (0o2775, 0o660), (0o1777, 0o666)]
)
def test_only_users_who_can_write_to_the_folder_can_lock(
    tmp_path: Path, folder: int, file: int
) -> None:
    """Anyone who can read a lock file can hold its lock."""
    place = tmp_path / "lake"
    place.mkdir()
    place.chmod(folder)
    (place / "orders.lock").touch(0o644)  # from an older version of the loader
    old = os.umask(0o022)
    try:
        for name in ("orders", "new", "new"):
            with lock_file(place / f"{name}.lock", timeout=1):
                pass
    finally:
        os.umask(old)
    for name in ("orders", "new"):
        assert stat.S_IMODE((place / f"{name}.lock").stat().st_mode) == file
