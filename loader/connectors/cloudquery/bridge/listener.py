"""Listens for clients on an address, and passes the loader's answers to the destination.

The destination must know which client sends a state, but gRPC cannot distinguish the clients of a
Unix socket. So the bridge relays each connection through a socket that has a unique name.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import sys
import threading
from collections.abc import Mapping
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from cloudquery.discovery_v1 import discovery_pb2_grpc
from cloudquery.plugin_v3 import plugin_pb2_grpc

from .arrow_input import MAX_OTHER_CALLS, MAX_STREAMS
from .destination import Destination, send_to_loader
from .state_backend import LIMITS, Discovery

MAX_CONNECTIONS = 256
_SOCKET_NAME = "grpc.sock"
_CHUNK = 1 << 18

_OPTIONS = [
    # Otherwise a second server could share the port and receive some streams of a sync.
    ("grpc.so_reuseport", 0),
    # Close a connection if the client does not start the protocol, or has vanished.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 300_000),
]
_IDLE_TIMEOUT = 3600.0
"""The time in seconds after which a silent stream is cancelled."""
_PORT = re.compile(r":[0-9]+$")


def bind(path: str) -> socket.socket | None:
    """Binds a Unix socket to a path. Returns None if another process already listens there.

    Raises:
        OSError: if the path is too long, or if a file already exists there.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(path)
        return None
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):  # the socket of a killed server
            os.unlink(path)
    result = socket.socket(socket.AF_UNIX)
    old_mask = os.umask(0o177)  # bind() then creates the socket with mode 0600
    try:
        result.bind(path)
        result.listen()
    except OSError:
        result.close()
        raise
    finally:
        os.umask(old_mask)
    return result


class Relay:
    """Relays clients' connections to the server.

    A Unix socket's path can have at most 107 characters, so the inner sockets have relative names.
    The current folder must be the bridge's private folder.

    Attributes:
        inner: the address of the server. Other users cannot access it.
    """

    def __init__(self, outer: socket.socket) -> None:
        self.inner = f"unix:{_SOCKET_NAME}"
        self._outer = outer
        self._count = 0
        self._open = 0

    def start(self) -> None:
        """Starts relaying. The server must already be listening."""
        threading.Thread(target=asyncio.run, args=(self._run(),), name="relay", daemon=True).start()

    async def _run(self) -> None:
        server = await asyncio.start_unix_server(
            self._relay_connection, sock=self._outer, limit=_CHUNK
        )
        await server.serve_forever()

    async def _relay_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._open >= MAX_CONNECTIONS:
            writer.close()
            return
        self._open += 1
        self._count += 1
        name = f"client{self._count}"
        try:
            inner = await self._connect(name)
            await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))
        except OSError:  # the server has stopped
            writer.close()
        finally:
            self._open -= 1
            Path(name).unlink(missing_ok=True)

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(name)
            await asyncio.get_running_loop().sock_connect(connection, _SOCKET_NAME)
            return await asyncio.open_unix_connection(sock=connection, limit=_CHUNK)
        except OSError:
            connection.close()
            raise


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side has disconnected
    finally:
        writer.close()


class _UnusableError(Exception):
    """The bridge cannot listen on an address. The message is shown to users."""


def _is_free(address: str) -> bool:
    """Returns whether a host and port are valid, and the port is free on all addresses.

    gRPC accepts a port that is free on only one address, such as the IPv6 address, and replaces
    ports above 65535.
    """
    host, _, port = address.rpartition(":")
    if not _PORT.search(address) or int(port) > 65535:
        return False
    if port == "0":
        return True
    try:
        addresses = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, target in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.settimeout(1)
            if probe.connect_ex(target) == 0:
                return False
    return True


def serve(config: Mapping[str, Any]) -> int:
    """Serves clients until the loader closes the bridge's standard input."""
    os.umask(0o077)
    folder = Path(config["folder"])
    destination = Destination(folder, float(config.get("idle_timeout", _IDLE_TIMEOUT)))
    threads = MAX_STREAMS + MAX_OTHER_CALLS
    server = grpc.server(
        futures.ThreadPoolExecutor(threads),
        options=[*LIMITS, *_OPTIONS],
        maximum_concurrent_rpcs=threads,
    )
    plugin_pb2_grpc.add_PluginServicer_to_server(destination, server)
    discovery_pb2_grpc.add_DiscoveryServicer_to_server(Discovery(), server)
    address = str(config["address"])
    path = address.removeprefix("unix:")
    try:
        if path != address:
            address = _listen_at_path(server, path, folder)
        else:
            address = _listen_at_port(server, address)
    except _UnusableError as error:
        send_to_loader({"failed": str(error)})
        return 1
    send_to_loader({"listening": address})
    for line in sys.stdin:
        answer = json.loads(line)
        if "states" in answer:
            destination.begin(answer["states"])
        elif "settled" in answer:
            destination.confirm_state(answer["settled"])
        else:
            destination.end_session(answer["session"], answer["error"])
    destination.close()
    server.stop(grace=1).wait()
    if address.startswith("unix:"):
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)
    return 0


def _listen_at_path(server: Any, path: str, folder: Path) -> str:
    where = Path.cwd() / path.removeprefix("//")
    try:
        outer = bind(path.removeprefix("//"))
    except OSError as error:
        raise _UnusableError(
            f"the socket {where} cannot be created: {error.strerror or error}"
        ) from None
    if outer is None:
        raise _UnusableError(f"the address unix:{where} is in use")
    os.chdir(folder)  # Relay uses relative names
    relay = Relay(outer)
    server.add_insecure_port(relay.inner)
    server.start()
    relay.start()
    return f"unix://{where}"


def _listen_at_port(server: Any, address: str) -> str:
    port = 0
    if _is_free(address):
        with suppress(RuntimeError):
            port = int(server.add_insecure_port(address))
    if not port:
        raise _UnusableError(f"the address {address} is in use, or invalid")
    server.start()
    return f"{address.rpartition(':')[0]}:{port}"
