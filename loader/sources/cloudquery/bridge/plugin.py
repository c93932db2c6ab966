"""A source plugin, started here or already running, and a channel to it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from cloudquery.discovery_v1 import discovery_pb2, discovery_pb2_grpc
from cloudquery.plugin_v3 import plugin_pb2_grpc

from .states import LIMITS

_STARTS_IN = 60.0
_PRELUDE = """\
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it ends with this program
except (OSError, AttributeError):
    pass
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    print(f"the plugin {sys.argv[1]} cannot be started: {error.strerror}", flush=True)
    os._exit(127)
"""
_OPTIONS = ("--network", "tcp", "--log-level", "info", "--log-format", "json", "--no-sentry")


class PluginError(Exception):
    """Reports that a plugin violates the protocol; the text is for users."""


class EndedError(Exception):
    """The plugin has ended before it answered."""


@contextmanager
def open_plugin(config: Mapping[str, Any]) -> Iterator[Any]:
    """Yields a stub for the plugin, and ends the plugin if it was started here.

    Args:
        config: `command` of a plugin, or `connection` of one that is running.
    """
    if config.get("connection"):
        with _channel(str(config["connection"]), None) as stub:
            yield stub
        return
    address = f"127.0.0.1:{_free_port()}"
    command = [*config["command"], "serve", "--address", address, *_OPTIONS]
    # In this process group, so that the loader ends it together with this program.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PRELUDE, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said: deque[str] = deque(maxlen=1)
    listener = threading.Thread(target=_pass_on, args=(child, said), daemon=True)
    listener.start()
    try:
        with _channel(address, child) as stub:
            yield stub
    except EndedError:
        listener.join(5)
        last = said[0] if said else f"the plugin ended with exit code {child.returncode}"
        raise PluginError(last) from None
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()


@contextmanager
def _channel(address: str, child: subprocess.Popen[bytes] | None) -> Iterator[Any]:
    with grpc.insecure_channel(address, options=LIMITS) as channel:
        _await(channel, address, child)
        versions = discovery_pb2_grpc.DiscoveryStub(channel).GetVersions(
            discovery_pb2.GetVersions.Request()
        )
        if 3 not in versions.versions:
            raise PluginError(f"the plugin speaks the protocols {list(versions.versions)}, not 3")
        yield plugin_pb2_grpc.PluginStub(channel)


def _await(channel: Any, address: str, child: subprocess.Popen[bytes] | None) -> None:
    ready = grpc.channel_ready_future(channel)
    began = time.monotonic()
    while time.monotonic() < began + _STARTS_IN:
        try:
            ready.result(timeout=0.2)
            return
        except grpc.FutureTimeoutError:
            if child is not None and child.poll() is not None:
                raise EndedError from None
    raise PluginError(f"the plugin does not answer at {address}")


def _pass_on(child: subprocess.Popen[bytes], said: deque[str]) -> None:
    """Hands the plugin's log to the loader, by standard error."""
    assert child.stdout is not None
    for line in child.stdout:
        said.append(line.decode("utf-8", "replace").strip())
        sys.stderr.buffer.write(line)
        sys.stderr.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
