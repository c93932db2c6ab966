"""A CloudQuery state backend for one sync: it holds what the plugin writes until the sync ends."""

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
    MOST_BYTES,
    STATE_BYTES,
    MalformedError,
    OverBudgetError,
    malformed_error,
    read_record,
    read_schema,
    table_name,
)

LIMITS = [
    ("grpc.max_receive_message_length", MOST_BYTES),  # also once it is decompressed
    ("grpc.max_send_message_length", MOST_BYTES),
]
"""As CloudQuery's own programs set them."""

Rows = dict[str, tuple[str, int]]
"""By key, the value and its version."""

ROW_BYTES = 256
"""What a row takes in memory beside its texts."""

_MOST = (1 << 63) - 1
_TEXTS = (pa.string(), pa.large_string())
_TYPES = {"key": pa.string(), "value": pa.string(), "version": pa.uint64()}


class States(plugin_pb2_grpc.PluginServicer):  # type: ignore[misc]
    """The state table: keys with their values and versions.

    Every user of the machine can connect to its port, so its name is a secret that only the plugin
    gets: a client without it can neither read nor write the state.

    Args:
        known: of earlier syncs; each a value and its version.

    Attributes:
        name: the table's.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.name = f"cq_state_{secrets.token_hex(16)}"
        self._state, self._covered = State(known), State(known)
        self._changing = threading.Lock()

    def value(self) -> dict[str, list[Any]]:
        """Returns all that the plugin has written: the next sync's state if this one ends well."""
        with self._changing:
            return {key: list(row) for key, row in sorted(self._state.rows.items())}

    def checkpoint(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Takes state rows that cover all records before them.

        Returns the state that the plugin resumes from if it fails after this.
        """
        with self._changing:
            for state in (self._state, self._covered):
                check_budget(state.size, batch)
                state.take(batch)
            return {key: list(row) for key, row in sorted(self._covered.rows.items())}

    def Write(self, requests: Iterator[Any], context: Any) -> Any:
        """Takes state rows; the newest version of a key counts, the later one of two equal ones."""
        with refuse_malformed(context):
            for request in requests:
                if request.WhichOneof("message") == "insert":
                    batch = read_record(request.insert.record)
                    self._check_name(batch.schema, context)
                    with self._changing:
                        check_budget(self._state.size, batch)
                        self._state.take(batch)
        return plugin_pb2.Write.Response()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        """Sends the rows, in the columns that the plugin asks for."""
        with refuse_malformed(context):
            asked = read_schema(request.table)
            self._check_name(asked, context)
            with self._changing:
                batch = arrange_columns(asked, self._state.rows)
        yield plugin_pb2.Read.Response(record=arrow.record_to_bytes(batch))

    def _check_name(self, schema: pa.Schema, context: Any) -> None:
        if not secrets.compare_digest(table_name(schema).encode(), self.name.encode()):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "this is not the sync's state table")

    def GetName(self, _request: Any, _context: Any) -> Any:
        """Names the backend."""
        return plugin_pb2.GetName.Response(name="strandline")

    def GetVersion(self, _request: Any, _context: Any) -> Any:
        """Returns a version."""
        return plugin_pb2.GetVersion.Response(version="v1.0.0")


@contextmanager
def refuse_malformed(context: Any) -> Iterator[None]:
    """Refuses a call whose message cannot be read, or takes more than its share."""
    try:
        yield
    except MalformedError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except OverBudgetError as error:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


class State:
    """A plugin's state.

    Args:
        known: by key, a value and its version.

    Attributes:
        size: how many bytes of memory it takes.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.rows: Rows = {key: (row[0], int(row[1])) for key, row in known.items()}
        self.size = ROW_BYTES + sum(_row_size(key, row[0]) for key, row in self.rows.items())

    def take(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Takes state rows; returns those that count now.

        The newest version of a key counts, and of two equal ones the later.

        Raises:
            MalformedError: if they are none.
        """
        check_state(batch)
        names = batch.schema.names
        taken: dict[str, list[Any]] = {}
        for row in batch.to_pylist():
            key, value = row["key"], row["value"]
            old, before = self.rows.get(key, ("", -1))
            # the Python SDK has no versions
            version = row["version"] if "version" in names else before + 1
            if version is None or version >= before:
                self.size += _row_size(key, value) - (_row_size(key, old) if before >= 0 else 0)
                self.rows[key] = (value, version or 0)
                taken[key] = [value, version or 0]
        return taken


def _row_size(key: str, value: str | None) -> int:
    return ROW_BYTES + sys.getsizeof(key) + sys.getsizeof(value)


def batch_size(batch: pa.RecordBatch) -> int:
    """Returns about how many bytes of memory state rows take, decompressed."""
    return int(batch.nbytes + ROW_BYTES * (1 + batch.num_rows))


def check_budget(taken: int, batch: pa.RecordBatch) -> None:
    """Refuses state rows beyond what all states may take.

    Raises:
        OverBudgetError: with the limit.
    """
    if taken + batch_size(batch) > STATE_BYTES:
        raise OverBudgetError(
            f"the states of plugins exceed {STATE_BYTES >> 20} MiB; each row counts {ROW_BYTES} "
            "bytes more than its texts"
        )


def check_state(batch: pa.RecordBatch) -> None:
    """Refuses state rows with other types than CloudQuery's: the loader could not store them.

    Raises:
        MalformedError: with the problem.
    """
    schema, name = batch.schema, table_name(batch.schema)
    for column in ("key", "value"):
        if column not in schema.names or schema.field(column).type not in _TEXTS:
            raise MalformedError(f"its column {column} is no text", name)
    if batch.column("key").null_count:
        raise MalformedError("a key of it is null", name)
    if "version" in schema.names and not pa.types.is_integer(schema.field("version").type):
        raise MalformedError("its column version is no integer", name)


def is_beyond(batch: pa.RecordBatch) -> bool:
    """Returns whether a version of state rows is too high for the lake; plugins count from 0."""
    if "version" not in batch.schema.names:
        return False
    return any((version or 0) > _MOST for version in batch.column("version").to_pylist())


def arrange_columns(asked: pa.Schema, rows: Rows) -> pa.RecordBatch:
    """Returns state rows in the columns that a plugin asks for: it takes them by position.

    Raises:
        MalformedError: if it asks for other types than those of a state.
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
            for field in asked
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=asked)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise malformed_error(error, table_name(asked)) from None


class Discovery(discovery_pb2_grpc.DiscoveryServicer):  # type: ignore[misc]
    """Serves the version of the protocol."""

    def GetVersions(self, _request: Any, _context: Any) -> Any:
        """Returns its version."""
        return discovery_pb2.GetVersions.Response(versions=[3])


def serve_states(states: States) -> tuple[Any, str]:
    """Serves a state backend on loopback; returns the server and its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=LIMITS)
    plugin_pb2_grpc.add_PluginServicer_to_server(states, server)
    discovery_pb2_grpc.add_DiscoveryServicer_to_server(Discovery(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"
