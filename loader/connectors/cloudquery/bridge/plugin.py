"""Starts a source plugin, or connects to a running plugin."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from cloudquery.discovery_v1 import discovery_pb2, discovery_pb2_grpc
from cloudquery.plugin_v3 import plugin_pb2_grpc

from ...subprocess.supervisor import Child, StartError  # noqa: TID252 - there is no package `loader`
from .state_backend import LIMITS

_START_SECONDS = 60.0
_OPTIONS = ("--network", "tcp", "--log-level", "info", "--log-format", "json", "--no-sentry")


class PluginError(Exception):
    """A plugin cannot be used. The message is shown to users."""


class EndedError(Exception):
    """The plugin exited before it answered."""


@contextmanager
def open_plugin(config: Mapping[str, Any]) -> Iterator[Any]:
    """Yields a gRPC stub for a plugin. Afterwards stops the plugin if this function started it.

    Args:
        config: the `command` that starts a plugin, or the `connection` to a running plugin.
    """
    if config.get("connection"):
        with _open_stub(str(config["connection"]), None) as stub:
            yield stub
        return
    address = f"127.0.0.1:{_find_free_port()}"
    command = [*config["command"], "serve", "--address", address, *_OPTIONS]
    # The plugin is in the bridge's process group, so that the loader terminates both.
    child = Child(command, os.environ, _relay_log, sends_messages=False, own_group=False)
    try:
        with _open_stub(address, child) as stub:
            yield stub
    except EndedError:
        try:
            code = child.end()
        except StartError as error:
            raise PluginError(f"the plugin {command[0]} cannot be started: {error}") from None
        raise PluginError(child.last_log_line or f"the plugin exited with code {code}") from None
    finally:
        child.stop(patience=5.0)


@contextmanager
def _open_stub(address: str, child: Child | None) -> Iterator[Any]:
    with grpc.insecure_channel(address, options=LIMITS) as channel:
        _wait_until_ready(channel, address, child)
        versions = discovery_pb2_grpc.DiscoveryStub(channel).GetVersions(
            discovery_pb2.GetVersions.Request()
        )
        if 3 not in versions.versions:
            raise PluginError(
                f"the plugin supports the protocol versions {list(versions.versions)}, not 3"
            )
        yield plugin_pb2_grpc.PluginStub(channel)


def _wait_until_ready(channel: Any, address: str, child: Child | None) -> None:
    ready = grpc.channel_ready_future(channel)
    began = time.monotonic()
    while time.monotonic() < began + _START_SECONDS:
        try:
            ready.result(timeout=0.2)
            return
        except grpc.FutureTimeoutError:
            if child is not None and child.wait(0):
                raise EndedError from None
    raise PluginError(f"the plugin does not answer at {address}")


def _relay_log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
