"""A CloudQuery destination and state backend, to which `cloudquery sync` writes.

The rows of a sync are spooled to a folder. When the sync's stream ends, the loader appends them.
Only then does the destination acknowledge the sync and apply the states that it received.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
from cloudquery.plugin_v3 import arrow, plugin_pb2, plugin_pb2_grpc

from .arrow_input import (
    MAX_NAME,
    MAX_SCHEMA_BYTES,
    MAX_STREAMS,
    MAX_TABLES,
    DiskBudget,
    IdleTimeout,
    MalformedError,
    OverBudgetError,
    read_record,
    read_schema,
    read_table_name,
)
from .records import build_deletion, build_stream, convert_records, list_dependents
from .state_backend import (
    PluginState,
    build_state_batch,
    check_budget,
    check_state,
    has_large_version,
    measure_batch,
    refuse_malformed,
)
from .state_barrier import StateBarrier

_LOADER_ENDED = "the loader has exited, and has reported the reason; repeat the sync"
_INTERRUPTED_MESSAGE = "the sync was interrupted"
_TIMED_OUT = "the sync sent nothing for too long (`--idle-timeout`), so it was cancelled"
_STATE_COLUMNS = ({"key", "value"}, {"key", "value", "version"})

_output_lock = threading.Lock()


@dataclass
class Session:
    """The stream of rows that a sync sends.

    Attributes:
        disk: the disk space that the session may still use.
        has_rows: whether the stream has sent rows or deletions of rows.
        stale: the tables from which the sync deletes stale rows.
        source: the source's name; empty until a message contains the name.
        has_ended: set once the rows have been appended, or appending them has failed.
    """

    number: int
    folder: Path
    is_alive: Callable[[], bool]
    disk: DiskBudget
    has_rows: bool = False
    schemas: dict[str, Any] = field(default_factory=dict)
    schema_bytes: int = 0
    stale: set[str] = field(default_factory=set)
    source: str = ""
    has_ended: threading.Event = field(default_factory=threading.Event)
    error: str | None = None

    def add_table(self, schema: pa.Schema) -> None:
        """Adds or replaces the schema of a table.

        Raises:
            OverBudgetError: if there are too many schemas, or if they are too large.
        """
        self.schemas[read_table_name(schema)] = schema
        self.schema_bytes += schema.serialize().size
        if self.schema_bytes > MAX_SCHEMA_BYTES or len(self.schemas) > MAX_TABLES:
            raise OverBudgetError(
                f"a sync may write at most {MAX_TABLES:,} tables with {MAX_SCHEMA_BYTES >> 20} MiB "
                "of schemas: select fewer `tables` in its spec"
            )

    def set_source(self, source: str, table: str) -> None:
        """Sets the source of the stream.

        Raises:
            MalformedError: if an earlier message names a different source. Otherwise the loader
                would append the rows of both sources as if they came from one source.
        """
        self.source = self.source or source
        if source and source != self.source:
            raise MalformedError(f"it belongs to the source {source}, not {self.source}", table)


class Destination(plugin_pb2_grpc.PluginServicer):  # type: ignore[misc]
    """The gRPC service of the destination.

    Args:
        folder: the parent folder of the sessions' folders.
        idle_timeout: the time in seconds after which a silent stream is cancelled.
    """

    def __init__(self, folder: Path, idle_timeout: float = 3600.0) -> None:
        self._folder = folder
        self._loader_is_ready = threading.Event()
        self._loader_has_ended = False
        self._states: dict[str, PluginState] = {}
        self._barrier = StateBarrier()
        self._sessions: dict[int, Session] = {}
        self._ending: dict[int, Session] = {}
        self._lock = threading.Lock()
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._idle = IdleTimeout(idle_timeout, lambda: send_to_loader({"ended": _TIMED_OUT}))

    def begin(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Lets syncs start. Called once the loader is ready.

        Args:
            states: the stored states, keyed by the name of the state table.
        """
        self._states = {table: PluginState(rows) for table, rows in states.items()}
        self._loader_is_ready.set()

    def _wait_for_loader(self, context: Any) -> None:
        self._loader_is_ready.wait()
        if self._loader_has_ended:
            context.abort(grpc.StatusCode.UNAVAILABLE, _LOADER_ENDED)

    def GetName(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.GetName.Response(name="strandline")

    def GetVersion(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.GetVersion.Response(version="v1.0.0")

    def GetSpecSchema(self, _request: Any, _context: Any) -> Any:
        """Returns an empty schema, because the destination has no spec."""
        return plugin_pb2.GetSpecSchema.Response()

    def Init(self, _request: Any, context: Any) -> Any:
        """Waits until the loader is ready, because the loader may still be starting Spark."""
        self._wait_for_loader(context)
        return plugin_pb2.Init.Response()

    def TestConnection(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.TestConnection.Response(success=True)

    def Close(self, _request: Any, _context: Any) -> Any:
        """Does nothing, because the destination stays open for the next sync."""
        return plugin_pb2.Close.Response()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        self._wait_for_loader(context)
        with refuse_malformed(context):
            schema = read_schema(request.table)
            name = read_table_name(schema)
            with self._lock:
                self._barrier.note_read(context.peer(), name)
                state = self._states.get(name)
                rows = dict(state.rows) if state else {}
            answer = arrow.record_to_bytes(build_state_batch(schema, rows))
        with self._idle.bound_wait(context):
            yield plugin_pb2.Read.Response(record=answer)

    def Write(self, requests: Iterator[Any], context: Any) -> Any:
        """Receives a sync's rows or a plugin's states. Returns after the rows are appended."""
        if not self._streams.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_STREAMS} streams already write to the loader; repeat the sync later",
            )
        try:
            with refuse_malformed(context):
                self._write(requests, context)
        finally:
            self._streams.release()
        return plugin_pb2.Write.Response()

    def _write(self, requests: Iterator[Any], context: Any) -> None:
        with self._lock:
            number = self._barrier.begin_stream()
        session: Session | None = None
        rows: Any = None
        try:
            self._wait_for_loader(context)
            for request in self._idle.messages(requests, context):
                kind = request.WhichOneof("message")
                if kind == "migrate_table":
                    schema = read_schema(request.migrate_table.table)
                    if set(schema.names) in _STATE_COLUMNS:
                        self._note_state(number)
                        continue
                    session = session or self._open_session(number, context)
                    session.add_table(schema)
                elif kind == "insert":
                    batch = read_record(request.insert.record)
                    if set(batch.schema.names) in _STATE_COLUMNS:
                        self._note_state(number)
                        self._hold_state(context, batch)
                        continue
                    session = session or self._open_session(number, context)
                    rows = rows or (session.folder / "messages.jsonl").open("w")
                    self._store_rows(session, batch, rows)
                elif kind == "delete":
                    session = session or self._open_session(number, context)
                    self._add_stale(session, request.delete)
                elif kind == "delete_record":
                    if list_dependents(request.delete_record):
                        context.abort(
                            grpc.StatusCode.UNIMPLEMENTED,
                            "deletions that include rows of dependent tables are not "
                            "supported: sync with write_mode overwrite-delete-stale",
                        )
                    session = session or self._open_session(number, context)
                    session.has_rows = True
                    rows = rows or (session.folder / "messages.jsonl").open("w")
                    message = {"type": "DELETE", "delete": build_deletion(request.delete_record)}
                    _write_message(session, rows, message)
            if not context.is_active():  # the stream also ends if the client was killed
                raise ConnectionAbortedError(_INTERRUPTED_MESSAGE)
            if rows is not None:
                rows.close()  # fails if the buffered rows do not fit on the disk
            catalog = _write_catalog(session) if session is not None else {}
        except BaseException:
            self._end_stream(number, _INTERRUPTED_MESSAGE)
            if session is not None:
                shutil.rmtree(session.folder, ignore_errors=True)
            raise
        finally:
            if rows is not None:
                with suppress(OSError):
                    rows.close()
        if session is None:
            self._end_stream(number, None)
        else:
            self._send_session(session, catalog, context)

    def end_session(self, number: int, error: str | None) -> None:
        """Ends a processed session, and releases the states that waited for it."""
        session = self._sessions[number]
        session.error = error or (None if session.is_alive() else _INTERRUPTED_MESSAGE)
        self._ending[number] = session
        self._end_stream(number, session.error)
        send_to_loader({"settled": number})

    def confirm_state(self, number: int) -> None:
        """Acknowledges a session whose state the loader has stored."""
        session = self._ending.pop(number)
        shutil.rmtree(session.folder, ignore_errors=True)
        session.has_ended.set()

    def close(self) -> None:
        """Fails all open syncs, because the loader has exited."""
        self._loader_has_ended = True
        self._loader_is_ready.set()
        with self._lock:
            open_ = list(self._sessions)
        for number in open_:
            self.end_session(number, _LOADER_ENDED)
        for number in list(self._ending):
            self.confirm_state(number)

    def _open_session(self, number: int, context: Any) -> Session:
        folder = self._folder / str(number)
        folder.mkdir()
        session = Session(number, folder, context.is_active, DiskBudget(folder))
        with self._lock:
            self._barrier.note_rows(number)
            self._sessions[number] = session
        return session

    def _store_rows(self, session: Session, batch: pa.RecordBatch, rows: Any) -> None:
        name = read_table_name(batch.schema)
        if name not in session.schemas:
            session.add_table(batch.schema)
        for data in convert_records(batch):
            session.has_rows = True
            session.set_source(str(data.get("_cq_source_name") or ""), name)
            record = {"stream": name, "data": data, "emitted_at": 0}
            _write_message(session, rows, {"type": "RECORD", "record": record})

    def _add_stale(self, session: Session, delete: Any) -> None:
        session.set_source(delete.source_name, delete.table_name)
        session.stale.add(delete.table_name)
        if len(session.stale) > MAX_TABLES or len(delete.table_name) > MAX_NAME:
            raise OverBudgetError(f"a sync may delete stale rows of at most {MAX_TABLES:,} tables")

    def _send_session(self, session: Session, catalog: Mapping[str, Any], context: Any) -> None:
        """Sends a session to the loader, and waits until the loader has appended it.

        If the client disconnects in the meantime, the rows are deleted, because the client would
        send them again.
        """
        send_to_loader({"session": session.number, "folder": str(session.folder), **catalog})
        while not session.has_ended.wait(1):
            if not context.is_active():
                (session.folder / "messages.jsonl").unlink(missing_ok=True)
        if session.error is not None:
            context.abort(grpc.StatusCode.ABORTED, session.error)

    def _note_state(self, number: int) -> None:
        with self._lock:
            self._barrier.note_state(number)
        self._publish_states()

    def _hold_state(self, context: Any, batch: pa.RecordBatch) -> None:
        table = read_table_name(batch.schema)
        check_state(batch)
        with self._lock:
            used = self._barrier.size + sum(state.size for state in self._states.values())
            check_budget(used, batch)
            if has_large_version(batch):
                context.abort(
                    grpc.StatusCode.OUT_OF_RANGE,
                    "a version in the plugin's state has more than 63 bits, which the lake cannot "
                    "store",
                )
            is_held = self._barrier.hold_back(context.peer(), table, batch, measure_batch(batch))
        if not is_held:
            send_to_loader({"dropped": table})
        self._publish_states()

    def _end_stream(self, number: int, error: str | None) -> None:
        with self._lock:
            self._sessions.pop(number, None)
            dropped = self._barrier.end_stream(number, failed=error is not None)
        for table in dropped:
            send_to_loader({"dropped": table})
        self._publish_states()

    def _publish_states(self) -> None:
        with self._lock:
            for pending in self._barrier.release():
                rows = self._states.setdefault(pending.table, PluginState({})).apply(pending.batch)
                if rows:
                    send_to_loader({"state": pending.table, "rows": rows})


def _write_message(session: Session, rows: Any, message: Mapping[str, Any]) -> None:
    line = json.dumps(message) + "\n"
    session.disk.take(len(line))  # the line is ASCII, so each character is one byte
    rows.write(line)


def _write_catalog(session: Session) -> dict[str, Any]:
    streams = []
    for name, schema in session.schemas.items():
        entry = build_stream(schema)
        streams.append({**entry, "name": name, "supported_sync_modes": ["full_refresh"]})
    (session.folder / "catalog.json").write_text(json.dumps({"streams": streams}))
    (session.folder / "messages.jsonl").touch()
    return {"stale": sorted(session.stale), "source": session.source, "rows": session.has_rows}


def send_to_loader(message: Mapping[str, Any]) -> None:
    """Sends a message to the loader. Does nothing if the loader has exited."""
    with _output_lock, suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
