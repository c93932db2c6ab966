"""Attacks on the CloudQuery bridge, for the environment that has CloudQuery's packages.

PYTHONPATH=loader python cq_hostile.py messages|server
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
from cloudquery.plugin_v3 import arrow, plugin_pb2, plugin_pb2_grpc
from connectors.cloudquery.bridge.arrow_input import OverBudgetError
from connectors.cloudquery.bridge.destination import Destination
from connectors.cloudquery.bridge.records import convert_records, parse_where_clause
from connectors.cloudquery.bridge.source_sync import sync_tables
from connectors.cloudquery.bridge.state_backend import StateBackend, serve_states

try:
    from connectors.cloudquery.bridge.arrow_input import MalformedError, read_record
except ImportError:  # in versions without checks
    MalformedError, read_record = ValueError, arrow.new_record_from_bytes

TABLE = {"cq:table_name": "orders"}
Write = plugin_pb2.Write


def encoded(batch: pa.RecordBatch, **options: Any) -> bytes:
    """Returns a batch as a message."""
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batch.schema, options=settings) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def batch(**columns: Any) -> pa.RecordBatch:
    """Returns rows of the table orders."""
    found = pa.RecordBatch.from_pydict(columns)
    return found.replace_schema_metadata(TABLE)


def outcome(data: bytes) -> list[dict[str, Any]] | str:
    """Returns the rows of a message, or why it is refused."""
    try:
        return list(convert_records(read_record(data)))
    except MalformedError as error:
        return str(error)


def kinds() -> dict[str, pa.RecordBatch]:
    """Returns batches of all kinds of columns."""
    text = ["first value", None, "", "another value é"]
    return {
        "texts": batch(
            a=pa.array(text), b=pa.array(text, pa.large_string()), c=[b"\0\1", b"", None, b"x"]
        ),
        "numbers": batch(
            a=[1, None, 3],
            b=pa.array([1.5, None, 2.5]),
            c=pa.array([True, None, False]),
            d=pa.array([1, 2, None], pa.timestamp("us", "UTC")),
            e=pa.array([1, 2, None], pa.date32()),
        ),
        "nested": batch(
            a=pa.array([["x", None], None, ["yy"]]),
            b=pa.array([{"p": 1, "q": "z"}, None, {"p": None, "q": "w"}]),
            c=pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            d=pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        ),
    }


def texts(value: Any) -> Iterator[str]:
    """Yields all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def altered_offsets() -> None:
    """A message contains the offsets of texts, which may point outside of the message."""
    data = encoded(batch(a=["a" * 24, "b" * 24]))
    offsets = struct.pack("<iii", 0, 24, 48)
    assert data.count(offsets) == 1
    for begin, middle, end in ((0, 24, 4096), (0, 24, 1 << 30), (0, 4096, 48), (-4096, 24, 48)):
        found = outcome(data.replace(offsets, struct.pack("<iii", begin, middle, end)))
        assert isinstance(found, str), f"foreign memory: {str(found)[:80]}"
        assert "of the table orders" in found, found


def wrong_lengths() -> None:
    """A message contains row counts and buffer lengths, which may be wrong."""
    data = encoded(batch(a=list(range(100, 108))))
    for number in (8, 64):  # the rows; the bytes of their values
        word = struct.pack("<q", number)
        at = data.find(word)
        assert at >= 0
        while at >= 0:
            for wrong in (-1, 1 << 20, 1 << 62):
                changed = data[:at] + struct.pack("<q", wrong) + data[at + 8 :]
                found = outcome(changed)
                if not isinstance(found, str):  # e.g. the length of the body, which is ignored
                    assert {row["a"] for row in found} <= set(range(100, 108)), found[:20]
            at = data.find(word, at + 1)


def dictionaries() -> None:
    """Dictionary indices may be out of range, and few bytes may stand for many."""
    column = pa.array(["x", "y", "x", "y"]).dictionary_encode()
    data = encoded(batch(a=column))
    indices = struct.pack("<iiii", 0, 1, 0, 1)
    assert indices in data
    for changed in (data, data.replace(indices, struct.pack("<iiii", 0, 1 << 20, 0, 1))):
        assert "dictionary" in outcome(changed), outcome(changed)
    for kind in (pa.string_view(), pa.run_end_encoded(pa.int32(), pa.string())):
        assert "CloudQuery does not use" in outcome(encoded(batch(a=pa.array(["x", "x"], kind))))


