"""`sync_mode: cdc`: how its plug-in is found, and which snapshot serves each table."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, nullcontext
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from loader.cdc.capture import CompositeSnapshot, PostgresCapture
from loader.cdc.log_snapshot import LogSnapshot
from loader.errors import SpecError
from loader.sources.interface import Snapshot, SourceTable, TableRef
from loader.sources.jdbc.interface import GROUP, JdbcSnapshot, load_capture
from loader.spec import entry_points

URL = "jdbc:postgresql://h/shop"


def _list_overridden(kind: type[Snapshot]) -> set[str]:
    members = inspect.getmembers(Snapshot, inspect.isfunction)
    public = {name for name, _ in members if not name.startswith("_")}
    return {name for name in public if getattr(kind, name) is not getattr(Snapshot, name)}


def test_the_composite_snapshot_has_every_method_of_both() -> None:
    assert _list_overridden(LogSnapshot) | _list_overridden(JdbcSnapshot) <= _list_overridden(
        CompositeSnapshot
    )
    assert "has_more" in _list_overridden(LogSnapshot)


def test_each_call_goes_to_the_snapshot_that_reads_the_table() -> None:
    class Answers:
        def __init__(self, name: str) -> None:
            self.name = name
            self.tables = {"followed": None}

        def __getattr__(self, question: str) -> Any:
            return lambda *args, **named: (self.name, question, *args, *named)

    composite = CompositeSnapshot(
        lambda: Answers("queries"),  # type: ignore[arg-type,return-value]
        Answers("log"),  # type: ignore[arg-type]
        lambda: nullcontext(Answers("beside")),  # type: ignore[arg-type,return-value]
        ExitStack(),
    )
    followed, queried = (SourceTable(TableRef(n), None) for n in ("followed", "queried"))  # type: ignore[arg-type]
    by_queries = {"read_current_rows", "read_first", "contents"}
    own = {"use_marks", "open_later", "masks_rows", "get_query_snapshot"}
    for name in sorted(_list_overridden(CompositeSnapshot) - own):
        method = getattr(composite, name)
        first = [None] if "spark" in inspect.signature(getattr(Snapshot, name)).parameters else []
        log = "beside" if name in by_queries else "log"
        assert method(*first, followed, 7)[:2] == (log, name)
        named = {"window" if name == "bounds" else "until": 7}
        assert method(*first, queried, **named)[:2] == ("queries", name)
    assert composite.masks_rows(followed)
    assert not composite.masks_rows(queried)
    for table, expected in ((followed, "beside"), (queried, "queries")):
        answers: Any = composite.get_query_snapshot(table)
        assert answers.name == expected


def _plant(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, GROUP) for name, value in entries]
    monkeypatch.setattr(entry_points, "entry_points", lambda group: found)


def test_the_plug_in_is_found_by_the_kind_of_database() -> None:
    assert isinstance(load_capture(URL, "source shop"), PostgresCapture)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((), "no installed plug-in reads the log of postgresql. Reinstall strandline"),
        (
            (("postgresql", "loader.cdc.nowhere:Capture"),),
            "the plug-in loader.cdc.nowhere:Capture cannot be loaded: ModuleNotFoundError: ",
        ),
        (
            (("postgresql", "loader.cdc.capture:Capture"),),
            "the plug-in loader.cdc.capture:Capture cannot be loaded: AttributeError: ",
        ),
        (
            (("postgresql", "pathlib:Path"),),
            "the plug-in pathlib:Path is not a LogCapture. Reinstall ",
        ),
    ],
)
def test_a_plug_in_that_is_missing_or_broken_is_one_error(
    monkeypatch: pytest.MonkeyPatch, entries: tuple[tuple[str, str], ...], says: str
) -> None:
    _plant(monkeypatch, *entries)
    with pytest.raises(SpecError) as refused:
        load_capture(URL, "source shop, sync_mode: cdc")
    assert str(refused.value).startswith(f"source shop, sync_mode: cdc: {says}")
    assert "\n" not in str(refused.value)
