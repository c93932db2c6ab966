"""The bridge as a server, which `cloudquery sync` talks to."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loader.errors import SpecError, TableError
from loader.sources.cloudquery.bridge_command import command
from loader.sources.programs.workspace import workspace, write_json
from loader.spark.child_environment import child_environment
from loader.spark.temporary_files import ensure_own_folder, home_folder

_log = logging.getLogger("loader.program")
_HEARD = 2.0  # seconds


class Serving:
    """A bridge that listens. Syncs wait until it has received the stored state.

    Attributes:
        address: where it listens.
    """

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._told_to_end = threading.Event()
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
        if not self._told_to_end.wait(_HEARD):
            raise TableError(
                "the bridge to CloudQuery has ended; syncs that it had begun have failed",
                where="loader serve",
                remedy="Start the loader again, and then the syncs; --debug shows what the bridge "
                "says",
            )

    def _read_messages(self) -> Iterator[dict[str, Any]]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            yield json.loads(line)

    def answer(self, message: Mapping[str, Any]) -> None:
        """Answers it."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended, or is ending
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()

    def end(self) -> None:
        """Ends it: its syncs get the error that the loader is gone."""
        self._told_to_end.set()
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()


def default_socket() -> Path:
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
def serving(address: str, python: str | None, idle_timeout: float) -> Iterator[Serving]:
    """Starts the bridge, and ends it.

    Args:
        address: to listen at: `localhost:7778`, `unix:/path`.
        idle_timeout: the longest that a stream may send nothing, in seconds.
        python: a Python that has what the bridge needs; None is the loader's own.

    Raises:
        SpecError: if it cannot listen there.
    """
    with workspace() as folder:
        config = {"folder": str(folder), "address": address, "idle_timeout": idle_timeout}
        files: dict[str, Path] = {"config": write_json(folder, "config.json", config)}
        words = command(python, "loader serve", "serve", files)
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise SpecError(
                f"{words[0]} cannot be started: {error.strerror}",
                where="loader serve",
                remedy="Name a Python that has cloudquery-plugin-pb: --python",
            ) from None
        assert child.stdin is not None
        assert child.stderr is not None
        stdin, stderr = child.stdin, child.stderr

        said: deque[str] = deque(maxlen=1)

        def hear() -> None:
            for line in stderr:
                said.append(line.strip())
                _log.debug("bridge: %s", line.rstrip())

        hearing = threading.Thread(target=hear, name="bridge", daemon=True)
        hearing.start()
        try:
            bridge = Serving(child)
            if not bridge.listen():
                hearing.join(5)
                raise SpecError(
                    f"the bridge to CloudQuery cannot start: {''.join(said)}".rstrip(": "),
                    where="loader serve",
                    remedy="Name a Python that has cloudquery-plugin-pb: --python",
                )
            yield bridge
        finally:
            with suppress(OSError):
                stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