def cut_messages() -> None:
    """A message that is cut off anywhere is refused or has all its rows."""
    for rows in kinds().values():
        data = encoded(rows)
        for length in range(0, len(data), 7):
            found = outcome(data[:length])
            assert isinstance(found, str) or len(found) == rows.num_rows
    twice = io.BytesIO()
    with pa.ipc.new_stream(twice, kinds()["texts"].schema) as writer:
        writer.write_batch(kinds()["texts"])
        writer.write_batch(kinds()["texts"])
    assert "not one record batch" in outcome(twice.getvalue()), "rows are lost"


def flipped_bytes() -> None:
    """A changed byte is detected or changes a value; it never reveals foreign memory."""
    chance = random.Random(48)
    read_rows = 0
    for name, rows in kinds().items():
        for options in ({}, {"compression": "zstd"}, {"compression": "lz4"}):
            data = encoded(rows, **options)
            for _ in range(700):
                changed = bytearray(data)
                for _ in range(chance.choice((1, 1, 2, 8))):
                    changed[chance.randrange(len(data))] = chance.randrange(256)
                found = outcome(bytes(changed))
                if isinstance(found, str):
                    continue
                read_rows += 1
                assert len(found) <= 4
                if name == "texts" and not options:
                    for row in found:
                        for text in texts({k: v for k, v in row.items() if k != "c"}):
                            assert text.encode() in bytes(changed), text
    assert read_rows > 100


def bombs() -> None:
    """Small messages that would expand to many bytes are refused in time."""
    long = batch(a=["a" * 110_000_000])
    attacks = {
        "decompressed": encoded(long, compression="zstd"),
        "values": encoded(batch(a=pa.nulls(10**9))),
        "CloudQuery does not use": encoded(
            batch(a=pa.DictionaryArray.from_arrays(pa.array([0] * 9, pa.int8()), ["x" * 10_000]))
        ),
    }
    del long
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for word, data in attacks.items():
        assert len(data) < 20_000
        found = outcome(data)
        assert word in found, str(found)[:200]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000, f"{grown:,} KB"


def schemas_that_lose_a_column() -> None:
    """Columns with the same name and unreadable values are refused; deep JSON is no error."""
    two = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert "the same name" in outcome(encoded(two.replace_schema_metadata(TABLE)))
    late = batch(a=pa.array([2**60], pa.timestamp("s")))
    assert "of the table orders cannot be read" in outcome(encoded(late))
    deep = pa.array([b"[" * 100_000], pa.binary())
    field = pa.field("a", pa.binary(), metadata={"ARROW:extension:name": "json"})
    found = pa.RecordBatch.from_arrays([deep], schema=pa.schema([field], TABLE))
    assert isinstance(outcome(encoded(found)), list)


def where_clauses_that_multiply() -> None:
    """Each group of ten predicates makes ten times as many alternatives."""
    value = encoded(pa.RecordBatch.from_pydict({"a": [1]}))
    groups = [
        plugin_pb2.PredicatesGroup(
            grouping_type="OR",
            predicates=[
                plugin_pb2.Predicate(operator="EQ", column=f"c{group}_{n}", record=value)
                for n in range(10)
            ],
        )
        for group in range(9)
    ]
    with contextlib.suppress(MalformedError):
        parse_where_clause(groups)
        raise AssertionError("10 to the power of 9 alternatives")


def a_disk_that_is_nearly_full() -> None:
    """The bridge leaves half of the free space to other programs."""

    class Refused(Exception):
        pass

    class Context:
        cancel = peer = staticmethod(lambda: "")
        is_active = staticmethod(lambda: True)

        def abort(self, code: Any, text: str) -> None:
            raise Refused(code, text)

    folder = Path(tempfile.mkdtemp())
    destination = Destination(folder)
    destination.begin({})
    before = shutil.disk_usage
    shutil.disk_usage = lambda _: before("/")._replace(free=10_000)  # type: ignore[assignment]
    try:
        with contextlib.suppress(Refused):
            destination.Write(iter([insert(encoded(batch(a=["x" * 5_000])))]), Context())
            raise AssertionError("it is filled")
    finally:
        shutil.disk_usage = before
    assert list(folder.iterdir()) == []


