"""State and renewed tokens survive a power cut: the file is flushed before it is renamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loader.connectors.airbyte.config import ConfigUpdates
from loader.state import StateRow
from loader.state.local import LocalState


def _token(folder: Path) -> None:
    control = {"connectorConfig": {"config": {"token": "second"}}}
    assert ConfigUpdates(folder / "renewed.json", {"token": "first"}, lambda _: None).store_update(
        control
    )


def _state(folder: Path) -> None:
    LocalState(folder).append([StateRow("shop.orders", "{}", 1, None)])


@pytest.mark.parametrize("written", [_token, _state])
def test_a_file_and_its_name_are_flushed(
    written: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(written)
    done: list[tuple[str, int]] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(("synced", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def replaced(old: os.PathLike[str], new: os.PathLike[str]) -> None:
        done.append(("named", os.stat(old).st_ino))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    written(tmp_path)

    [file] = tmp_path.glob("*.json")
    number, folder = file.stat().st_ino, tmp_path.stat().st_ino
    assert done == [("synced", number), ("named", number), ("synced", folder)]
    assert file.stat().st_mode & 0o077 == 0
