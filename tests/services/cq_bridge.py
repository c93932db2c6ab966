"""Tests of the CloudQuery bridge, for the environment that has CloudQuery's packages.

PYTHONPATH=loader python cq_bridge.py
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from cloudquery.plugin_v3 import arrow, plugin_pb2
from connectors.cloudquery.bridge.destination import Destination
from connectors.cloudquery.bridge.records import convert_records
from connectors.cloudquery.bridge.source_sync import sync_tables

STATE = pa.schema([("key", pa.string()), ("value", pa.string())], {"cq:table_name": "cq_state"})
ORDERS = pa.schema([("id", pa.int64())], {"cq:table_name": "orders"})
Write = plugin_pb2.Write


class Context:
    """The context of a call whose client may disconnect.

    Args:
        peer: the client's connection.
    """

    def __init__(self, stays: Callable[[], bool] = lambda: True, peer: str = "") -> None:
        self.is_active = stays
        self.peer = lambda: peer


def inserted(schema: pa.Schema, *row: Any) -> Any:
    """Returns a message with one row."""
    batch = pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=schema)
    return Write.Request(insert=Write.MessageInsert(record=arrow.record_to_bytes(batch)))


def stale() -> Any:
    """Returns a message that deletes the rows that a sync has not sent."""
    return Write.Request(delete=Write.MessageDeleteStale(table_name="orders", source_name="shop"))


class Served:
    """A destination for which this program acts as the loader.

    Args:
        read: whether a sync has read the state.
    """

    def __init__(self, read: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.destination = Destination(self.folder)
        self.destination.begin({})
        self.calls: list[threading.Thread] = []
        if read:
            self.read()

    def write(self, requests: Iterator[Any], context: Context | None = None) -> None:
        """Starts a call in a thread."""

        def call() -> None:
            with contextlib.suppress(Exception):
                self.destination.Write(requests, context or Context())

        self.calls.append(threading.Thread(target=call, daemon=True))
        self.calls[-1].start()

    def state(self, value: str, peer: str = "") -> None:
        """Writes a plugin's state."""
        self.destination.Write(iter([inserted(STATE, "orders", value)]), Context(peer=peer))

    def read(self, peer: str = "") -> None:
        """Reads the state, as each sync does first."""
        request = plugin_pb2.Read.Request(table=arrow.schema_to_bytes(STATE))
        list(self.destination.Read(request, Context(peer=peer)))


def waited(ready: Callable[[], Any]) -> Any:
    """Waits until a function returns a true value; returns the value."""
    before = time.monotonic() + 10
    while not (found := ready()):
        assert time.monotonic() < before, "it does not come"
        time.sleep(0.005)
    return found


def reported(output: io.StringIO, kind: str) -> list[dict[str, Any]]:
    """Returns the messages that the loader received."""
    return [m for m in map(json.loads, output.getvalue().splitlines()) if kind in m]


def opened(go: threading.Event, *messages: Any) -> Iterator[Any]:
    """Yields messages once the event is set."""
    go.wait(10)
    yield from messages


def state_waits_for_a_stream_that_has_said_nothing(output: io.StringIO) -> None:
    """The rows of the open stream may be those that the state covers."""
    served, go = Served(), threading.Event()
    served.write(opened(go, inserted(ORDERS, 1)))
    waited(lambda: served.destination._barrier._open)
    served.state("1")
    assert not reported(output, "state"), "the state is stored before the rows"
    go.set()
    [session] = waited(lambda: reported(output, "session"))
    assert session["rows"]
    assert not reported(output, "state")
    served.destination.end_session(session["session"], None)
    assert [m["rows"] for m in reported(output, "state")] == [{"orders": ["1", 0]}]
    served.destination.confirm_state(session["session"])
    served.calls[0].join(10)
    assert list(served.folder.iterdir()) == []