class Plugin:
    """A plugin that answers a sync."""

    def __init__(self, *responses: Any) -> None:
        self._responses = responses

    def Sync(self, request: Any) -> Iterator[Any]:
        """Yields the responses."""
        yield from self._responses


def one_table_fails() -> None:
    """A plugin's malformed message is an error of its table; other tables are complete."""
    sync = plugin_pb2.Sync
    good = batch(a=[1]).replace_schema_metadata({"cq:table_name": "kinds"})
    bad = encoded(batch(a=["a" * 24])).replace(struct.pack("<ii", 0, 24), b"\0\0\0\0\0\0\0\1")
    inserts = [
        sync.Response(insert=sync.MessageInsert(record=data)) for data in (bad, encoded(good))
    ]
    streams = [
        {"stream": {"name": name}, "sync_mode": "full_refresh"} for name in ("orders", "kinds")
    ]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert sync_tables(Plugin(*inserts), {}, {"streams": streams}, {}) == 1
    reported = [json.loads(line) for line in said.getvalue().splitlines()]
    [error] = [
        m["trace"]["error"]
        for m in reported
        if m["type"] == "TRACE" and "stream_descriptor" in m["trace"].get("error", {})
    ]
    assert error["stream_descriptor"] == {"name": "orders"}
    assert "a message of the table orders cannot be read" in error["message"]
    assert [m["record"]["stream"] for m in reported if m["type"] == "RECORD"] == ["kinds"]
    [status] = [
        m["trace"]["stream_status"] for m in reported if "stream_status" in m.get("trace", {})
    ]
    assert status["stream_descriptor"] == {"name": "kinds"}


def nobody_else_reads_a_plugins_state() -> None:
    """All users can connect to the state backend's port, but they do not know its table's name."""
    states = StateBackend({"orders": ["secret", 1]})
    server, address = serve_states(states)
    with grpc.insecure_channel(address) as channel:
        stub = plugin_pb2_grpc.PluginStub(channel)
        columns = [("key", pa.string()), ("value", pa.string())]
        for name, is_known in (("cq_state", False), (getattr(states, "name", "x"), True)):
            schema = pa.schema(columns, {"cq:table_name": name})
            request = plugin_pb2.Read.Request(table=arrow.schema_to_bytes(schema))
            rows = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], schema=schema)
            insert = Write.Request(insert=Write.MessageInsert(record=encoded(rows)))
            try:
                [found] = stub.Read(request)
                stub.Write(iter([insert]))
            except grpc.RpcError as error:
                code = error.code()
            else:
                code = grpc.StatusCode.OK
            assert is_known == (code == grpc.StatusCode.OK), code
            if not is_known:
                continue
            assert read_record(found.record).column("value").to_pylist() == ["secret"]
    server.stop(None)
    assert set(states.value()) == {"orders", "a"}


def a_plugins_own_state_of_any_size() -> None:
    """State in memory is limited to 64 MiB, whether it is written or comes with a checkpoint."""
    names = [f"{n}" for n in range(100_000)]
    for through in ("write", "checkpoint"):
        states = StateBackend({})
        server, address = serve_states(states)
        refused = None
        with grpc.insecure_channel(address) as channel:
            stub = plugin_pb2_grpc.PluginStub(channel)
            for part in range(5):
                columns = {"key": [f"{part}.{name}" for name in names], "value": names}
                rows = pa.RecordBatch.from_pydict(columns)
                rows = rows.replace_schema_metadata({"cq:table_name": states.name})
                try:
                    if through == "write":
                        insert = Write.MessageInsert(record=encoded(rows))
                        stub.Write(iter([Write.Request(insert=insert)]))
                    else:
                        states.apply_checkpoint(rows)
                except (grpc.RpcError, OverBudgetError) as error:
                    refused = error.details() if isinstance(error, grpc.RpcError) else str(error)
                    break
        server.stop(None)
        assert "exceed 64 MiB" in str(refused), (through, refused)
        assert 100_000 <= len(states.value()) < 500_000


