"""A state that all streams share is stored only if no table then misses records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from loader.connectors.cloudquery.bridge.records import build_streams
from loader.connectors.cloudquery.bridge.state_barrier import StateBarrier
from loader.connectors.singer import messages as singer
from loader.connectors.singer.catalog import configure_catalog, map_aliases, parse_catalog
from loader.connectors.subprocess.connector_state import ConnectorState, can_store_early
from loader.connectors.subprocess.json_schema import build_columns
from loader.connectors.subprocess.record_spool import Limits
from loader.connectors.subprocess.snapshot import ProgramSnapshot
from loader.errors import StateError, TableError
from loader.rows.window import Window
from loader.sources.interface import Progress, Request, SourceTable, TableRef
from loader.spec.options import ColumnSelection

Marks = dict[str, Mapping[str, Any] | None]


def shared(number: int, text: str = "") -> ConnectorState:
    """Returns a state of all streams."""
    return ConnectorState("singer", "STATE", True, number, json.dumps(text or number))


class Begun:
    """Begins to read a snapshot, and records its streams and the number of its states."""

    def __init__(
        self,
        folder: Path,
        marks: Marks,
        stored: Marks,
        all_: tuple[str, ...] = (),
        whole: str = "",
        key: tuple[str, ...] = ("id",),
    ) -> None:
        self.warnings: list[str] = []
        snapshot = ProgramSnapshot(
            "tap",
            "singer",
            Limits(250_000),
            folder,
            self._begin,
            lambda: None,
            all_,
        )
        known = {**marks, **stored}
        snapshot.use_marks(lambda name: [mark] if (mark := known.get(name)) else [])
        watch: Any = SimpleNamespace(
            warn=lambda table, text: self.warnings.append(f"{table}: {text}")
        )
        self.snapshot = snapshot
        self.in_pieces: set[Any] | None = None
        snapshot.begin(
            [_request(name, mark, name == whole, key) for name, mark in marks.items()], watch
        )

    def _begin(self, read: Any) -> Any:
        self.requested = {request.name for request in read.requests}
        self.in_pieces = {key for key, s in read.streams.items() if s.spool.limits is not None}
        self.number = read.number


def _request(name: str, mark: Any, whole: bool, key: tuple[str, ...]) -> Request:
    native = SimpleNamespace(key=name, columns=(), selection=None)
    ref = TableRef(name, native)
    table = SourceTable(ref, t.StructType(), progress=Progress.MARK)
    return Request(table, f"tap.{name}", mark, whole, None, key)


def _of(**numbers: int) -> Marks:
    return {name: shared(number).to_mark() for name, number in numbers.items()}


def test_states_are_numbered_beyond_those_of_every_table(tmp_path: Path) -> None:
    """A full refresh starts without a state, but its states are newer than a failed table's."""
    ahead = 1 << 60
    begun = Begun(tmp_path, {"a": None, "b": None}, _of(b=ahead), whole="b")
    assert begun.number == ahead
    begun = Begun(tmp_path, _of(a=3), _of(other=ahead), ("a", "other"))
    assert begun.number == ahead
    first, second = (Begun(tmp_path, {"a": None}, {}).number for _ in range(2))
    assert 0 < first < second


def test_a_run_that_starts_behind_another_table_stores_no_state_before_its_end(
    tmp_path: Path,
) -> None:
    """Its states are newer, but cover less than the older state that the other table keeps."""
    both = {"a", "b"}
    assert Begun(tmp_path, {"a": None, "b": None}, {}).in_pieces == both
    assert Begun(tmp_path, _of(a=7, b=7), {}).in_pieces == both
    same = {"a": shared(7, "x").to_mark(), "b": shared(9, "x").to_mark()}
    assert Begun(tmp_path, same, {}).in_pieces == both
    assert Begun(tmp_path, _of(a=7, b=9), {}).in_pieces == set()
    # a table that starts over, alone or with another; a table that is not in the run
    assert Begun(tmp_path, {**_of(a=7), "b": None}, {}).in_pieces == set()
    assert Begun(tmp_path, {"a": None}, _of(other=7), ("a", "other")).in_pieces == set()
    assert Begun(tmp_path, {"a": None, "b": None}, _of(b=9), whole="b").in_pieces == set()
    # states of single streams do not depend on each other
    own = ConnectorState("singer", "STREAM", False, 3, "1").to_mark()
    assert Begun(tmp_path, {"a": own}, _of(other=7), ("a", "other")).in_pieces == {"a"}