def a_client_that_dies_is_no_end(output: io.StringIO) -> None:
    """A stream is incomplete if its client disconnects while it sends or rows are appended."""
    served, go = Served(), threading.Event()
    served.write(opened(go, inserted(ORDERS, 1)), Context(lambda: False))
    waited(lambda: served.destination._barrier._open)
    served.state("1")
    go.set()
    served.calls[0].join(10)
    assert not reported(output, "session")
    assert not reported(output, "state")
    assert list(served.folder.iterdir()) == []

    alive = [True]
    served.read()  # the sync begins again
    served.write(iter([inserted(ORDERS, 1)]), Context(lambda: alive[0]))
    [session] = waited(lambda: reported(output, "session"))
    served.state("2")
    alive[0] = False
    served.destination.end_session(session["session"], None)
    assert not reported(output, "state")


def rows_of_a_sync_that_has_gone_are_not_kept_for_later(output: io.StringIO) -> None:
    """The loader may wait for a table; meanwhile, the next sync would send the same rows again."""
    served, alive = Served(), [True]
    served.write(iter([inserted(ORDERS, 1)]), Context(lambda: alive[0]))
    [session] = waited(lambda: reported(output, "session"))
    rows = Path(session["folder"], "messages.jsonl")
    time.sleep(1.5)
    assert rows.exists()
    alive[0] = False
    waited(lambda: not rows.exists())
    served.destination.end_session(session["session"], "another run holds this table")
    served.destination.confirm_state(session["session"])
    served.calls[0].join(10)


def state_of_a_sync_that_began_before_the_server_is_dropped(output: io.StringIO) -> None:
    """The rows of such a sync may have been lost with the previous server."""
    served = Served(read=False)
    served.state("1")
    assert not reported(output, "state")
    assert reported(output, "dropped")
    served.read()
    served.state("2")
    assert [m["rows"] for m in reported(output, "state")] == [{"orders": ["2", 0]}]


def state_after_a_stream_that_failed_is_dropped(output: io.StringIO) -> None:
    """The state may cover the lost rows, until the sync begins again."""

    def kept() -> list[Any]:
        return [m["rows"]["orders"][0] for m in reported(output, "state")]

    served, go = Served(), threading.Event()
    served.read("shop")
    served.read("other")
    served.write(opened(go, inserted(ORDERS, 1)), Context(lambda: False))
    go.set()
    served.calls[0].join(10)
    for peer in ("shop", "other", "python"):  # it is unknown which client's stream failed
        served.state("1", peer)
    assert kept() == []
    assert reported(output, "dropped") == [{"dropped": "cq_state"}] * 3

    # the retry's state is stored, while the state of the first sync is still dropped
    served.read("retried")
    served.state("1", "shop")
    assert kept() == []
    served.state("2", "retried")
    served.state("3", "python")  # each of its calls has a connection of its own
    assert kept() == ["2", "3"]

    # a client that connects with the same port counts as new once it has read the state
    served.read("shop")
    served.state("4", "shop")
    assert kept() == ["2", "3", "4"]

    # the loader has failed to append
    served.write(iter([inserted(ORDERS, 1)]))
    [session] = waited(lambda: reported(output, "session"))
    served.destination.end_session(session["session"], "no")
    served.state("5", "shop")
    served.destination.confirm_state(session["session"])
    assert kept() == ["2", "3", "4"]


def a_stream_of_state_that_fails_is_no_loss(output: io.StringIO) -> None:
    """It contained no rows, so later state is still stored."""
    served = Served()

    def broken() -> Iterator[Any]:
        yield inserted(STATE, "orders", "1")
        raise ConnectionAbortedError

    served.write(broken())
    served.calls[0].join(10)
    served.state("2")
    assert [m["rows"]["orders"][0] for m in reported(output, "state")] == ["1", "2"]


def a_sync_without_rows_says_whose_it_is(output: io.StringIO) -> None:
    """The message that deletes stale rows names the source."""
    served = Served()
    served.write(iter([stale()]))
    [session] = waited(lambda: reported(output, "session"))
    assert (session["source"], session["stale"], session["rows"]) == ("shop", ["orders"], False)


