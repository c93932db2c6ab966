"""`loader serve` appends the rows of syncs; a stub replaces the bridge to CloudQuery."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.cloudquery import bridge_server
from loader.connectors.cloudquery.ingest import CloudQueryIngest
from loader.connectors.subprocess.supervisor import Child
from loader.errors import JavaEndedError, TableError
from loader.lake.raw_table import list_raw_tables
from loader.spec.spec import load_spec
from loader.sync import ingest
from loader.sync.ingest import Ingest
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome
from tests.sync.project import Project

ORDERS = {
    "name": "orders",
    "json_schema": {"properties": {"id": {"type": "integer"}, "note": {"type": "string"}}},
    "supported_sync_modes": ["full_refresh"],
    "source_defined_primary_key": [["id"]],
}


class Bridge:
    """A stub of the bridge that announces sessions, and records the loader's answers."""

    def __init__(self, *sessions: dict[str, Any]) -> None:
        self._sessions = sessions
        self.errors: list[str | None] = []

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the sessions."""
        yield from self._sessions

    def answer(self, message: dict[str, Any]) -> None:
        """Records the answer for a session."""
        if "session" in message:
            self.errors.append(message["error"])


def test_a_port_needs_an_option_and_causes_a_warning(project: Project) -> None:
    """CloudQuery's command line sends no password, and a port has no owner."""
    project.write()
    [error] = project.loader("serve", "--address", "localhost:7778").errors
    assert "every user of this machine could write to the lake" in error
    ran = project.loader("serve", "--network", "tcp", "--python", "/bin/false")
    [warning] = ran.warnings
    assert warning.startswith("localhost:7778 has no password")
    [error] = ran.errors
    assert "the bridge to CloudQuery cannot start" in error


def test_a_bridge_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager that restarts the loader on failure must see a failure."""
    monkeypatch.setattr(bridge_server, "_EXIT_SECONDS", 0.1)
    words = [sys.executable, "-c", 'print(\'{"listening": "x:1"}\\n{"state": "s"}\')']
    for ends in (False, True):
        bridge = bridge_server.BridgeServer(Child(words, os.environ, print, takes_input=True))
        assert bridge.listen()
        messages = bridge.messages()
        assert next(messages) == {"state": "s"}
        if ends:
            bridge.end()
            assert list(messages) == []
            continue
        with pytest.raises(TableError, match="the bridge to CloudQuery has exited"):
            next(messages)


def test_the_loader_ends_with_java(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further sync would fail, too."""
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    (project.folder / "catalog.json").write_text(json.dumps({"streams": [ORDERS]}))
    (project.folder / "messages.jsonl").touch()
    session = {"session": 1, "folder": str(project.folder), "stale": [], "source": "shop"}
    bridge: Any = Bridge({**session, "rows": True}, {**session, "rows": True})

    def run_tables(*_: Any) -> Iterator[Outcome]:
        yield Outcome("orders", error=JavaEndedError("Spark's Java process exited"))

    monkeypatch.setattr(ingest, "run_tables", run_tables)
    serves = CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None))
    with pytest.raises(JavaEndedError):
        serves.run()
    assert bridge.errors == ["Spark's Java process exited."]


def test_the_group_of_a_sync_is_part_of_the_key(project: Project) -> None:
    """CloudQuery makes the group part of the key; otherwise, the table would have no key."""
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
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
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
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), outcomes.append)).run()
    assert bridge.errors == [None, None, None]
    assert project.rows(
        "select id, _cq_deleted, _cq_source_name from raw.orders order by _cq_batch, _cq_seq"
    ) == [(1, False, "shop"), (2, False, "shop"), (2, True, "shop")]


def synced(folder: Path, number: int, *data: dict[str, Any], key: bool = True) -> dict[str, Any]:
    """Returns a session of a sync that has written orders; in append mode, they have no key."""
    place = folder / f"sync{number}"
    place.mkdir()
    stream = ORDERS if key else {**ORDERS, "source_defined_primary_key": []}
    (place / "catalog.json").write_text(json.dumps({"streams": [stream]}))
    lines = [{"type": "RECORD", "record": {"stream": "orders", "data": one}} for one in data]
    (place / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"session": number, "folder": str(place), "stale": [], "source": "shop", "rows": True}


def test_a_table_that_fails_does_not_hide_others(project: Project) -> None:
    session = synced(project.folder, 1, {"id": 1, "note": "a"})
    catalog = Path(session["folder"], "catalog.json")
    wrong = {**ORDERS, "name": "_cq_syncs"}
    catalog.write_text(json.dumps({"streams": [ORDERS, wrong]}))
    bridge: Any = Bridge(session)
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    [error] = bridge.errors
    assert error is not None
    assert "names that start with _cq_ are reserved for the loader" in error
    shown = project.loader("status")
    assert "shop.orders" in [e["table"] for e in shown.events if e["event"] == "status"]


