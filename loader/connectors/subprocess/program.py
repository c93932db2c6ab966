"""A connector's program: its private folder, how it runs, and how it answers one question."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from loader.connectors.subprocess.json_values import encode
from loader.connectors.subprocess.supervisor import Child, LongLineError, StartError
from loader.errors import TableError
from loader.spark.child_environment import child_environment
from loader.spark.interruption import interruptible
from loader.spark.temporary_files import private_folder
from loader.spec.redaction import excerpt

KIND = "connector"

_log = logging.getLogger("loader.program")
Message = TypeVar("Message", bound=Any)
_TICK = 0.5
_LARGEST = 1 << 30
"""The most bytes of an answer."""
_PATIENCE = 4
"""An answer may take so many times what a program may say nothing for."""


@contextmanager
def open_workspace(parent: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that only this user can read, and removes it.

    Removes the folders of loaders that were killed on this machine, too: their configurations hold
    secrets.

    Args:
        parent: the folder that holds it; the system's for temporary files by default.
    """
    with private_folder(KIND, parent) as folder:
        yield folder


def write_json(folder: Path, name: str, content: Any) -> Path:
    """Writes a value as JSON into a file that only this user can read; returns its path."""
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(encode(content))
    return path


class Program(Child):
    """A connector's program, which writes a message a line.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: variables, besides the few that every program gets.
        longest: the most bytes that one line may have.
        hear: gets each line that it writes to its standard error.

    Raises:
        TableError: if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        longest: int,
        hear: Callable[[str], None],
    ) -> None:
        # Some connectors take the machine's wall clock for UTC.
        known = {**child_environment(), "TZ": "UTC", **environment}
        self._longest = longest
        self._name = f"program {Path(command[0]).name}"
        try:
            super().__init__(command, known, hear, folder=folder, shorten=excerpt)
        except StartError as error:
            raise _explain_start(command[0], error) from None

    def messages(self) -> Iterator[bytes]:
        """Yields the lines that it writes to its standard output, until it ends.

        Raises:
            TableError: if a line is too long.
        """
        try:
            yield from self.lines(self._longest)
        except LongLineError:
            raise TableError(
                f"the program sent a message of more than {self._longest:,} bytes",
                where=self._name,
                remedy="Leave the large field out in the connector's own configuration, or raise "
                "message_limit",
            ) from None

    def end(self) -> int:
        try:
            return super().end()
        except StartError as error:
            raise _explain_start(self.command[0], error) from None


def _explain_start(program: str, error: StartError) -> TableError:
    return TableError(
        f"the program {program} cannot be started: {error}",
        where=f"program {Path(program).name}",
        remedy="Install it, or correct the command; a path is relative to the spec's folder",
    )


def read_answer(
    start: Callable[[Callable[[str], None]], Program],
    hear: Callable[[bytes], Message | None],
    why: Sequence[str],
    silence: float,
    where: str,
    before_words: Callable[[], None] = lambda: None,
    waits: bool = False,
) -> Iterator[Message]:
    """Yields a program's messages, until it ends.

    Args:
        start: starts the program.
        hear: turns a line into a message; None if it is none.
        why: the error that the messages reported, once the program has ended.
        silence: after so many seconds without output it is ended, and after four times as many
            in any case.
        where: the source, for messages.
        before_words: called before the program's output is shown.
        waits: whether a run that is asked to stop still waits for it.

    Raises:
        TableError: if it fails, or the run is asked to stop.
    """
    process = start(lambda text: _log.debug("%s: %s", where, text))
    done = threading.Event()
    hung = threading.Event()
    late = threading.Event()
    until = time.monotonic() + _PATIENCE * silence
    size = 0
    interrupted = threading.Event()

    def watch() -> None:
        while not done.wait(min(_TICK, silence)):
            if process.lingers() or interrupted.is_set():  # it has answered, or the run is stopping
                process.stop(patience=1.0)
                return
            if time.monotonic() > until:
                late.set()
                process.stop(patience=1.0)
                return
            if process.is_silent(silence):
                hung.set()
                process.stop(patience=1.0)
                return

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        with nullcontext() if waits else interruptible(interrupted.set):
            for line in process.messages():
                size += len(line)
                if size > _LARGEST:
                    raise TableError(
                        f"the program answered with more than {_LARGEST:,} bytes",
                        where=where,
                        remedy="Let the connector log less, or list fewer streams, in its own "
                        "configuration",
                    )
                message = hear(line)
                if message is not None:
                    yield message
            code = process.end()
    finally:
        done.set()
        process.stop(patience=1.0)
    if interrupted.is_set():
        raise TableError(
            "the run was interrupted while the program answered",
            where=where,
            remedy="Nothing of it is visible; run again",
        )
    if hung.is_set():
        raise TableError(
            f"the program has said nothing for {silence:,.0f} seconds, and was ended",
            where=where,
            remedy="Run again; if it needs longer, raise `timeout`",
        )
    if late.is_set():
        raise TableError(
            f"the program has not answered for {_PATIENCE * silence:,.0f} seconds, and was ended",
            where=where,
            remedy="Run again; if it needs longer, raise `timeout`",
        )
    if code or why:
        before_words()
        said = next(iter(why), "") or process.last_log_line
        how = f"it was killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise TableError(
            f"the program failed ({how}){': ' if said else ''}{excerpt(said, 1000).rstrip('.')}",
            where=where,
            remedy="Correct the connector's `config`; with --debug, all that it says is shown",
        )
