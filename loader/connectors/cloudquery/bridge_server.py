"""The bridge as a server, which `cloudquery sync` talks to."""

from __future__ import annotations

import json
import logging
import os
import tempfile
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
from loader.spark.temporary_files import ensure_own_folder, home_folder
from loader.spec.redaction import excerpt

_log = logging.getLogger("loader.program")
_HEARD = 2.0  # seconds


class BridgeServer:
    """A bridge that listens. Syncs wait until it has received the stored state.

    Attributes:
        address: where it listens.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._is_ending = threading.Event()
        self.address = ""

    def listen(self) -> bool:
        """Waits until it listens; returns False if it has ended instead.

        Raises:
            SpecError: if it cannot listen at its address.
        """
        first = next(self._read_messages(), {})
        if "failed" in first:
            raise SpecError(
                first["failed"], where="loader serve", remedy="Choose another --address"
            )
        self.address = first.get("listening", "")
        return bool(first)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields its messages, until :meth:`end`.

        Raises:
            TableError: if it ends by itself.
        """
        yield from self._read_messages()
        # A signal to both may end it before the loader has handled its own.
        if not self._is_ending.wait(_HEARD):
            raise TableError(
                "the bridge to CloudQuery has ended; syncs that it had begun have failed",
                where="loader serve",
                remedy="Start the loader again, and then the syncs; --debug shows what the bridge "
                "says",
            )

    def _read_messages(self) -> Iterator[dict[str, Any]]:
        for line in self._child.lines():
            yield json.loads(line)

    def answer(self, message: Mapping[str, Any]) -> None:
        """Sends it a message."""
        self._child.send(json.dumps(message) + "\n")

    def end(self) -> None:
        """Ends it: its syncs get the error that the loader is gone."""
        self._is_ending.set()
        self._child.end_input()


def find_default_socket() -> Path:
    """Returns the Unix socket for `cloudquery sync`, in a folder that only this user may enter.

    Raises:
        SpecError: no such folder can be created.
    """
    remedy = "name another socket: --address"
    problem: OSError | None = None
    for folder in _own_folders():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            ensure_own_folder(folder, "loader serve", remedy)
            return folder / "serve.sock"
        except OSError as error:
            problem = error
    raise SpecError(
        f"cannot create a folder for the socket: {problem}",
        where="loader serve",
        remedy=remedy.capitalize(),
    )


def _own_folders() -> Iterator[Path]:
    home = home_folder()
    if home is not None:
        yield home / ".cache" / "strandline" / "serve"
    yield Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}"


@contextmanager
def start_bridge_server(
    address: str, python: str | None, idle_timeout: float
) -> Iterator[BridgeServer]:
    """Starts the bridge, and ends it.

    Args:
        address: to listen at: `localhost:7778`, `unix:/path`.
        idle_timeout: the longest that a stream may send nothing, in seconds.
        python: a Python that has what the bridge needs; None is the loader's own.

    Raises:
        SpecError: if it cannot listen there.
    """
    with open_workspace() as folder:
        config = {"folder": str(folder), "address": address, "idle_timeout": idle_timeout}
        files: dict[str, Path] = {"config": write_json(folder, "config.json", config)}
        words = build_bridge_command(python, "loader serve", "serve", files)

        def hear(text: str) -> None:
            _log.debug("bridge: %s", text)

        try:
            child = Child(words, child_environment(), hear, takes_input=True, shorten=excerpt)
        except StartError as error:
            raise SpecError(
                f"{words[0]} cannot be started: {error}",
                where="loader serve",
                remedy="Name a Python that has cloudquery-plugin-pb: --python",
            ) from None
        try:
            bridge = BridgeServer(child)
            if not bridge.listen():
                child.end()
                raise SpecError(
                    f"the bridge to CloudQuery cannot start: {child.last_log_line}".rstrip(": "),
                    where="loader serve",
                    remedy="Name a Python that has cloudquery-plugin-pb: --python",
                )
            yield bridge
        finally:
            child.end_input()
            child.wait(GRACE)
            child.stop()
