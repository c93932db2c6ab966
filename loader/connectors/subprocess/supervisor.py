"""Starts and ends the child processes of connectors: the only module of theirs that does.

A child gets its environment as a whole, writes a message a line, and has a log, which a thread of
its own relays. It ends with this process, and what it has started ends with it.

Imports the standard library only: CloudQuery's bridge has it, too, in an environment without the
loader. Errors are for :class:`loader.connectors.subprocess.program.Program` to explain.
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
"""Seconds between asking a child to end and killing it."""

LINGER = 5.0
"""Seconds that what a child leaves behind may keep its output open without writing."""

LONGEST_NOTE = 1 << 16
"""The most characters of a line of the log; an endless one must not fill the memory."""

_READ_NOTE = LONGEST_NOTE << 2
_TICK = 0.05
_TICK_MS = 200
_REST = 2.0
"""Seconds in which what was written before is still read."""

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


class StartError(Exception):
    """A child cannot be started; the text says why."""


class LongLineError(Exception):
    """A child has written a longer line than it may."""


class Child:
    """A child process; it and its children are a group.

    The thread that starts it must live as long as it does: Linux kills the child when that thread
    ends.

    Args:
        command: the program and its arguments.
        environment: all variables that it gets.
        hear: gets each line of its log: standard error.
        folder: where it runs; the current one by default.
        takes_input: whether it reads what :meth:`send` writes. Such a child ends in order once its
            input ends, so it is not killed with this process.
        sends_messages: whether its standard output has messages, see :meth:`lines`; if not, it is
            part of the log.
        own_group: whether it has a group of its own. A child of a child stays in its parent's, and
            :meth:`stop` ends it alone.
        shorten: cuts a line of the log that is too long to this many characters.

    Raises:
        StartError: if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        hear: Callable[[str], None],
        *,
        folder: Path | None = None,
        takes_input: bool = False,
        sends_messages: bool = True,
        own_group: bool = True,
        shorten: Callable[[str, int], str] = lambda text, most: text[:most],
    ) -> None:
        self.command = tuple(command)
        self.heard = time.monotonic()
        """When it last wrote a line."""
        self.said = self.heard
        """When the program last wrote a line to standard output."""
        self._hear = hear
        self._shorten = shorten
        self._own_group = own_group
        self._ended: float | None = None
        self._tail: deque[str] = deque(maxlen=2)
        prelude = [sys.executable, "-I", "-S", "-c", _PRELUDE, str(os.getpid())]
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
        self._listener = threading.Thread(target=self._listen, name="log", daemon=True)
        self._listener.start()

    def lines(self, longest: int = -1) -> Iterator[bytes]:
        """Yields what it writes to its standard output, line by line, until it ends.

        If :meth:`stop` ends it, half a line may be left, which is not yielded.

        Args:
            longest: the most bytes of a line; negative for any number.

        Raises:
            LongLineError: if a line is longer.
        """
        while line := self._reader.readline(longest + 1 if longest >= 0 else -1):
            if self._output.is_abandoned and not line.endswith(b"\n"):
                return
            self.note_progress()
            if 0 <= longest < len(line):
                raise LongLineError
            yield line

    def send(self, text: str) -> None:
        """Writes to its standard input; does nothing if it has ended, or is ending."""
        assert self._child.stdin is not None
        rest = memoryview(text.encode())
        with suppress(BrokenPipeError, ValueError):
            while rest:
                rest = rest[self._child.stdin.write(rest) :]

    def end_input(self) -> None:
        """Ends its standard input."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()

    def end(self) -> int:
        """Waits until it has ended; returns its exit code, negative for a signal.

        Raises:
            StartError: if there is no such program.
        """
        code = self._child.wait()
        self._listener.join(timeout=GRACE)
        self._log.leave()
        if code == _NOT_STARTED and len(self._tail) == 1:
            raise StartError(self._tail[0])
        return code

    def wait(self, seconds: float) -> bool:
        """Waits for it to end by itself; returns whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return self._child.poll() is not None

    def stop(self, patience: float = GRACE) -> None:
        """Ends it: asks first, kills it and its group after `patience` seconds.

        Also ends the processes that it left behind when it ended by itself. A process with a
        session of its own lives on, but its output is no longer read.
        """
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, GRACE)):
            if self._child.poll() is not None and not self._has_members():
                break
            self._signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
            before = time.monotonic() + min(1.0, seconds)
            while number is signal.SIGTERM and self._has_members() and time.monotonic() < before:
                time.sleep(_TICK)
        self._output.leave()
        self._log.leave()

    def note_progress(self) -> None:
        """Notes that it has written, or had to wait: it is not silent."""
        self.heard = self.said = time.monotonic()

    def is_silent(self, seconds: float) -> bool:
        """Returns whether it runs, and has written nothing for so long."""
        return time.monotonic() - self.heard > seconds and not self.wait(0)

    def lingers(self) -> bool:
        """Returns whether it has ended, and a silent process of its own holds its output open."""
        if self._child.poll() is None:
            return False
        now = time.monotonic()
        self._ended = self._ended or now
        return now - max(self._ended, self.said) > LINGER and self._output.waits

    @property
    def last_log_line(self) -> str:
        """The last line of its log that is not blank; empty if there was none."""
        return self._tail[-1] if self._tail else ""

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._own_group:
                os.killpg(self._child.pid, number)
            else:
                self._child.send_signal(number)

    def _has_members(self) -> bool:
        """Returns whether its group has a process, also after its own end."""
        if not self._own_group:
            return self._child.poll() is None
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _listen(self) -> None:
        read = io.BufferedReader(self._log).readline
        with suppress(ValueError, OSError):
            while line := read(_READ_NOTE):
                self.heard = time.monotonic()
                text = line.decode("utf-8", "replace").rstrip()
                if len(text) > LONGEST_NOTE:
                    text = self._shorten(text, LONGEST_NOTE) + "…"
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = read(_READ_NOTE)
                    self.heard = time.monotonic()
                if text:
                    self._tail.append(text)
                self._hear(text)


class _Pipe(io.RawIOBase):
    """Reads a pipe; not only its end ends that, but also :meth:`leave`.

    A process that the child has started may hold the pipe open, and a thread that waits in `read`
    cannot be woken.

    Attributes:
        waits: whether a reader waits, and there is no data.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.waits = False
        self._pipe = pipe
        self._until: float | None = None

    @property
    def is_abandoned(self) -> bool:
        """Returns whether reading has ended."""
        return self._until is not None

    def leave(self) -> None:
        """Ends the reading, after what is there already."""
        if self._until is None:
            self._until = time.monotonic() + _REST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Waits for bytes; returns how many came, 0 at the end."""
        ready = select.poll()
        ready.register(self._pipe.fileno(), select.POLLIN)
        while self._until is None or time.monotonic() < self._until:
            left = self.is_abandoned
            if ready.poll(0):
                self.waits = False
                return int(self._pipe.readinto(buffer))  # type: ignore[attr-defined]
            if left:
                break
            self.waits = True
            ready.poll(_TICK_MS)
        self.waits = False
        self._pipe.close()
        return 0
