"""Runs the program of a connector in a private folder, for a read or for a short command."""

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
_POLL_SECONDS = 0.5
_MAX_ANSWER_BYTES = 1 << 30
"""The maximum size of a program's output in :func:`read_answer`."""
_ANSWER_FACTOR = 4
"""The maximum run time of a program in :func:`read_answer`, in multiples of its `timeout`."""


@contextmanager
def open_workspace(parent: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that only the current user can read, and removes it after the block.

    Also removes the folders of killed loader processes on this machine, because they contain
    secrets.

    Args:
        parent: the parent folder. The default is the system's temporary folder.
    """
    with private_folder(KIND, parent) as folder:
        yield folder


def write_json(folder: Path, name: str, content: Any) -> Path:
    """Writes JSON to a file that only the current user can read. Returns its path."""
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(encode(content))
    return path


class Program(Child):
    """The running program of a connector, which writes one message per line.

    Args:
        environment: variables to set in addition to those that all child processes get.
        max_line_bytes: the maximum size of one line.

    Raises:
        TableError: if the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        max_line_bytes: int,
        on_log_line: Callable[[str], None],
    ) -> None:
        # The time zone is UTC, because some connectors treat local time as UTC.
        variables = {**child_environment(), "TZ": "UTC", **environment}
        self._max_line_bytes = max_line_bytes
        self._name = f"program {Path(command[0]).name}"
        try:
            super().__init__(command, variables, on_log_line, folder=folder, shorten=excerpt)
        except StartError as error:
            raise _explain_start(command[0], error) from None

    def messages(self) -> Iterator[bytes]:
        """Yields the lines of the program's stdout until the program exits.

        Raises:
            TableError: if a line is too long.
        """
        try:
            yield from self.lines(self._max_line_bytes)
        except LongLineError:
            raise TableError(
                f"the program sent a message of more than {self._max_line_bytes:,} bytes",
                where=self._name,
                remedy="Exclude the large field in the connector's `config`, or raise "
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
        remedy="Install the program, or correct the command; paths are relative to the spec",
    )


def read_answer(
    start: Callable[[Callable[[str], None]], Program],
    parse: Callable[[bytes], Message | None],
    errors: Sequence[str],
    timeout: float,
    where: str,
    before_output: Callable[[], None] = lambda: None,
    ignores_interruption: bool = False,
) -> Iterator[Message]:
    """Runs a short command of a program, and yields its messages until the program exits.

    Args:
        start: starts the program. Its argument is a callback that receives each line of the log.
        parse: returns the message in a line, or None.
        errors: a list to which `parse` adds the errors that the messages report.
        timeout: the time in seconds without output after which the program is stopped. Its total
            run time is limited to four times as long.
        before_output: called before any output of the program is shown.
        ignores_interruption: whether the program may finish if the user interrupts the run.

    Raises:
        TableError: if the program fails, or the user interrupts the run.
    """
    process = start(lambda text: _log.debug("%s: %s", where, text))
    done = threading.Event()
    is_interrupted = threading.Event()
    until = time.monotonic() + _ANSWER_FACTOR * timeout
    stop_reason = ""
    size = 0

    def watch() -> None:
        nonlocal stop_reason
        while not done.wait(min(_POLL_SECONDS, timeout)):
            if not (process.has_lingering_output() or is_interrupted.is_set()):
                if time.monotonic() > until:
                    stop_reason = f"has not answered for {_ANSWER_FACTOR * timeout:,.0f} seconds"
                elif process.is_silent(timeout):
                    stop_reason = f"has sent nothing for {timeout:,.0f} seconds"
                else:
                    continue
            process.stop(patience=1.0)
            return

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        with nullcontext() if ignores_interruption else interruptible(is_interrupted.set):
            for line in process.messages():
                size += len(line)
                if size > _MAX_ANSWER_BYTES:
                    raise TableError(
                        f"the program answered with more than {_MAX_ANSWER_BYTES:,} bytes",
                        where=where,
                        remedy="Reduce the connector's log, or list fewer streams, in its `config`",
                    )
                message = parse(line)
                if message is not None:
                    yield message
            code = process.end()
    finally:
        done.set()
        process.stop(patience=1.0)
    if is_interrupted.is_set():
        raise TableError(
            "the run was interrupted while the program answered",
            where=where,
            remedy="No rows were appended; run again",
        )
    if stop_reason:
        raise TableError(
            f"the program {stop_reason}, and was stopped",
            where=where,
            remedy="Run again; if the program needs longer, raise `timeout`",
        )
    if code or errors:
        before_output()
        reason = next(iter(errors), "") or process.last_log_line
        how = f"it was killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise TableError(
            f"the program failed ({how}){': ' if reason else ''}"
            f"{excerpt(reason, 1000).rstrip('.')}",
            where=where,
            remedy="Correct the connector's `config`; --debug shows its complete log",
        )
