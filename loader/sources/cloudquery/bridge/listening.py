"""Listens at an address, alone, and passes on what the loader answers."""

from __future__ import annotations

import json
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

from .server import Destination, tell
from .states import LIMITS, Discovery

_ALONE = ("grpc.so_reuseport", 0)
"""Otherwise a second server could share the port, and get some of a sync's streams."""
_PORT = re.compile(r":[0-9]+$")


def _bound(server: Any, address: str) -> int:
    """Takes an address; returns its port, 1 for a socket in the file system, 0 if it cannot."""
    path = address.removeprefix("unix:")
    if path != address:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(path.removeprefix("//"))
            return 0  # gRPC would take the path away from whoever listens
    elif not _is_free(address):
        return 0
    try:
        return int(server.add_insecure_port(address))
    except RuntimeError:
        return 0


def _is_free(address: str) -> bool:
    """Whether it is a host and a port, and nobody listens at any of the host's addresses.

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
    destination = Destination(Path(config["folder"]))
    server = grpc.server(futures.ThreadPoolExecutor(64), options=[*LIMITS, _ALONE])
    plugin_pb2_grpc.add_PluginServicer_to_server(destination, server)
    discovery_pb2_grpc.add_DiscoveryServicer_to_server(Discovery(), server)
    address = str(config["address"])
    port = _bound(server, address)
    if not port:
        tell({"failed": f"the address {address} is taken, or is none"})
        return 1
    server.start()
    tell(
        {
            "listening": address
            if address.startswith("unix:")
            else f"{address.rpartition(':')[0]}:{port}"
        }
    )
    for line in sys.stdin:
        answer = json.loads(line)
        if "states" in answer:
            destination.begin(answer["states"])
        elif "settled" in answer:
            destination.settled(answer["settled"])
        else:
            destination.answered(answer["session"], answer["error"])
    destination.close()
    server.stop(grace=1).wait()
    return 0