class Server:
    """A serving bridge, with a loader that accepts everything."""

    def __init__(self, silence: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.socket = self.folder / "serve.sock"
        work = self.folder / "work"
        work.mkdir(0o700)
        config = {"folder": str(work), "address": f"unix:{self.socket}", "idle_timeout": silence}
        code = "import json, sys; from connectors.cloudquery.bridge.listener import serve; "
        code += "sys.exit(serve(json.loads(sys.argv[1])))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.reported: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        assert "listening" in self.process.stdout.readline()
        self._answer({"states": {}})
        threading.Thread(target=self._hear, daemon=True).start()

    def _answer(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self.reported.append(message)
            if "session" in message:
                self._answer({"session": message["session"], "error": None})
            elif "settled" in message:
                self._answer(message)

    def client(self) -> Any:
        """Returns a client with a connection of its own."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 1 << 24),
        ]
        channel = grpc.insecure_channel(f"unix:{self.socket}", options=options)
        return plugin_pb2_grpc.PluginStub(channel)

    def memory(self) -> int:
        """Returns the server's peak memory in KB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    def close(self) -> None:
        """Stops the server."""
        self.process.communicate()
        assert self.process.returncode == 0
        assert not self.socket.exists()


def write(client: Any, *requests: Any) -> tuple[Any, str]:
    """Writes a stream; returns the status code and its details."""
    try:
        client.Write(iter(requests), timeout=20)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def insert(data: bytes) -> Any:
    """Returns a message with rows."""
    return Write.Request(insert=Write.MessageInsert(record=data))


def table(name: str, *columns: str) -> Any:
    """Returns a message that creates a table."""
    schema = pa.schema([(c, pa.string()) for c in columns], {"cq:table_name": name})
    return Write.Request(
        migrate_table=Write.MessageMigrateTable(table=arrow.schema_to_bytes(schema))
    )


def is_well(server: Server) -> bool:
    """Returns whether a harmless sync succeeds."""
    return write(server.client(), insert(encoded(batch(a=[1]))))[0] == grpc.StatusCode.OK


def only_its_owner_connects(server: Server) -> None:
    """For any umask, other users of the machine cannot connect to the socket."""
    found = server.socket.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    if os.getuid() != 0:
        return
    server.folder.chmod(0o755)
    code = "import os, socket, sys; os.setgid(65534); os.setuid(65534); "
    code += "socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    words = [sys.executable, "-I", "-S", "-c", code, str(server.socket)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "PermissionError" in ended.stderr, ended.stderr


def malformed_rows_are_one_streams_error(server: Server) -> None:
    """The sync receives an error that names the table."""
    good = encoded(batch(a=["a" * 24]))
    bad = good.replace(struct.pack("<ii", 0, 24), struct.pack("<ii", 0, 1 << 24))
    code, text = write(server.client(), insert(good), insert(bad))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, text)
    assert "of the table orders" in text
    bomb = encoded(batch(a=["a" * 110_000_000]), compression="zstd")
    code, text = write(server.client(), insert(bomb))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, text)
    assert is_well(server)
    assert server.memory() < 300_000


def states_that_are_none_do_not_end_the_loader(server: Server) -> None:
    """The bridge refuses malformed states, because the loader could not store them."""
    name = {"cq:table_name": "cq_state"}
    for columns in (
        {"key": [1], "value": ["x"]},
        {"key": ["x"], "value": [1]},
        {"key": pa.array([None], pa.string()), "value": ["x"]},
        {"key": ["x"], "value": ["x"], "version": ["x"]},
    ):
        rows = pa.RecordBatch.from_pydict(columns).replace_schema_metadata(name)
        code, text = write(server.client(), insert(encoded(rows)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, (columns, code, text)
    assert not [m for m in server.reported if "state" in m]


def a_stream_has_one_source(server: Server) -> None:
    """Otherwise, rows would be stored for another source, and that source's stale rows deleted."""
    first, second = (batch(a=[1], _cq_source_name=[name]) for name in ("shop", "hr"))
    stale = Write.MessageDeleteStale(table_name="orders", source_name="hr")
    for more in (insert(encoded(second)), Write.Request(delete=stale)):
        code, text = write(server.client(), insert(encoded(first)), more)
        assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, text)
        assert "belongs to the source hr, not shop" in text


def ten_thousand_tables(server: Server) -> None:
    """The number of tables is limited, because the loader would create each of them."""
    code, text = write(server.client(), *(table(f"t{n}", "a") for n in range(10_000)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, text)
    assert "5,000 tables" in text
    code, text = write(server.client(), table("t" * 100_000, "a"))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, text)


def states_of_any_size(server: Server) -> None:
    """States are limited to 64 MiB, because they are kept in memory."""
    name = {"cq:table_name": "cq_state"}
    few = {"key": ["x"], "value": ["a" * 68_000_000]}
    many = {"key": [f"{n}" for n in range(300_000)], "value": [""] * 300_000}
    for columns in (few, many):
        rows = pa.RecordBatch.from_pydict(columns).replace_schema_metadata(name)
        for options in ({}, {"compression": "zstd"}):
            code, text = write(server.client(), insert(encoded(rows, **options)))
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, text)
            assert "plugin states exceed 64 MiB in total" in text
    assert not [m for m in server.reported if m.get("state") == "cq_state"]


