"""Runs the bridge as a server for `cloudquery sync`, and exchanges messages with it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader.connectors.cloudquery.source import build_bridge_command
from loader.connectors.subprocess.program import open_workspace, write_json
from loader.connectors.subprocess.supervisor import GRACE, Child, StartError
from loader.errors import SpecError, TableError
from loader.spark.child_environment import child_environment
from loader.spec.redaction import excerpt

_log = logging.getLogger("loader.program")
_EXIT_SECONDS = 2.0


class BridgeServer:
    """A running bridge. Syncs wait until it has received the stored state from the loader."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._is_ending = threading.Event()
        self.address = ""

    def listen(self) -> bool:
        """Waits until the bridge listens. Returns False if the bridge exits instead.

        Raises:
            SpecError: if the bridge cannot listen on its address.
        """
        first = next(self._read_messages(), {})
        if "failed" in first:
            raise SpecError(
                first["failed"], where="loader serve", remedy="Choose another --address"
            )
        self.address = first.get("listening", "")
        return bool(first)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the messages of the bridge until :meth:`end`.

        Raises:
            TableError: if the bridge exits unexpectedly.
        """
        yield from self._read_messages()
        # A signal may reach both processes. The bridge may then exit before the loader has handled
        # the signal.
        if not self._is_ending.wait(_EXIT_SECONDS):
            raise TableError(
                "the bridge to CloudQuery has exited, and its open syncs have failed",
                where="loader serve",
                remedy="Restart the loader, and then the syncs; --debug shows the bridge's log",
            )

    def _read_messages(self) -> Iterator[dict[str, Any]]:
        for line in self._child.lines():
            yield json.loads(line)

    def answer(self, message: Mapping[str, Any]) -> None:
        self._child.send(json.dumps(message) + "\n")

    def end(self) -> None:
        """Ends the bridge. Its open syncs fail."""
        self._is_ending.set()
        self._child.end_input()


@contextmanager
def start_bridge_server(
    address: str, python: str | None, idle_timeout: float
) -> Iterator[BridgeServer]:
    """Starts the bridge as a server, and stops it after the block.

    Args:
        address: the address to listen on, such as `localhost:7778` or `unix:/path`.
        python: a Python interpreter that has `cloudquery-plugin-pb`; None for the loader's own.
        idle_timeout: the time in seconds after which a silent stream is cancelled.

    Raises:
        SpecError: if the bridge cannot start, or cannot listen on the address.
    """
    with open_workspace() as folder:
        config = {"folder": str(folder), "address": address, "idle_timeout": idle_timeout}
        files: dict[str, Path] = {"config": write_json(folder, "config.json", config)}
        command = build_bridge_command(python, "loader serve", "serve", files)

        def on_log_line(text: str) -> None:
            _log.debug("bridge: %s", text)

        try:
            child = Child(
                command, child_environment(), on_log_line, takes_input=True, shorten=excerpt
            )
        except StartError as error:
            raise SpecError(
                f"{command[0]} cannot be started: {error}",
                where="loader serve",
                remedy="Set --python to an interpreter with cloudquery-plugin-pb",
            ) from None
        try:
            bridge = BridgeServer(child)
            if not bridge.listen():
                child.end()
                raise SpecError(
                    f"the bridge to CloudQuery cannot start: {child.last_log_line}".rstrip(": "),
                    where="loader serve",
                    remedy="Set --python to an interpreter with cloudquery-plugin-pb",
                )
            yield bridge
        finally:
            child.end_input()
            child.wait(GRACE)
            child.stop()
