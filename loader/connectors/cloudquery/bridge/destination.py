"""A CloudQuery destination and state backend, which `cloudquery sync` writes to.

A sync's rows are spooled to a folder until its stream ends; then the loader appends them. Only
after that is the sync acknowledged, and only then does the state that came during it take effect.
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
    LONGEST_NAME,
    SCHEMA_BYTES,
    STREAMS,
    TABLES,
    DiskBudget,
    IdleTimeout,
    MalformedError,
    OverBudgetError,
    read_record,
    read_schema,
    table_name,
)
from .records import deletion, dependents, records, stream
from .state_backend import (
    State,
    arrange_columns,
    batch_size,
    check_budget,
    check_state,
    is_beyond,
    refuse_malformed,
)
from .state_barrier import StateBarrier

_GONE = "the loader has ended, and says why itself; run the sync again"
_BROKE_OFF = "the sync broke off"
_SILENT = "it sent nothing for too long (`--idle-timeout`), so it was ended"
_STATE_COLUMNS = ({"key", "value"}, {"key", "value", "version"})

_telling = threading.Lock()


@dataclass
class Session:
    """One stream that a sync writes.

    Attributes:
        ended: set once the loader has appended it, or has failed to.
        error: why it has failed.
        alive: whether the sync is still there.
        rows: whether it has brought anything.
        disk: the disk space that it may still use.
        schema_bytes: of its tables, as they were sent.
    """

    number: int
    folder: Path
    alive: Callable[[], bool]
    disk: DiskBudget
    rows: bool = False
    schemas: dict[str, Any] = field(default_factory=dict)
    schema_bytes: int = 0
    stale: set[str] = field(default_factory=set)
    source: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    error: str | None = None

    def add_table(self, schema: pa.Schema) -> None:
        """Adds a table, or changes it.

        Raises:
            OverBudgetError: if there are too many.
        """
        self.schemas[table_name(schema)] = schema
        self.schema_bytes += schema.serialize().size
        if self.schema_bytes > SCHEMA_BYTES or len(self.schemas) > TABLES:
            raise OverBudgetError(
                f"a sync may write {TABLES:,} tables, and {SCHEMA_BYTES >> 20} MiB of their "
                "schemas: name fewer `tables` in its spec"
            )

    def belongs_to(self, source: str, table: str) -> None:
        """Notes the source that a message is of; a stream has one.

        Raises:
            MalformedError: if this is another one: its rows would be taken for the first one's.
        """
        self.source = self.source or source
        if source and source != self.source:
            raise MalformedError(f"it is of the source {source}, not {self.source}", table)


class Destination(plugin_pb2_grpc.PluginServicer):  # type: ignore[misc]
    """The destination.

    Args:
        folder: where sessions are kept.
        idle_timeout: the longest that a stream may send nothing, in seconds.
    """

    def __init__(self, folder: Path, idle_timeout: float = 3600.0) -> None:
        self._folder = folder
        self._begun = threading.Event()
        self._gone = False
        self._states: dict[str, State] = {}
        self._waiting = StateBarrier()
        self._sessions: dict[int, Session] = {}
        self._ending: dict[int, Session] = {}
        self._changing = threading.Lock()
        self._streams = threading.BoundedSemaphore(STREAMS)
        self._idle = IdleTimeout(idle_timeout, lambda: tell({"ended": _SILENT}))

    def begin(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Lets syncs begin: the loader is ready.

        Args:
            states: the valid states, by the state table's name.
        """
        self._states = {table: State(rows) for table, rows in states.items()}
        self._begun.set()

    def _await(self, context: Any) -> None:
        self._begun.wait()
        if self._gone:
            context.abort(grpc.StatusCode.UNAVAILABLE, _GONE)

    def GetName(self, _request: Any, _context: Any) -> Any:
        """Names the destination."""
        return plugin_pb2.GetName.Response(name="strandline")

    def GetVersion(self, _request: Any, _context: Any) -> Any:
        """Returns a version."""
        return plugin_pb2.GetVersion.Response(version="v1.0.0")

    def GetSpecSchema(self, _request: Any, _context: Any) -> Any:
        """Has no spec of its own."""
        return plugin_pb2.GetSpecSchema.Response()

    def Init(self, _request: Any, context: Any) -> Any:
        """Waits for the loader, which may be starting Spark."""
        self._await(context)
        return plugin_pb2.Init.Response()

    def TestConnection(self, _request: Any, _context: Any) -> Any:
        """Always reports a healthy connection."""
        return plugin_pb2.TestConnection.Response(success=True)

    def Close(self, _request: Any, _context: Any) -> Any:
        """Goes on for the next sync."""
        return plugin_pb2.Close.Response()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        """Sends the state that counts."""
        self._await(context)
        with refuse_malformed(context):
            asked = read_schema(request.table)
            name = table_name(asked)
            with self._changing:
                self._waiting.has_read(context.peer(), name)
                state = self._states.get(name)
                rows = dict(state.rows) if state else {}
            answer = arrow.record_to_bytes(arrange_columns(asked, rows))
        with self._idle.waiting(context):
            yield plugin_pb2.Read.Response(record=answer)

    def Write(self, requests: Iterator[Any], context: Any) -> Any:
        """Takes a sync's rows, or a plugin's state; returns once they are safe."""
        if not self._streams.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{STREAMS} streams write to the loader already; run the sync again later",
            )
        try:
            with refuse_malformed(context):
                self._write(requests, context)
        finally:
            self._streams.release()
        return plugin_pb2.Write.Response()

    def _write(self, requests: Iterator[Any], context: Any) -> None:
        with self._changing:
            number = self._waiting.enter()
        session: Session | None = None
        rows: Any = None
        try:
            self._await(context)
            for request in self._idle.messages(requests, context):
                kind = request.WhichOneof("message")
                if kind == "migrate_table":
                    schema = read_schema(request.migrate_table.table)
                    if set(schema.names) in _STATE_COLUMNS:
                        self._has_state(number)
                        continue
                    session = session or self._open_session(number, context)
                    session.add_table(schema)
                elif kind == "insert":
                    batch = read_record(request.insert.record)
                    if set(batch.schema.names) in _STATE_COLUMNS:
                        self._has_state(number)
                        self._hold(context, batch)
                        continue
                    session = session or self._open_session(number, context)
                    rows = rows or (session.folder / "messages.jsonl").open("w")
                    self._keep(session, batch, rows)
                elif kind == "delete":
                    session = session or self._open_session(number, context)
                    self._add_stale(session, request.delete)
                elif kind == "delete_record":
                    if dependents(request.delete_record):
                        context.abort(
                            grpc.StatusCode.UNIMPLEMENTED,
                            "deletions that take rows of dependent tables with them are not "
                            "supported: sync with write_mode overwrite-delete-stale",
                        )
                    session = session or self._open_session(number, context)
                    session.rows = True
                    rows = rows or (session.folder / "messages.jsonl").open("w")
                    message = {"type": "DELETE", "delete": deletion(request.delete_record)}
                    _append(session, rows, message)
            if not context.is_active():  # its death may look like its end
                raise ConnectionAbortedError(_BROKE_OFF)
            if rows is not None:
                rows.close()  # here, as what is left of them may not fit on the disk
            catalog = _write_catalog(session) if session is not None else {}
        except BaseException:
            self._over(number, _BROKE_OFF)
            if session is not None:
                shutil.rmtree(session.folder, ignore_errors=True)
            raise
        finally:
            if rows is not None:
                with suppress(OSError):
                    rows.close()
        if session is None:
            self._over(number, None)
        else:
            self._hand_over(session, catalog, context)

    def end_session(self, number: int, error: str | None) -> None:
        """Handles the end of a session: its state takes effect, and is sent to the loader."""
        session = self._sessions[number]
        session.error = error or (None if session.alive() else _BROKE_OFF)
        self._ending[number] = session
        self._over(number, session.error)
        tell({"settled": number})

    def confirm_state(self, number: int) -> None:
        """Notes that the loader has stored the state that a session has released."""
        session = self._ending.pop(number)
        shutil.rmtree(session.folder, ignore_errors=True)
        session.ended.set()

    def close(self) -> None:
        """Fails all syncs, as the loader is gone."""
        self._gone = True
        self._begun.set()
        with self._changing:
            open_ = list(self._sessions)
        for number in open_:
            self.end_session(number, _GONE)
        for number in list(self._ending):
            self.confirm_state(number)

    def _open_session(self, number: int, context: Any) -> Session:
        folder = self._folder / str(number)
        folder.mkdir()
        session = Session(number, folder, context.is_active, DiskBudget(folder))
        with self._changing:
            self._waiting.has_rows(number)
            self._sessions[number] = session
        return session

    def _keep(self, session: Session, batch: pa.RecordBatch, rows: Any) -> None:
        name = table_name(batch.schema)
        if name not in session.schemas:
            session.add_table(batch.schema)
        for data in records(batch):
            session.rows = True
            session.belongs_to(str(data.get("_cq_source_name") or ""), name)
            record = {"stream": name, "data": data, "emitted_at": 0}
            _append(session, rows, {"type": "RECORD", "record": record})

    def _add_stale(self, session: Session, delete: Any) -> None:
        session.belongs_to(delete.source_name, delete.table_name)
        session.stale.add(delete.table_name)
        if len(session.stale) > TABLES or len(delete.table_name) > LONGEST_NAME:
            raise OverBudgetError(f"a sync may delete what is stale in {TABLES:,} tables")

    def _hand_over(self, session: Session, catalog: Mapping[str, Any], context: Any) -> None:
        """Hands a session over to the loader, and waits for it.

        If the sync ends meanwhile, its rows must not be appended any more where they wait for a
        table: the sync would not get the result, and the next one would bring them again.
        """
        tell({"session": session.number, "folder": str(session.folder), **catalog})
        while not session.ended.wait(1):
            if not context.is_active():
                (session.folder / "messages.jsonl").unlink(missing_ok=True)
        if session.error is not None:
            context.abort(grpc.StatusCode.ABORTED, session.error)

    def _has_state(self, number: int) -> None:
        with self._changing:
            self._waiting.has_state(number)
        self._release()

    def _hold(self, context: Any, batch: pa.RecordBatch) -> None:
        table = table_name(batch.schema)
        check_state(batch)
        with self._changing:
            taken = self._waiting.size + sum(state.size for state in self._states.values())
            check_budget(taken, batch)
            if is_beyond(batch):
                context.abort(
                    grpc.StatusCode.OUT_OF_RANGE,
                    "a version of the plugin's state has more than 63 bits, which the lake cannot "
                    "store",
                )
            kept = self._waiting.hold(context.peer(), table, batch, batch_size(batch))
        if not kept:
            tell({"dropped": table})
        self._release()

    def _over(self, number: int, error: str | None) -> None:
        with self._changing:
            self._sessions.pop(number, None)
            dropped = self._waiting.over(number, failed=error is not None)
        for table in dropped:
            tell({"dropped": table})
        self._release()

    def _release(self) -> None:
        """Lets the state count that waits for no stream any more."""
        with self._changing:
            for held in self._waiting.free():
                rows = self._states.setdefault(held.table, State({})).take(held.batch)
                if rows:
                    tell({"state": held.table, "rows": rows})


def _append(session: Session, rows: Any, message: Mapping[str, Any]) -> None:
    """Adds a message to a session's rows."""
    line = json.dumps(message) + "\n"
    session.disk.take(len(line))  # it is ASCII
    rows.write(line)


def _write_catalog(session: Session) -> dict[str, Any]:
    """Writes a session's catalog beside its rows; returns the message about it for the loader."""
    streams = []
    for name, schema in session.schemas.items():
        entry = stream(schema)
        streams.append({**entry, "name": name, "supported_sync_modes": ["full_refresh"]})
    (session.folder / "catalog.json").write_text(json.dumps({"streams": streams}))
    (session.folder / "messages.jsonl").touch()
    return {"stale": sorted(session.stale), "source": session.source, "rows": session.rows}


def tell(message: Mapping[str, Any]) -> None:
    """Sends the loader a message, if it still runs."""
    with _telling, suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