def noise(server: Server) -> None:
    """Neither garbage nor idle connections block a sync."""
    quiet = []
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n", os.urandom(10_000), b""):
        for _ in range(15):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(server.socket))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(said)
            quiet.append(connection)
    assert is_well(server)
    huge = [("x", "y" * 1_000_000)]
    with contextlib.suppress(grpc.RpcError):
        server.client().GetName(plugin_pb2.GetName.Request(), metadata=huge, timeout=5)
        raise AssertionError("a megabyte of metadata is taken")
    assert is_well(server)
    for connection in quiet:
        connection.close()


def clients_behind_one_socket_differ(server: Server) -> None:
    """State of a failed sync must be dropped once another sync has begun."""

    def state(value: str) -> Any:
        rows = pa.RecordBatch.from_pydict({"key": ["orders"], "value": [value]})
        return insert(encoded(rows.replace_schema_metadata({"cq:table_name": "cq_state"})))

    def begin(client: Any) -> None:
        schema = pa.schema([("key", pa.string()), ("value", pa.string())])
        schema = schema.with_metadata({"cq:table_name": "cq_state"})
        list(client.Read(plugin_pb2.Read.Request(table=arrow.schema_to_bytes(schema))))

    before = len(server.reported)
    old, new = server.client(), server.client()
    begin(old)
    assert write(old, insert(encoded(batch(a=[1]))), insert(b""))[0] != grpc.StatusCode.OK
    begin(new)
    write(old, state("of rows that are lost"))
    write(new, state("good"))
    deadline = time.monotonic() + 5
    while not (kept := [m for m in server.reported[before:] if "state" in m]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [m["rows"]["orders"][0] for m in kept] == ["good"]


def silent_streams(server: Server) -> None:
    """Streams above the limit are refused at once, other calls are answered, idle ones time out."""
    client, go = server.client(), threading.Event()

    def silent() -> Iterator[Any]:
        go.wait(60)
        yield from ()

    calls = [client.Write.future(silent()) for _ in range(70)]
    deadline = time.monotonic() + 10
    while not (refused := [call for call in calls if call.done()]):
        assert time.monotonic() < deadline, "the loader is not informed"
        time.sleep(0.02)
    codes = {call.code() for call in refused}
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    server.client().GetName(plugin_pb2.GetName.Request(), timeout=5)
    while not all(call.done() for call in calls):
        assert time.monotonic() < deadline, "they stay"
        time.sleep(0.05)
    assert [m for m in server.reported if "ended" in m]
    assert is_well(server)
    go.set()


MESSAGES: tuple[Callable[[], None], ...] = (
    bombs,
    altered_offsets,
    wrong_lengths,
    dictionaries,
    cut_messages,
    flipped_bytes,
    schemas_that_lose_a_column,
    where_clauses_that_multiply,
    a_disk_that_is_nearly_full,
    one_table_fails,
    nobody_else_reads_a_plugins_state,
    a_plugins_own_state_of_any_size,
)
SERVER: tuple[Callable[[Server], None], ...] = (
    only_its_owner_connects,
    malformed_rows_are_one_streams_error,
    states_that_are_none_do_not_end_the_loader,
    a_stream_has_one_source,
    ten_thousand_tables,
    states_of_any_size,
    noise,
    clients_behind_one_socket_differ,
    silent_streams,
)

if __name__ == "__main__":
    os.umask(0o002)
    if sys.argv[1] == "messages":
        for check in MESSAGES:
            if not sys.argv[2:] or check.__name__ in sys.argv[2:]:
                check()
    else:
        attacked = Server(3.0)
        for attack in SERVER:
            if not sys.argv[2:] or attack.__name__ in sys.argv[2:]:
                attack(attacked)
        attacked.close()