class Plugin:
    """A plugin that answers a sync."""

    def __init__(self, *responses: Any) -> None:
        self._responses = responses

    def Sync(self, _request: Any) -> Iterator[Any]:
        """Yields the responses."""
        yield from self._responses


def what_comes_after_an_error_is_not_trusted(output: io.StringIO) -> None:
    """A checkpoint may cover rows that failed; only tables without an error are complete."""
    sync = plugin_pb2.Sync
    rows = pa.RecordBatch.from_arrays([pa.array(["orders"]), pa.array(["1"])], schema=STATE)
    checkpoint = sync.Response(
        checkpoint=sync.MessageCheckpoint(record=arrow.record_to_bytes(rows))
    )
    error = sync.Response(error=sync.MessageError(table_name="lines", error="no"))
    streams = [
        {"stream": {"name": name, "cloudquery_ancestors": above}, "sync_mode": mode}
        for name, above, mode in (
            ("orders", [], "incremental"),
            ("lines", [], "full_refresh"),
            ("parts", ["lines"], "full_refresh"),
            ("kinds", [], "full_refresh"),
        )
    ]
    code = sync_tables(Plugin(checkpoint, error, checkpoint), {}, {"streams": streams}, {})
    assert code == 1
    assert len(reported(output, "state")) == 1
    ended = [
        m["trace"]["stream_status"]
        for m in reported(output, "trace")
        if "stream_status" in m["trace"]
    ]
    assert ended == [{"stream_descriptor": {"name": "kinds"}, "status": "COMPLETE"}]


def a_version_that_the_lake_cannot_store_is_refused(output: io.StringIO) -> None:
    """Otherwise, the loader would fail to store it and exit."""

    class Refused(Exception):
        pass

    class Refusing(Context):
        def abort(self, _code: Any, text: str) -> None:
            raise Refused(text)

    schema = pa.schema([*STATE, ("version", pa.uint64())], STATE.metadata)
    served = Served()
    for version in (2**63 - 1, 2**63):
        batch = [pa.array(["orders"]), pa.array(["1"]), pa.array([version], pa.uint64())]
        insert = Write.MessageInsert(
            record=arrow.record_to_bytes(pa.RecordBatch.from_arrays(batch, schema=schema))
        )
        with contextlib.suppress(Refused):
            served.destination.Write(iter([Write.Request(insert=insert)]), Refusing())
    assert [m["rows"] for m in reported(output, "state")] == [{"orders": ["1", 2**63 - 1]}]


def values_keep_their_digits(_output: io.StringIO) -> None:
    """The bridge passes on all digits of times and JSON numbers; only the loader truncates."""
    nanos, json_ = pa.timestamp("ns", "UTC"), {"ARROW:extension:name": "json"}
    schema = pa.schema([pa.field("at", nanos), pa.field("doc", pa.binary(), metadata=json_)])
    docs = [b'{"n": 12345678901234567890.123456789}', b'{"n": 1e400}', b'{"n": 1.50}', None]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([-1500, -1, 1_000, None], pa.int64()).cast(nanos),
            pa.array(docs, pa.binary()),
        ],
        schema=schema,
    )
    assert [(row["at"], row["doc"]) for row in convert_records(batch)] == [
        ("1969-12-31T23:59:59.999998500+00:00", '{"n": 12345678901234567890.123456789}'),
        ("1969-12-31T23:59:59.999999999+00:00", '{"n": 1e400}'),
        ("1970-01-01T00:00:00.000001+00:00", {"n": 1.5}),
        (None, None),
    ]


