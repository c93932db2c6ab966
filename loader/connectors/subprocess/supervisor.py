"""Starts and stops the child processes of all connectors.

A child writes one message per line to its standard output, and its log to stderr. When this process
exits, so do the child and its descendants.

The module imports only the standard library, because CloudQuery's bridge uses it in an environment
that may not have the loader. :class:`loader.connectors.subprocess.program.Program` converts its
exceptions to error messages for users.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

GRACE = 10.0
"""The time in seconds between SIGTERM and SIGKILL."""
LINGER = 5.0
"""The time in seconds after which a silent process that outlives the child is reported."""
MAX_LOG_LINE = 1 << 16
"""The length to which log lines are truncated, because an endless line would exhaust memory."""

_READ_BYTES = MAX_LOG_LINE << 2
_POLL_SECONDS = 0.05
_TICK_MS = 200
_DRAIN_SECONDS = 2.0
"""The time in seconds for which remaining output is still read after :meth:`stop`."""

_CHILD_SETUP_CODE = """\
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
except (OSError, AttributeError):
    pass  # not Linux: the child ends when it writes to the closed pipe
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(error.strerror, file=sys.stderr)
    os._exit(127)
"""
_EXIT_NOT_STARTED = 127


class StartError(Exception):
    """A child cannot be started. The message is the reason."""


class LongLineError(Exception):
    """A child wrote a line that exceeds the limit."""


class Child:
    """A child process. It forms a process group together with the processes that it starts.

    Linux kills the child when the thread that started it exits, so this thread must live as long as
    the child.

    Args:
        environment: all environment variables of the child.
        on_log_line: called with each line of the log (stderr).
        takes_input: whether the child reads its standard input (:meth:`send`). Such a child is not
            killed when this process exits, so it must exit when its input is closed.
        sends_messages: whether stdout contains messages (:meth:`lines`). If not, stdout is part of
            the log.
        own_group: whether to create a process group. If not, the child stays in the group of this
            process, and :meth:`stop` stops only the child.

    Raises:
        StartError: if the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_log_line: Callable[[str], None],
        *,
        folder: Path | None = None,
        takes_input: bool = False,
        sends_messages: bool = True,
        own_group: bool = True,
        shorten: Callable[[str, int], str] = lambda text, length: text[:length],
    ) -> None:
        self.command = tuple(command)
        self.last_output_at = time.monotonic()
        """The time of the last line on either output."""
        self.last_message_at = self.last_output_at
        """The time of the last line on stdout."""
        self._on_log_line = on_log_line
        self._shorten = shorten
        self._own_group = own_group
        self._ended_at: float | None = None
        self._last_lines: deque[str] = deque(maxlen=2)
        prelude = [sys.executable, "-I", "-S", "-c", _CHILD_SETUP_CODE, str(os.getpid())]
        try:
            self._child = subprocess.Popen(
                [*([] if takes_input else prelude), *command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if sends_messages else subprocess.STDOUT,
                bufsize=0,
                start_new_session=own_group,
            )
        except OSError as error:
            raise StartError(str(error.strerror)) from None
        assert self._child.stdout is not None
        self._output = _Pipe(self._child.stdout)
        self._reader = io.BufferedReader(self._output, 1 << 20)
        self._log = _Pipe(self._child.stderr) if self._child.stderr else self._output
        self._log_thread = threading.Thread(target=self._relay_log, name="log", daemon=True)
        self._log_thread.start()

    def lines(self, max_bytes: int = -1) -> Iterator[bytes]:
        """Yields the lines of stdout until the output ends.

        Drops an incomplete last line after :meth:`stop`.

        Args:
            max_bytes: the maximum size of a line; negative for no limit.

        Raises:
            LongLineError: if a line exceeds the limit.
        """
        while line := self._reader.readline(max_bytes + 1 if max_bytes >= 0 else -1):
            if self._output.is_abandoned and not line.endswith(b"\n"):
                return
            self.note_progress()
            if 0 <= max_bytes < len(line):
                raise LongLineError
            yield line

    def send(self, text: str) -> None:
        """Writes to the child's standard input. Does nothing if the child has exited."""
        assert self._child.stdin is not None
        rest = memoryview(text.encode())
        with suppress(BrokenPipeError, ValueError):
            while rest:
                rest = rest[self._child.stdin.write(rest) :]

    def end_input(self) -> None:
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()

    def end(self) -> int:
        """Waits for the child to exit. Returns its exit code, which is negative after a signal.

        Raises:
            StartError: if the program does not exist.
        """
        code = self._child.wait()
        self._log_thread.join(timeout=GRACE)
        self._log.stop_reading()
        if code == _EXIT_NOT_STARTED and len(self._last_lines) == 1:
            raise StartError(self._last_lines[0])
        return code

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds` for the child to exit on its own. Returns whether it has exited."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return self._child.poll() is not None

    def stop(self, patience: float = GRACE) -> None:
        """Sends SIGTERM to the child, and SIGKILL to its group after `patience` seconds.

        If the child has already exited, terminates its running descendants. Processes in another
        session continue to run, but their output is no longer read.
        """
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, GRACE)):
            if self._child.poll() is not None and not self._has_live_processes():
                break
            self._signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
            before = time.monotonic() + min(1.0, seconds)
            while (
                number is signal.SIGTERM
                and self._has_live_processes()
                and time.monotonic() < before
            ):
                time.sleep(_POLL_SECONDS)
        self._output.stop_reading()
        self._log.stop_reading()

    def note_progress(self) -> None:
        """Restarts the silence timer, after output or while the child is paused."""
        self.last_output_at = self.last_message_at = time.monotonic()

    def is_silent(self, seconds: float) -> bool:
        """Returns whether the child is running but has written nothing for `seconds`."""
        return time.monotonic() - self.last_output_at > seconds and not self.wait(0)

    def has_lingering_output(self) -> bool:
        """Returns whether the child has exited, but another process keeps its output open."""
        if self._child.poll() is None:
            return False
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        return now - max(self._ended_at, self.last_message_at) > LINGER and self._output.is_waiting

    @property
    def last_log_line(self) -> str:
        return self._last_lines[-1] if self._last_lines else ""

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._own_group:
                os.killpg(self._child.pid, number)
            else:
                self._child.send_signal(number)

    def _has_live_processes(self) -> bool:
        if not self._own_group:
            return self._child.poll() is None
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _relay_log(self) -> None:
        read = io.BufferedReader(self._log).readline
        with suppress(ValueError, OSError):
            while line := read(_READ_BYTES):
                self.last_output_at = time.monotonic()
                text = line.decode("utf-8", "replace").rstrip()
                if len(text) > MAX_LOG_LINE:
                    text = self._shorten(text, MAX_LOG_LINE) + "…"
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = read(_READ_BYTES)
                    self.last_output_at = time.monotonic()
                if text:
                    self._last_lines.append(text)
                self._on_log_line(text)


class _Pipe(io.RawIOBase):
    """A pipe whose readers :meth:`stop_reading` can stop before the pipe is closed.

    The pipe is polled, because a thread that is blocked in `read` cannot be woken, and a process
    that the child started may keep the pipe open.

    Attributes:
        is_waiting: whether a reader is waiting for data.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.is_waiting = False
        self._pipe = pipe
        self._until: float | None = None

    @property
    def is_abandoned(self) -> bool:
        return self._until is not None

    def stop_reading(self) -> None:
        """Makes readers stop after they have read the output that was already written."""
        if self._until is None:
            self._until = time.monotonic() + _DRAIN_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Waits for data. Returns the number of bytes read, or 0 at the end."""
        ready = select.poll()
        ready.register(self._pipe.fileno(), select.POLLIN)
        while self._until is None or time.monotonic() < self._until:
            was_abandoned = self.is_abandoned
            if ready.poll(0):
                self.is_waiting = False
                return int(self._pipe.readinto(buffer))  # type: ignore[attr-defined]
            if was_abandoned:
                break
            self.is_waiting = True
            ready.poll(_TICK_MS)
        self.is_waiting = False
        self._pipe.close()
        return 0
