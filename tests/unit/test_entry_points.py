"""A plug-in that is broken, or has the name of another one, is one error that names its package."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from loader.errors import SpecError
from loader.sources.entry_points import find_connector
from loader.sources.file.source import FileSource
from loader.spec import entry_points as module
from loader.spec.entry_points import list_plugins


def _plant(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str, str]) -> None:
    found = []
    for name, value, package in entries:
        entry = EntryPoint(name, value, "strandline.sources")
        vars(entry)["dist"] = SimpleNamespace(name=package)
        found.append(entry)
    monkeypatch.setattr(module, "entry_points", lambda group: found)


FILE = ("file", "loader.sources.file.source:FileSource", "strandline")


def test_a_name_belongs_to_one_package(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, FILE, FILE)
    assert find_connector("file", "source drop") is FileSource
    for entries in (
        (FILE, ("file", "other:Source", "evil")),
        (("file", "other:Source", "evil"), FILE),
    ):
        _plant(monkeypatch, *entries)
        with pytest.raises(SpecError) as refused:
            list_plugins("strandline.sources")
        assert "two installed packages provide 'file'" in str(refused.value)
        assert "strandline" in str(refused.value)
        assert "evil" in str(refused.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("loader.nowhere:Source", "cannot be loaded: ModuleNotFoundError: "),
        ("loader.errors:Missing", "cannot be loaded: AttributeError: "),
        ("pathlib:Path", "is not a Source"),
        ("loader.spec.redaction:redact_foreign", "is not a Source"),
    ],
)
def test_a_broken_plug_in_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    _plant(monkeypatch, ("bad", value, "broken-connector"))
    with pytest.raises(SpecError) as refused:
        find_connector("bad", "source shop, path")
    text = str(refused.value)
    assert text.startswith(f"source shop, path: the plug-in {value} {reason}")
    assert "Install broken-connector again" in text
    assert "\n" not in text
