"""A CloudQuery state backend for one sync: it holds what the plugin writes until the sync ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc
import pyarrow as pa
from cloudquery.discovery_v1 import discovery_pb2, discovery_pb2_grpc
from cloudquery.plugin_v3 import arrow, plugin_pb2, plugin_pb2_grpc

LIMITS = [
    ("grpc.max_receive_message_length", 100 << 20),
    ("grpc.max_send_message_length", 100 << 20),
]
"""As CloudQuery's own programs set them."""

Rows = dict[str, tuple[str, int]]
"""By key, the value and its version."""

_MOST = (1 << 63) - 1
_TYPES = {"key": pa.string(), "value": pa.string(), "version": pa.uint64()}


class States(plugin_pb2_grpc.PluginServicer):  # type: ignore[misc]
    """The state table: keys with their values and versions.

    Args:
        known: of earlier syncs; each a value and its version.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._rows: Rows = {key: (row[0], int(row[1])) for key, row in known.items()}
        self._covered = dict(self._rows)
        self._changing = threading.Lock()

    def value(self) -> dict[str, list[Any]]:
        """Returns all that the plugin has written: what it gets back if the sync ends well."""
        with self._changing:
            return {key: list(row) for key, row in sorted(self._rows.items())}

    def checkpoint(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Takes state rows that cover all records before them.

        Returns what the plugin gets back if it fails after this.
        """
        with self._changing:
            for rows in (self._rows, self._covered):
                merged(rows, batch)
            return {key: list(row) for key, row in sorted(self._covered.items())}

    def Write(self, requests: Iterator[Any], _context: Any) -> Any:
        """Takes state rows; the newest version of a key counts, the later one of two equal ones."""
        for request in requests:
            if request.WhichOneof("message") == "insert":
                with self._changing:
                    merged(self._rows, arrow.new_record_from_bytes(request.insert.record))
        return plugin_pb2.Write.Response()

    def Read(self, request: Any, _context: Any) -> Iterator[Any]:
        """Sends the rows, in the columns that the plugin asks for."""
        asked = arrow.new_schema_from_bytes(request.table)
        with self._changing:
            batch = as_asked(asked, self._rows)
        yield plugin_pb2.Read.Response(record=arrow.record_to_bytes(batch))

    def GetName(self, _request: Any, _context: Any) -> Any:
        """Names the backend."""
        return plugin_pb2.GetName.Response(name="strandline")

    def GetVersion(self, _request: Any, _context: Any) -> Any:
        """Returns a version."""
        return plugin_pb2.GetVersion.Response(version="v1.0.0")


def merged(rows: Rows, batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Takes state rows; returns those that count now.

    The newest version of a key counts, and of two equal ones the later.
    """
    names = batch.schema.names
    taken: dict[str, list[Any]] = {}
    for row in batch.to_pylist():
        before = rows.get(row["key"], ("", -1))[1]
        # the Python SDK has no versions
        version = row["version"] if "version" in names else before + 1
        if version is None or version >= before:
            rows[row["key"]] = (row["value"], version or 0)
            taken[row["key"]] = [row["value"], version or 0]
    return taken


def is_beyond(batch: pa.RecordBatch) -> bool:
    """Whether a version of state rows is beyond what the lake can store; plugins count from 0."""
    if "version" not in batch.schema.names:
        return False
    return any((version or 0) > _MOST for version in batch.column("version").to_pylist())


def as_asked(asked: pa.Schema, rows: Rows) -> pa.RecordBatch:
    """Returns state rows in the columns that a plugin asks for: it takes them by position."""
    columns = {
        "key": list(rows),
        "value": [row[0] for row in rows.values()],
        "version": [row[1] for row in rows.values()],
    }
    arrays = [
        pa.array(columns.get(field.name, [None] * len(rows)), _TYPES.get(field.name, field.type))
        for field in asked
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=asked)


class Discovery(discovery_pb2_grpc.DiscoveryServicer):  # type: ignore[misc]
    """Says which protocol is spoken here."""

    def GetVersions(self, _request: Any, _context: Any) -> Any:
        """Returns its version."""
        return discovery_pb2.GetVersions.Response(versions=[3])


def served(states: States) -> tuple[Any, str]:
    """Serves a state backend on loopback; returns the server and its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=LIMITS)
    plugin_pb2_grpc.add_PluginServicer_to_server(states, server)
    discovery_pb2_grpc.add_DiscoveryServicer_to_server(Discovery(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"
