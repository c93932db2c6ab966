"""A child process that writes a message a line; it ends when the loader does."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from loader.errors import TableError
from loader.sources.programs.pipe import Pipe
from loader.spark.child_environment import child_environment
from loader.spec.redaction import excerpt

_GRACE = 10.0
"""Seconds between asking a program to end and killing it."""

LINGER = 5.0
"""Seconds that what a program leaves behind may keep its output open without a word."""
_TICK = 0.05

LONGEST_NOTE = 1 << 16
"""The most characters of a line on standard error; an endless one must not fill the memory."""
_READ_NOTE = LONGEST_NOTE << 2

_PRELUDE = """\
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
except (OSError, AttributeError):
    pass  # not Linux: it ends when it writes to the closed pipe
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(error.strerror, file=sys.stderr)
    os._exit(127)
"""
_NOT_STARTED = 127


class Process:
    """A running program.

    The thread that starts it must live as long as it does: Linux kills the program when that
    thread ends.

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
        self.command = tuple(command)
        self.longest = longest
        self.heard = time.monotonic()
        """When it last wrote a line."""
        self.said = self.heard
        """When it last wrote one to its standard output."""
        self._ended: float | None = None
        self._hear = hear
        self._tail: deque[str] = deque(maxlen=2)
        known = child_environment()
        known["TZ"] = "UTC"  # some connectors take the machine's wall clock for UTC
        prelude = [sys.executable, "-I", "-S", "-c", _PRELUDE, str(os.getpid())]
        try:
            self._child = subprocess.Popen(
                [*prelude, *command],
                cwd=folder,
                env={**known, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise self._unstartable(str(error.strerror)) from None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._output = Pipe(self._child.stdout)
        self._errors = Pipe(self._child.stderr)
        self._listener = threading.Thread(target=self._listen, name="stderr", daemon=True)
        self._listener.start()

    def lines(self) -> Iterator[bytes]:
        """Yields what it writes to its standard output, line by line, until it ends.

        If :meth:`stop` ends it, half a line may be left, which is not yielded.

        Raises:
            TableError: if a line is too long.
        """
        read = io.BufferedReader(self._output, 1 << 20).readline
        while line := read(self.longest + 1):
            if self._output.is_abandoned and not line.endswith(b"\n"):
                return
            self.heard = self.said = time.monotonic()
            if len(line) > self.longest:
                raise TableError(
                    f"the program sent a message of more than {self.longest:,} bytes",
                    where=self.name,
                    remedy="Leave the large field out in the connector's own configuration, or "
                    "raise message_limit",
                )
            yield line

    def end(self) -> int:
        """Waits until it has ended; returns its exit code, negative for a signal.

        Raises:
            TableError: if there is no such program.
        """
        code = self._child.wait()
        self._listener.join(timeout=_GRACE)
        self._errors.leave()
        if code == _NOT_STARTED and len(self._tail) == 1:
            raise self._unstartable(self._tail[0])
        return code

    def stop(self, patience: float = _GRACE) -> None:
        """Ends it: asks first, kills it and its children after `patience` seconds.

        Also ends the processes that it left behind when it ended by itself. A process with a
        session of its own lives on, but its output is no longer read.
        """
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _GRACE)):
            if self._child.poll() is not None and not self._has_members():
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
            before = time.monotonic() + min(1.0, seconds)
            while number is signal.SIGTERM and self._has_members() and time.monotonic() < before:
                time.sleep(_TICK)
        self._output.leave()
        self._errors.leave()

    def lingers(self) -> bool:
        """Whether it has ended, and something that it has started keeps its output open, silent."""
        if self._child.poll() is None:
            return False
        now = time.monotonic()
        self._ended = self._ended or now
        return now - max(self._ended, self.said) > LINGER and self._output.waits

    def _has_members(self) -> bool:
        """Whether its group has a process, also after its own end."""
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def wait(self, seconds: float) -> bool:
        """Waits for it to end by itself; returns whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return self._child.poll() is not None

    @property
    def name(self) -> str:
        """The program, for messages."""
        return f"program {Path(self.command[0]).name}"

    @property
    def last_words(self) -> str:
        """The last line that is not blank on its standard error; empty if there was none."""
        return self._tail[-1] if self._tail else ""

    def _listen(self) -> None:
        read = io.BufferedReader(self._errors).readline
        with suppress(ValueError, OSError):
            while line := read(_READ_NOTE):
                self.heard = time.monotonic()
                text = line.decode("utf-8", "replace").rstrip()
                if len(text) > LONGEST_NOTE:
                    text = excerpt(text, LONGEST_NOTE) + "…"
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = read(_READ_NOTE)
                    self.heard = time.monotonic()
                if text:
                    self._tail.append(text)
                self._hear(text)

    def _unstartable(self, why: str) -> TableError:
        return TableError(
            f"the program {self.command[0]} cannot be started: {why}",
            where=self.name,
            remedy="Install it, or correct the command; a path is relative to the spec's folder",
        )
