"""A CloudQuery state backend that stores a plugin's state in memory during one sync."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
from cloudquery.discovery_v1 import discovery_pb2, discovery_pb2_grpc
from cloudquery.plugin_v3 import arrow, plugin_pb2, plugin_pb2_grpc

from .arrow_input import (
    MAX_BYTES,
    MAX_STATE_BYTES,
    MalformedError,
    OverBudgetError,
    build_malformed_error,
    read_record,
    read_schema,
    read_table_name,
)

LIMITS = [
    ("grpc.max_receive_message_length", MAX_BYTES),  # also applies to decompressed messages
    ("grpc.max_send_message_length", MAX_BYTES),
]
"""The same limits as in CloudQuery's programs."""

Rows = dict[str, tuple[str, int]]
"""Maps a key to its value and version."""

ROW_BYTES = 256
"""The size of a row in memory, without its strings, in bytes."""

_MAX_VERSION = (1 << 63) - 1
_STRING_TYPES = (pa.string(), pa.large_string())
_TYPES = {"key": pa.string(), "value": pa.string(), "version": pa.uint64()}


class StateBackend(plugin_pb2_grpc.PluginServicer):  # type: ignore[misc]
    """The gRPC service of the state backend. It stores one table of keys, values and versions.

    Every user on the machine can connect to its port. So the table's name is a secret that only the
    plugin receives, and other clients can neither read nor write the state.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.name = f"cq_state_{secrets.token_hex(16)}"
        self._state, self._covered = PluginState(known), PluginState(known)
        self._lock = threading.Lock()

    def value(self) -> dict[str, list[Any]]:
        """Returns the state to store if the sync succeeds."""
        with self._lock:
            return {key: list(row) for key, row in sorted(self._state.rows.items())}

    def apply_checkpoint(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Applies state rows that cover all records so far. Returns the resulting state.

        The next sync resumes from this state if the plugin fails later.
        """
        with self._lock:
            for state in (self._state, self._covered):
                check_budget(state.size, batch)
                state.apply(batch)
            return {key: list(row) for key, row in sorted(self._covered.rows.items())}

    def Write(self, requests: Iterator[Any], context: Any) -> Any:
        with refuse_malformed(context):
            for request in requests:
                if request.WhichOneof("message") == "insert":
                    batch = read_record(request.insert.record)
                    self._check_name(batch.schema, context)
                    with self._lock:
                        check_budget(self._state.size, batch)
                        self._state.apply(batch)
        return plugin_pb2.Write.Response()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        with refuse_malformed(context):
            schema = read_schema(request.table)
            self._check_name(schema, context)
            with self._lock:
                batch = build_state_batch(schema, self._state.rows)
        yield plugin_pb2.Read.Response(record=arrow.record_to_bytes(batch))

    def _check_name(self, schema: pa.Schema, context: Any) -> None:
        if not secrets.compare_digest(read_table_name(schema).encode(), self.name.encode()):
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "this is not the state table of the sync"
            )

    def GetName(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.GetName.Response(name="strandline")

    def GetVersion(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.GetVersion.Response(version="v1.0.0")


@contextmanager
def refuse_malformed(context: Any) -> Iterator[None]:
    """Aborts a call if its message is malformed or exceeds a limit."""
    try:
        yield
    except MalformedError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except OverBudgetError as error:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


class PluginState:
    """The state of a plugin.

    Attributes:
        size: the state's size in memory, in bytes.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.rows: Rows = {key: (row[0], int(row[1])) for key, row in known.items()}
        self.size = ROW_BYTES + sum(_row_size(key, row[0]) for key, row in self.rows.items())

    def apply(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Applies state rows. Returns the changed values and versions.

        A row replaces the value of its key unless the stored version is newer.

        Raises:
            MalformedError: if the rows are not state rows.
        """
        check_state(batch)
        names = batch.schema.names
        used: dict[str, list[Any]] = {}
        for row in batch.to_pylist():
            key, value = row["key"], row["value"]
            old, version_before = self.rows.get(key, ("", -1))
            # The Python SDK sends no versions.
            version = row["version"] if "version" in names else version_before + 1
            if version is None or version >= version_before:
                self.size += _row_size(key, value) - (
                    _row_size(key, old) if version_before >= 0 else 0
                )
                self.rows[key] = (value, version or 0)
                used[key] = [value, version or 0]
        return used


def _row_size(key: str, value: str | None) -> int:
    return ROW_BYTES + sys.getsizeof(key) + sys.getsizeof(value)


def measure_batch(batch: pa.RecordBatch) -> int:
    """Returns the approximate size of state rows in memory, in bytes."""
    return int(batch.nbytes + ROW_BYTES * (1 + batch.num_rows))


def check_budget(used: int, batch: pa.RecordBatch) -> None:
    """Raises OverBudgetError if additional state rows would exceed the limit for all states."""
    if used + measure_batch(batch) > MAX_STATE_BYTES:
        raise OverBudgetError(
            f"plugin states exceed {MAX_STATE_BYTES >> 20} MiB in total; each row takes "
            f"{ROW_BYTES} bytes on top of the size of its strings"
        )


def check_state(batch: pa.RecordBatch) -> None:
    """Raises MalformedError if a key is null, or a column has a type that states do not use.

    The loader cannot store such rows.
    """
    schema, name = batch.schema, read_table_name(batch.schema)
    for column in ("key", "value"):
        if column not in schema.names or schema.field(column).type not in _STRING_TYPES:
            raise MalformedError(f"its column {column} is not a string", name)
    if batch.column("key").null_count:
        raise MalformedError("one of its keys is null", name)
    if "version" in schema.names and not pa.types.is_integer(schema.field("version").type):
        raise MalformedError("its column version is not an integer", name)


def has_large_version(batch: pa.RecordBatch) -> bool:
    """Returns whether a version in state rows is too large for the lake."""
    if "version" not in batch.schema.names:
        return False
    return any((version or 0) > _MAX_VERSION for version in batch.column("version").to_pylist())


def build_state_batch(schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    """Returns state rows with the requested columns. The plugin reads the columns by position.

    Raises:
        MalformedError: if the requested types are not the types of a state.
    """
    columns = {
        "key": list(rows),
        "value": [row[0] for row in rows.values()],
        "version": [row[1] for row in rows.values()],
    }
    try:
        arrays = [
            pa.array(
                columns.get(field.name, [None] * len(rows)), _TYPES.get(field.name, field.type)
            )
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise build_malformed_error(error, read_table_name(schema)) from None


class Discovery(discovery_pb2_grpc.DiscoveryServicer):  # type: ignore[misc]
    def GetVersions(self, _request: Any, _context: Any) -> Any:
        return discovery_pb2.GetVersions.Response(versions=[3])


def serve_states(states: StateBackend) -> tuple[Any, str]:
    """Serves a state backend on the loopback interface. Returns the server and its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=LIMITS)
    plugin_pb2_grpc.add_PluginServicer_to_server(states, server)
    discovery_pb2_grpc.add_DiscoveryServicer_to_server(Discovery(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"