def extensions_are_text_or_json_at_any_depth(_output: io.StringIO) -> None:
    """Go's SDK sends a storage type, with the extension's name in the field's metadata."""

    def of(kind: str, name: str = "item") -> pa.Field:
        return pa.field(name, pa.binary(), metadata={"ARROW:extension:name": kind})

    schema = pa.schema(
        [
            of("mac", "mac"),
            pa.field("macs", pa.list_(of("mac"))),
            pa.field("docs", pa.large_list(of("json"))),
            pa.field("part", pa.struct([of("uuid", "id"), pa.field("raw", pa.binary())])),
            pa.field("named", pa.map_(pa.string(), of("json", "value"))),
        ]
    )
    mac, key = bytes.fromhex("001122334455"), bytes(range(16))
    row = [mac, [mac, None], [b'{"a": 1}', None], {"id": key, "raw": b"x"}, [("k", b"[2]")]]
    columns = [pa.array([v, None], f.type) for v, f in zip(row, schema, strict=True)]
    [found, empty] = convert_records(pa.RecordBatch.from_arrays(columns, schema=schema))
    assert found == {
        "mac": "00:11:22:33:44:55",
        "macs": ["00:11:22:33:44:55", None],
        "docs": [{"a": 1}, None],
        "part": {"id": "00010203-0405-0607-0809-0a0b0c0d0e0f", "raw": "eA=="},
        "named": [["k", [2]]],
    }
    assert set(empty.values()) == {None}


def a_full_disk_at_the_end_of_a_stream_breaks_it_off(output: io.StringIO) -> None:
    """If the stream did not fail, all later state would wait for it."""
    served, go = Served(), threading.Event()
    served.write(opened(go, inserted(ORDERS, 1)))
    waited(lambda: served.destination._barrier._open)
    before, Path.touch = Path.touch, full  # type: ignore[method-assign]
    try:
        go.set()
        served.calls[0].join(10)
    finally:
        Path.touch = before  # type: ignore[method-assign]
    assert not reported(output, "session")
    assert list(served.folder.iterdir()) == []
    assert not served.destination._barrier._open
    served.read()
    served.state("2")
    assert [m["rows"] for m in reported(output, "state")] == [{"orders": ["2", 0]}]


def full(*_: Any, **__: Any) -> None:
    """Fails like a full disk."""
    raise OSError(28, "No space left on device")


def an_address_has_one_server(output: io.StringIO) -> None:
    """A second server is refused: each of two would receive some of a sync's streams."""
    folder = Path(tempfile.mkdtemp())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bridge = [
        sys.executable,
        "-c",
        "import json, sys; from connectors.cloudquery.bridge.listener import serve; ",
    ]
    bridge[-1] += "sys.exit(serve(json.loads(sys.argv[1])))"

    def begun(address: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        config = json.dumps({"folder": str(folder), "address": address})
        found = subprocess.Popen(
            [*bridge, config], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert found.stdout is not None
        return found, json.loads(found.stdout.readline())

    for address in (f"127.0.0.1:{port}", f"unix://{folder}/socket"):
        first, said = begun(address)
        assert said == {"listening": address}
        for same in {address, address.replace("127.0.0.1", "localhost")}:
            second, said = begun(same)
            assert "is in use" in said.get("failed", ""), said
            second.communicate()
            assert second.returncode == 1
        first.communicate()
        assert first.returncode == 0
    for address in ("localhost", "localhost:99999", "localhost:http"):
        wrong, said = begun(address)
        wrong.communicate()
        assert "failed" in said, address


for check in (
    an_address_has_one_server,
    extensions_are_text_or_json_at_any_depth,
    a_full_disk_at_the_end_of_a_stream_breaks_it_off,
    values_keep_their_digits,
    a_version_that_the_lake_cannot_store_is_refused,
    state_waits_for_a_stream_that_has_said_nothing,
    a_client_that_dies_is_no_end,
    rows_of_a_sync_that_has_gone_are_not_kept_for_later,
    state_of_a_sync_that_began_before_the_server_is_dropped,
    state_after_a_stream_that_failed_is_dropped,
    a_stream_of_state_that_fails_is_no_loss,
    a_sync_without_rows_says_whose_it_is,
    what_comes_after_an_error_is_not_trusted,
):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        check(said)
