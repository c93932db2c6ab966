"""Listens at an address, alone, and passes on what the loader answers.

gRPC cannot tell the clients of a Unix socket apart, and whose state may count depends on that. So
each connection to the socket is passed on through another one, whose name is its own."""

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

from .arrow_input import OTHER_CALLS, STREAMS
from .destination import Destination, tell
from .state_backend import LIMITS, Discovery

MOST_CONNECTIONS = 256
_INNER = "grpc.sock"
_CHUNK = 1 << 18

_OPTIONS = [
    # otherwise a second server could share the port, and get some of a sync's streams
    ("grpc.so_reuseport", 0),
    # an idle connection, and one whose client has gone without closing it
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 300_000),
]
_IDLE_TIMEOUT = 3600.0
"""Seconds that a stream may send nothing."""
_PORT = re.compile(r":[0-9]+$")


def bind(path: str) -> socket.socket | None:
    """Takes a path; returns the socket, None if another one listens there.

    Raises:
        OSError: if there can be none, such as a path that is too long, or one of a file.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(path)
        return None
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):  # of a server that was killed
            os.unlink(path)
    found = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # mode 0600 from the first moment on
    try:
        found.bind(path)
        found.listen()
    except OSError:
        found.close()
        raise
    finally:
        os.umask(before)
    return found


class Relay:
    """Passes connections on to the server.

    Names in `folder` are relative, as that of a Unix socket may have no more than 107 characters.
    So this process has to run there.

    Args:
        outer: where clients connect.

    Attributes:
        inner: where the server is to listen, which no other user can reach: the folder is private.
    """

    def __init__(self, outer: socket.socket) -> None:
        self.inner = f"unix:{_INNER}"
        self._outer = outer
        self._count = 0
        self._open = 0

    def start(self) -> None:
        """Begins; the server listens already."""
        threading.Thread(target=asyncio.run, args=(self._run(),), name="relay", daemon=True).start()

    async def _run(self) -> None:
        server = await asyncio.start_unix_server(self._pass_on, sock=self._outer, limit=_CHUNK)
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open += 1
        self._count += 1
        name = f"client{self._count}"
        try:
            inner = await self._connect(name)
            await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))
        except OSError:  # the server ends
            writer.close()
        finally:
            self._open -= 1
            Path(name).unlink(missing_ok=True)

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects under a name, which the server gets to know the client by."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(name)
            await asyncio.get_running_loop().sock_connect(connection, _INNER)
            return await asyncio.open_unix_connection(sock=connection, limit=_CHUNK)
        except OSError:
            connection.close()
            raise


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes on until one side ends; the other one ends then, too."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # it has gone
    finally:
        writer.close()


class _UnusableError(Exception):
    """An address that cannot be listened at; the text is for people."""


def _is_free(address: str) -> bool:
    """Returns whether it is a host and a port that is free at all of the host's addresses.

    gRPC is content with one of them, such as IPv6 only, and chooses another port for one above
    65535.
    """
    host, _, port = address.rpartition(":")
    if not _PORT.search(address) or int(port) > 65535:
        return False
    if port == "0":
        return True
    try:
        known = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, number, _, place in known:
        with suppress(OSError), socket.socket(family, kind, number) as probe:
            probe.settimeout(1)
            if probe.connect_ex(place) == 0:
                return False
    return True


def serve(config: Mapping[str, Any]) -> int:
    """Serves until its input ends: the loader is gone, or wants it to end."""
    os.umask(0o077)
    folder = Path(config["folder"])
    destination = Destination(folder, float(config.get("idle_timeout", _IDLE_TIMEOUT)))
    threads = STREAMS + OTHER_CALLS
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
        tell({"failed": str(error)})
        return 1
    tell({"listening": address})
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
    """Listens at a Unix socket; returns its address, as clients write it."""
    where = Path.cwd() / path.removeprefix("//")
    try:
        outer = bind(path.removeprefix("//"))
    except OSError as error:
        raise _UnusableError(
            f"the socket {where} cannot be made: {error.strerror or error}"
        ) from None
    if outer is None:
        raise _UnusableError(f"the address unix:{where} is taken")
    os.chdir(folder)  # see Relay
    relay = Relay(outer)
    server.add_insecure_port(relay.inner)
    server.start()
    relay.start()
    return f"unix://{where}"


def _listen_at_port(server: Any, address: str) -> str:
    """Listens at a port; returns its address."""
    port = 0
    if _is_free(address):
        with suppress(RuntimeError):
            port = int(server.add_insecure_port(address))
    if not port:
        raise _UnusableError(f"the address {address} is taken, or is none")
    server.start()
    return f"{address.rpartition(':')[0]}:{port}"