def test_a_state_that_cannot_be_used_fails_its_table_only(tmp_path: Path) -> None:
    """The state has another protocol, or is damaged; other tables are read without it."""
    foreign = {**shared(3).to_mark(), "protocol": "airbyte"}
    damaged = {**shared(3).to_mark(), "state": "{"}
    window: Any = SimpleNamespace(mark=None)
    for mark, in_pieces in ((foreign, {"b"}), (damaged, set())):
        begun = Begun(tmp_path, {"a": mark, "b": None}, {}, ("a", "b"))
        assert (begun.requested, begun.in_pieces) == ({"tap.b"}, in_pieces)
        table = _request("a", mark, False, ()).table
        with pytest.raises(StateError, match=r"table tap\.a: .*stored state cannot be read"):
            begun.snapshot.bounds(table, window)
        begun.snapshot.abandon(table)
        # a run that does not load that table, and one that loads nothing else
        assert Begun(tmp_path, {"b": None}, {"a": mark}, ("a", "b")).in_pieces == in_pieces
        assert Begun(tmp_path, {"a": mark}, {}).in_pieces is None


def test_resent_records_without_a_key_are_reported(tmp_path: Path) -> None:
    """Without a key, they cannot be recognised."""
    begun = Begun(tmp_path, _of(a=7, b=9), {}, key=())
    [reported] = begun.warnings
    assert reported.startswith("tap.b: another table resumes from an older state")
    assert "they are appended again: set primary_key" in reported
    assert Begun(tmp_path, _of(a=7, b=9), {}).warnings == []
    assert Begun(tmp_path, _of(a=7, b=7), {}, key=()).warnings == []


def test_states_that_can_be_stored_early() -> None:
    own = ConnectorState("airbyte", "STREAM", False, 3, "1")
    assert can_store_early([None, own], [own])
    assert not can_store_early([shared(2), own], [])
    assert not can_store_early([shared(2)], [shared(2)])


def test_children_of_incremental_tables_are_incremental() -> None:
    """They get only the rows of new parents, so they must not lose any if they fail."""

    def schema(name: str, parent: str = "", incremental: bool = False) -> pa.Schema:
        about = {"cq:table_name": name, "cq:table_depends_on": parent}
        if incremental:
            about["cq:extension:incremental"] = "true"
        return pa.schema([pa.field("id", pa.int64())], metadata=about)

    tables = [
        schema("lines", "orders"),
        schema("orders", "shops", incremental=True),
        schema("parts", "lines"),
        schema("shops"),
        schema("rooms", "shops"),
        schema("loop", "loop"),
        schema("lost", "nowhere"),
    ]
    found = {e["name"] for e in build_streams(tables) if "incremental" in e["supported_sync_modes"]}
    assert found == {"lines", "orders", "parts"}
    above = {e["name"]: e["cloudquery_ancestors"] for e in build_streams(tables)}
    assert above["parts"] == ["lines", "orders", "shops"]
    assert above["loop"] == above["lost"] == []
    assert all(e["source_defined_cursor"] == (e["name"] in found) for e in build_streams(tables))


CATALOG = {
    "streams": [
        {
            "tap_stream_id": f"{schema}-{name}",
            "stream": name,
            "schema": {"properties": {"id": {"type": "integer"}}},
            "metadata": [{"breadcrumb": [], "metadata": {"schema-name": schema}}],
        }
        for schema, name in (("public", "orders"), ("public", "users"), ("audit", "users"))
    ]
}


def test_the_streams_of_a_tap_have_ids_and_names() -> None:
    found = parse_catalog(CATALOG, "source tap", lambda *_: None)
    assert (found[0].key, found[0].name) == ("public-orders", "orders")
    called = map_aliases(CATALOG)
    assert called["orders"] == called["public_orders"] == called["public-orders"] == "public-orders"
    assert called["audit-users"] == "audit-users"
    assert "users" not in called  # two streams have that name
    assert map_aliases({"streams": [{"stream": "a"}, {"tap_stream_id": "b"}]}) == {
        "a": "a",
        "b": "b",
    }
    # a name that is also another stream's id is no alias: records would go into the wrong table
    twice = [
        {"tap_stream_id": "orders", "stream": "old_orders"},
        {"tap_stream_id": "db-orders", "stream": "orders"},
    ]
    assert map_aliases({"streams": twice}) == {"old_orders": "orders", "db-orders": "db-orders"}

    native = found[0]
    table = SourceTable(TableRef("orders", native), t.StructType(), progress=Progress.MARK)
    asked = configure_catalog(CATALOG, [Request(table, "tap.orders", None, False, None, ())])
    assert [stream["selected"] for stream in asked["streams"]] == [True, False, False]


