"""Links, pipes, folders and devices in place of the loader's own files are refused at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loader.connectors.airbyte.config import ConfigUpdates
from loader.connectors.cloudquery.source import build_bridge_command
from loader.connectors.subprocess.program import write_json
from loader.errors import LoaderError, SpecError, StateError, TableError
from loader.lake.lock_files import lock_file
from loader.lake.lock_store import FileLockStore
from loader.state.local import LocalState

VICTIM = "somebody else's file"


def _link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "victim")


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "made-by-the-loader")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


PLANTS: list[Callable[[Path], object]] = [_link, _dangling, os.mkfifo, Path.mkdir, _device]
planted = pytest.mark.parametrize("plant", PLANTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that others may write to."""
    (tmp_path / "victim").write_text(VICTIM)
    shared = tmp_path / "shared"
    shared.mkdir()
    return shared


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """Fails a test that blocks on a pipe."""

    def end(*_: object) -> None:
        raise AssertionError("it waits for a planted file")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _assert_untouched(folder: Path) -> None:
    assert (folder.parent / "victim").read_text() == VICTIM
    assert not (folder.parent / "made-by-the-loader").exists()


@planted
def test_a_lock_record(folder: Path, plant: Callable[[Path], object]) -> None:
    owners = FileLockStore(folder)
    plant(folder / "orders.owner")
    plant(folder / "run1.alive")
    calls: list[Callable[[], object]] = [
        lambda: owners.read("orders"),
        lambda: owners.swap("orders", None, "{}"),
        lambda: owners.read_heartbeat("run1"),
        lambda: owners.remove_heartbeat("run2"),
    ]
    for call in calls:
        with pytest.raises(TableError, match=r"shared/\w+\.\w+: .*not a file") as refused:
            call()
        assert "who may write" in refused.value.remedy
    _assert_untouched(folder)


@planted
def test_a_lock(folder: Path, plant: Callable[[Path], object]) -> None:
    plant(folder / "orders.lock")
    with pytest.raises(TableError, match=r"orders\.lock: .*not a file"):
        lock_file(folder / "orders.lock", 0).acquire()
    _assert_untouched(folder)


def test_a_record_is_not_written_through_a_link_of_its_temporary_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader.lake.lock_store.secrets.token_hex", lambda _: "guessed")
    _link(folder / f"orders.owner.{os.getpid()}.guessed")
    with pytest.raises(TableError, match="File exists"):
        FileLockStore(folder).swap("orders", None, "{}")
    _assert_untouched(folder)


def test_a_lock_record_that_is_too_large(folder: Path) -> None:
    (folder / "orders.owner").write_bytes(b"x" * 100_000)
    with pytest.raises(TableError, match="more than 65,536 bytes"):
        FileLockStore(folder).read("orders")


@planted
def test_a_state_file(folder: Path, plant: Callable[[Path], object]) -> None:
    state = LocalState(folder)
    plant(state._find_path("shop.orders"))
    calls: list[Callable[[], object]] = [state.rows, lambda: state.rows("shop.orders")]
    for call in calls:
        with pytest.raises(StateError, match="not a file"):
            call()
    _assert_untouched(folder)


@planted
def test_a_renewed_configuration(folder: Path, plant: Callable[[Path], object]) -> None:
    plant(folder / "renewed.json")
    renewed = ConfigUpdates(folder / "renewed.json", {}, lambda _: None)
    if plant is not _dangling:
        with pytest.raises(SpecError, match="not a file"):
            renewed.apply_to({})
    control = {"connectorConfig": {"config": {"token": "t"}}}
    if plant is Path.mkdir:
        with pytest.raises(TableError, match="cannot be stored"):
            renewed.store_update(control)
    else:
        assert renewed.store_update(control)  # replaces the planted file
        assert renewed.apply_to({}) == {"token": "t"}
    _assert_untouched(folder)


@planted
def test_a_file_with_secrets(folder: Path, plant: Callable[[Path], object]) -> None:
    plant(folder / "config.json")
    with pytest.raises((OSError, LoaderError)):
        write_json(folder, "config.json", {"token": "t"})
    _assert_untouched(folder)


def test_the_bridge_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("raise SystemExit('a planted module was run')")
    command = build_bridge_command(sys.executable, "source x", "spec", {})
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "a planted module was run" not in ran.stderr
