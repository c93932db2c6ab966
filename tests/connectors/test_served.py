"""What `loader serve` appends of a sync, without CloudQuery: its bridge is played here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from loader.errors import JavaEndedError, TableError
from loader.sources.cloudquery import serving
from loader.spec.spec import load_spec
from loader.sync import served
from loader.sync.pipeline import Outcome
from loader.sync.served import Served
from loader.sync.watch import Watch
from tests.sync.project import Project

ORDERS = {
    "name": "orders",
    "json_schema": {"properties": {"id": {"type": "integer"}}},
    "supported_sync_modes": ["full_refresh"],
    "source_defined_primary_key": [["id"]],
}


class Bridge:
    """A bridge that tells of some sessions, and hears what becomes of them."""

    def __init__(self, *sessions: dict[str, Any]) -> None:
        self._sessions = sessions
        self.errors: list[str | None] = []

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the sessions."""
        yield from self._sessions

    def answer(self, message: dict[str, Any]) -> None:
        """Hears an answer."""
        if "session" in message:
            self.errors.append(message["error"])


def test_a_bridge_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever restarts the loader on failure must see one."""
    monkeypatch.setattr(serving, "_HEARD", 0.1)
    words = [sys.executable, "-c", 'print(\'{"listening": "x:1"}\\n{"state": "s"}\')']
    for ends in (False, True):
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            bridge = serving.Serving(child)
            assert bridge.listen()
            messages = bridge.messages()
            assert next(messages) == {"state": "s"}
            if ends:
                bridge.end()
                assert list(messages) == []
                continue
            with pytest.raises(TableError, match="the bridge to CloudQuery has ended"):
                next(messages)


def test_the_loader_ends_with_java(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further sync would fail, too."""
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    (project.folder / "catalog.json").write_text(json.dumps({"streams": [ORDERS]}))
    session = {"session": 1, "folder": str(project.folder), "stale": [], "source": "shop"}
    bridge: Any = Bridge({**session, "rows": True}, {**session, "rows": True})

    class Pipeline:
        def __init__(self, *_: Any) -> None:
            pass

        def run(self, *_: Any) -> Iterator[Outcome]:
            yield Outcome("orders", error=JavaEndedError("Spark's Java process ended"))

    monkeypatch.setattr(served, "Pipeline", Pipeline)
    serves = Served(spec, project.spark, "lake", bridge, Watch(), lambda _: None)
    with pytest.raises(JavaEndedError):
        serves.run()
    assert bridge.errors == ["Spark's Java process ended."]


def test_the_group_of_a_sync_is_part_of_the_key(project: Project) -> None:
    """As CloudQuery makes it; without it, the table would have no key."""
    names = ("id", "_cq_sync_group_id", "_cq_sync_time")
    stream = {
        **ORDERS,
        "json_schema": {"properties": {name: {} for name in names}},
        "source_defined_primary_key": [["id"], ["_cq_sync_group_id"]],
    }
    sessions = []
    for number, group in enumerate(("g1", "g2", "g1")):
        folder = project.folder / str(number)
        folder.mkdir()
        (folder / "catalog.json").write_text(json.dumps({"streams": [stream]}))
        data = {"id": "1", "_cq_sync_group_id": group, "_cq_sync_time": f"2025-01-0{number + 1}"}
        message = {"type": "RECORD", "record": {"stream": "orders", "data": data}}
        (folder / "messages.jsonl").write_text(json.dumps(message) + "\n")
        about = {"session": number, "folder": str(folder), "stale": [], "source": "shop"}
        sessions.append({**about, "rows": True})
    bridge: Any = Bridge(*sessions)
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    Served(spec, project.spark, "lake", bridge, Watch(), lambda _: None).run()
    assert bridge.errors == [None, None, None]
    rows = project.rows("select id, _cq_sync_group_id from raw.orders order by _cq_batch")
    assert rows == [("1", "g1"), ("1", "g2")]


def test_syncs_without_rows_and_with_deletions_only(project: Project) -> None:
    def session(number: int, source: str, *messages: dict[str, Any]) -> dict[str, Any]:
        folder = project.folder / str(number)
        folder.mkdir()
        (folder / "catalog.json").write_text(json.dumps({"streams": [ORDERS]}))
        (folder / "messages.jsonl").write_text("".join(json.dumps(m) + "\n" for m in messages))
        about = {"session": number, "folder": str(folder), "stale": [], "source": source}
        return {**about, "rows": bool(messages)}

    rows = [{"type": "RECORD", "record": {"stream": "orders", "data": {"id": n}}} for n in (1, 2)]
    gone = {"type": "DELETE", "delete": {"stream": "orders", "where": [{"id": 2}]}}
    bridge: Any = Bridge(session(1, "shop", *rows), session(2, ""), session(3, "", gone))
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    outcomes: list[Outcome] = []
    Served(spec, project.spark, "lake", bridge, Watch(), outcomes.append).run()
    assert bridge.errors == [None, None, None]
    assert project.rows(
        "select id, _cq_deleted, _cq_source_name from raw.orders order by _cq_batch, _cq_seq"
    ) == [(1, False, "shop"), (2, False, "shop"), (2, True, "shop")]