def test_a_source_cannot_take_over_another_sources_table(project: Project) -> None:
    """It can neither append rows nor delete stale ones. Table names are not used as paths."""
    sessions = []
    for number, (source, names) in enumerate(
        {
            "my.shop": ["orders", "../../x", "/etc/passwd", ".."],
            "evil": ["orders"],
            "my_shop": ["orders"],
        }.items()
    ):
        folder = project.folder / f"sync{number}"
        folder.mkdir()
        streams = [{**ORDERS, "name": name} for name in names]
        (folder / "catalog.json").write_text(json.dumps({"streams": streams}))
        data = {"id": 1, "note": source}
        lines = [{"type": "RECORD", "record": {"stream": name, "data": data}} for name in names]
        (folder / "messages.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        about = {"session": number, "folder": str(folder), "stale": names, "source": source}
        sessions.append({**about, "rows": True})
    bridge: Any = Bridge(*sessions)
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    well, *refused = bridge.errors
    assert well is None
    for error in refused:  # also if its name differs only in punctuation
        assert "was loaded by source my_shop_" in error
    assert len(refused) == 2
    assert project.rows("select note, _cq_generation from raw.orders") == [("my.shop", 1)]
    assert set(list_raw_tables(project.lake())[0]) == {"orders", "______x", "_etc_passwd", "__"}


def test_a_source_of_the_spec_keeps_its_name(project: Project) -> None:
    project.add("shop", "jdbc", ["x"], {"url": "jdbc:postgresql://127.0.0.1:1/x", "user": "u"})
    bridge: Any = Bridge(synced(project.folder, 1, {"id": 1, "note": "a"}))
    spec = load_spec(project.folder / "loader.yml")
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    [error] = bridge.errors
    assert error is not None
    assert "a source of the spec has the same name, shop" in error
    assert not project.lake().exists("orders")


def test_a_source_of_the_spec_keeps_its_cursors(project: Project) -> None:
    """The source loads into another schema, but stores its cursors in the one that is served."""
    state = {"connection": "@@plugins.lake.connection"}
    project.add("shop", "jdbc", ["x"], {"url": "jdbc:postgresql://127.0.0.1:1/x", "user": "u"})
    project.sources[0] |= {"destinations": ["other"], "backend_options": state}
    project.lakes["other"] = {"schema": f"other_{project.schema}"}
    for table, refused in (("_cq_state", True), ("_cq_state_shop", False)):
        state["table_name"] = table
        project.write()
        bridge: Any = Bridge(synced(project.folder, int(refused), {"id": 1, "note": "a"}))
        spec = load_spec(project.folder / "loader.yml")
        CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
        [error] = bridge.errors
        assert (error is not None) == refused
        assert not refused or "and stores its cursors in the same table" in str(error)


def test_other_commands_handle_pushed_tables(project: Project, warehouse: Path) -> None:
    """No spec has these sources; the commands find them in the raw tables."""
    project.write()
    for command in (("status",), ("compact",), ("codegen", "--output", "models")):
        [error] = project.loader(*command).errors
        assert "there is no source, and no program has pushed a table yet" in error
    states = [{"state": "shop", "rows": {"orders": [str(n), n]}} for n in range(1, 13)]
    sessions = [
        synced(project.folder, 1, {"id": 1, "note": "a"}, {"id": 2, "note": "a"}),
        synced(project.folder, 2, {"id": 2, "note": "b"}),
        # the newest batch is never compacted
        synced(project.folder, 3, {"id": 3, "note": "a"}, key=False),
    ]
    bridge: Any = Bridge(*sessions, *states)
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    tidied: list[Any] = []
    watch = Watch()
    CloudQueryIngest(
        bridge, Ingest(spec, project.spark, "lake", watch, lambda _: None, tidied.append)
    ).run()
    assert bridge.errors == [None, None, None]
    assert len(tidied) == 3

    [shown] = [e for e in project.loader("status").events if e["event"] == "status"]
    assert (shown["table"], shown["batch"], shown["rows_appended"]) == ("shop.orders", 3, 4)
    [listed] = [e for e in project.loader("state", "list").events if e["event"] == "state"]
    assert listed["table"] == "shop.orders"
    models = project.folder / "models"
    written = project.loader("codegen", "--output", str(models))
    assert written.code == 0, written.text
    assert "unique_key=['id']" in (models / "shop_orders_latest.sql").read_text()

    kept = project.loader("compact", "--keep-versions", "1")
    assert kept.code == 0, kept.text
    rows = project.rows("select id, note from raw.orders order by id")
    assert rows == [(1, "a"), (2, "b"), (3, "a")]
    assert project.rows("select min(version), max(version) from raw._cq_plugin_state") == [(3, 12)]
    [error] = project.loader("run").errors
    assert "there is no source" in error

    # the table of plugin states is damaged: pushed tables are shown, and it can be moved aside
    folder = warehouse / project.schema / "_cq_plugin_state/metadata"
    newest = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.write_bytes(newest.read_bytes()[:200])
    shown = project.loader("status")
    assert [e["table"] for e in shown.events if e["event"] == "status"] == ["shop.orders"]
    [warning] = project.loader("state", "rebuild").warnings
    assert warning.startswith(f"{project.schema}._cq_plugin_state: its metadata cannot be read")

    # a source of the spec with the same name and table replaces the pushed one
    project.add("shop", "jdbc", ["x"], {"url": "jdbc:postgresql://127.0.0.1:1/x", "user": "u"})
    shown = project.loader("status")
    names = [e["table"] for e in shown.events if e["event"] == "status"]
    assert names == ["shop.orders"], shown.text
