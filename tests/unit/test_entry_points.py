"""A broken plug-in, or two with the same name, is one error that names the package."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from loader.errors import SpecError
from loader.sources.entry_points import find_connector
from loader.sources.file.source import FileSource
from loader.sources.interface import Source, SourceTable, TableRef
from loader.spec import entry_points as module
from loader.spec.entry_points import list_plugins
from loader.spec.plugins import PluggedDestination, StateDestination
from loader.state import StoreLocation
from loader.state.local import LocalState
from loader.state.opening import _open_plugin


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
    assert "Reinstall broken-connector in a version" in text
    assert "\n" not in text


class Incomplete(Source):
    """A connector whose author forgot `options_model` and a method."""

    def tables(self) -> list[TableRef]:
        return []

    def describe(self, ref: TableRef) -> SourceTable:
        raise NotImplementedError


class NoOptions(BaseModel):
    """The options of a backend that has none."""


class Raising(LocalState):
    """A state backend whose constructor fails."""

    options_model = NoOptions

    def __init__(self, options: object, location: StoreLocation) -> None:
        raise RuntimeError("no client at https://me:hunter2@store")


def test_a_connector_without_its_members_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, ("bad", f"{__name__}:Incomplete", "broken-connector"))
    with pytest.raises(SpecError, match="has no options_model, snapshot"):
        find_connector("bad", "source shop, path")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("loader.nowhere:State", "cannot be loaded: ModuleNotFoundError: "),
        ("loader.errors:sentence", "is not a StateBackend"),
        ("loader.state.local:LocalState", "has no options_model"),
        (f"{__name__}:Raising", "cannot be loaded: RuntimeError: "),
    ],
)
def test_a_broken_state_backend_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    _plant(monkeypatch, ("mine", value, "broken-state"))
    store = PluggedDestination(name="store", path="mine")
    with pytest.raises(SpecError) as refused:
        _open_plugin(store, StoreLocation("_cq_state", Path(), "store"))
    text = str(refused.value)
    assert f"the plug-in {value} {reason}" in text
    assert "Reinstall broken-state in a version" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("path", "package", "connection"),
    [
        ("postgresql", "psycopg", "postgresql://u:hunter2@h/d"),  # imported by the constructor
        ("redis", "redis", "redis://h"),  # imported by the module
    ],
)
def test_a_missing_driver_of_our_backends_is_an_extra(
    monkeypatch: pytest.MonkeyPatch, path: str, package: str, connection: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "loader.state.redis", raising=False)
    store = StateDestination(name="store", path=path, spec={"connection_string": connection})
    with pytest.raises(SpecError) as refused:
        _open_plugin(store, StoreLocation("_cq_state", Path(), "store"))
    assert f"state in {path} needs the package {package}" in str(refused.value)
    assert f"pip install 'strandline[{path}]'" in str(refused.value)