def test_the_fields_of_a_tables_columns_are_selected() -> None:
    """A tap does not send fields that are `available` unless they are selected."""

    def part(name: str, inclusion: str, **more: Any) -> dict[str, Any]:
        return {
            "breadcrumb": ["properties", name],
            "metadata": {"inclusion": inclusion, **more},
        }

    names = ("id", "text", "off", "plain", "secret", "blob")
    stream = {
        "tap_stream_id": "a",
        "stream": "a",
        "schema": {"properties": {name: {"type": "string"} for name in names}},
        "metadata": [
            part("id", "automatic"),
            part("text", "available"),
            part("off", "available", **{"selected-by-default": False}),
            part("secret", "available"),
            part("blob", "unsupported"),
        ],
    }
    [entry] = parse_catalog({"streams": [stream]}, "source tap", lambda *_: None)
    selection = ColumnSelection(exclude=("secret",))
    native = replace(entry, columns=build_columns(entry.schema, {}, selection), selection=selection)
    table = SourceTable(TableRef("a", native), t.StructType(), progress=Progress.MARK)
    asked = configure_catalog(
        {"streams": [stream]}, [Request(table, "tap.a", None, False, None, ())]
    )
    chosen = {
        part["breadcrumb"][1]: part["metadata"].get("selected")
        for part in asked["streams"][0]["metadata"]
        if part["breadcrumb"]
    }
    assert chosen == {
        "id": True,
        "text": True,
        "off": True,
        "plain": True,
        "secret": False,
        "blob": None,
    }


def test_the_state_that_a_tap_gets() -> None:
    called = map_aliases(CATALOG)
    orders, users = "public-orders", "public-users"
    warned: list[str] = []

    def given(orders_at: ConnectorState | None, users_at: ConnectorState | None) -> Any:
        return singer.build_state_input({orders: orders_at, users: users_at}, called, warned.append)

    def state(number: int, **value: Any) -> ConnectorState:
        return ConnectorState("singer", "STATE", True, number, json.dumps(value))

    marks = {orders: {"at": 5}, users: {"at": 6}}
    both = state(3, bookmarks=marks, currently_syncing=users)
    assert given(None, None) is None
    assert given(both, state(4)) == both.value
    # one stream starts over: its bookmark is removed, and so is `currently_syncing`
    assert given(None, both) == {"bookmarks": {users: {"at": 6}}}
    assert given(state(3, bookmarks={"orders": 5, users: 6}), None) == {"bookmarks": {"orders": 5}}
    assert warned == []
    # if its bookmark cannot be identified, all streams start over
    for value in (
        {"at": 5},
        {"bookmarks": {"our/repository": {"orders": 5}}},
        {"bookmarks": marks, "log": 7},
    ):
        assert given(None, state(3, **value)) is None
        assert "all records are read again" in warned.pop()


def test_a_table_that_was_not_requested_fails_with_a_remedy(tmp_path: Path) -> None:
    """The run could not read the table's state when it made its requests, but could later."""
    snapshot = Begun(tmp_path, {"a": None}, {}).snapshot
    snapshot._reader = cast(Any, object())
    with pytest.raises(TableError, match=r"table tap\.b: .* not requested .* run again"):
        snapshot.bounds(_request("b", None, False, ()).table, Window(None))


def test_a_state_waits_for_all_streams_that_began_before_it() -> None:
    """This includes a stream that has sent nothing yet: it may have the rows."""
    waiting = StateBarrier()

    def free() -> list[str]:
        return [held.table for held in waiting.release()]

    def hold(table: str) -> None:
        waiting.note_read("plugin", table)
        assert waiting.hold_back("plugin", table, None, 0)

    rows, state = waiting.begin_stream(), waiting.begin_stream()
    waiting.note_state(state)
    hold("first")
    assert free() == []
    waiting.note_rows(rows)
    late = waiting.begin_stream()
    assert free() == []
    waiting.end_stream(rows)
    assert free() == ["first"]

    # a stream that fails before its first message may have had the rows
    hold("second")
    assert waiting.end_stream(late, failed=True) == ["second"]
    assert free() == []
    assert not waiting.hold_back("plugin", "second", None, 0)
    # the barrier does not wait for a stream with only states, but for one with rows and states
    both = waiting.begin_stream()
    hold("third")
    waiting.note_state(both)
    assert free() == ["third"]
    waiting.note_rows(both)
    waiting.note_state(both)
    hold("fourth")
    assert free() == []
    waiting.end_stream(both)
    assert free() == ["fourth"]
