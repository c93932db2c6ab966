"""Listens at an address, alone, and passes on what the loader answers."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from cloudquery.discovery_v1 import discovery_pb2_grpc
from cloudquery.plugin_v3 import plugin_pb2_grpc

from .budget import OTHER_CALLS, STREAMS
from .server import Destination, tell
from .states import LIMITS, Discovery
from .unix_socket import Relay, bind

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


class _UnusableError(Exception):
    """An address that cannot be listened at; the text is for people."""


def _is_free(address: str) -> bool:
    """Whether it is a host and a port that is free at all of the host's addresses.

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
