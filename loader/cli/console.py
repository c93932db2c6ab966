"""Console output of all commands: human-readable tables and progress, or JSON lines for programs.

Also reports slow steps, and standard streams that are not writable.
"""

from __future__ import annotations

import datetime as dt
import errno
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.cli.slow_steps import SlowSteps
from loader.errors import LoaderError
from loader.spec.redaction import MASK, is_secret_key, redact_foreign

OUT, ERR = "stdout", "stderr"
Event = Mapping[str, Any]
"""An event, with the same keys as a JSON line of ``loader --log-format json``."""
_CLOSED = "it is closed"
_UNLIMITED_WIDTH = 10_000
# These characters are escaped, because a source's names and error messages are not trusted. They
# are control characters, invisible characters (Unicode category Cf), characters that change the
# direction of text, line breaks other than \n, and lone surrogates.
_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u070f\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Line breaks, except those before the list items (`- `) of a merged error.
_LINE_BREAK = re.compile(r"\n(?!- )")

_log = logging.getLogger("loader")


class _Console(Console):
    """A console that raises BrokenPipeError. (rich's console would exit the process instead.)"""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Output:
    """Writes results to stdout, progress and errors to stderr, without secrets.

    Args:
        form: ``text`` or ``json``.
        quiet: whether to print errors only.
        redact: removes secrets from a string.
        debug: whether to print errors with their stack traces.

    Attributes:
        is_silent: whether nothing may be written to the standard streams.
    """

    is_silent = False

    def __init__(
        self,
        form: str = "text",
        quiet: bool = False,
        redact: Callable[[str], str] = str,
        debug: bool = False,
    ) -> None:
        self.json = form == "json"
        self.quiet = quiet
        self.redact = redact
        self.debug = debug
        self.streams = Streams()
        self.slow_steps = SlowSteps(self.show_step)
        # Output to a pipe or a file is not wrapped.
        self.out = _Console(
            highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH
        )
        self.err = _Console(stderr=True, highlight=False, soft_wrap=True)

    def event(self, kind: str, text: str, /, **facts: Any) -> None:
        """Prints an event: a JSON line with `--log-format json`, otherwise `text`."""
        if self.quiet:
            return
        if self.json:
            self._line(OUT, kind, **facts)
        elif text:
            self._err(self.format_line(text))

    def show_step(self, text: str, facts: Mapping[str, Any]) -> None:
        """Prints a step. JSON output omits steps without facts, which are a table's progress."""
        if self.json and not facts:
            return
        self.event("progress", text, **facts)

    def warning(self, text: str, **facts: Any) -> None:
        if self.quiet:
            return
        if self.json:
            self._line(OUT, "warning", text=text, **facts)
        else:
            self._err(Text("warning: ", style="yellow") + self.format_line(text))

    def error(self, error: LoaderError) -> None:
        """Prints an error with its location and remedy, even if `quiet` is set."""
        trace = redact_foreign("".join(traceback.format_exception(error))) if self.debug else ""
        if self.json:
            facts = {
                "what": error.what,
                "where": error.where,
                "remedy": error.remedy,
                "retryable": error.is_retryable,
            }
            self._line(ERR, "error", **facts, **({"trace": trace} if trace else {}))
            return
        texts = [Text("error: ", style="bold red") + self.format_line(str(error))]
        self._err(
            *texts, *([Text(escape_invisible(self.redact(trace)), style="dim")] if trace else [])
        )

    def table(
        self,
        kind: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        title: str = "",
        are_names: bool = False,
        below: str = "",
    ) -> None:
        """Prints a table. With `--log-format json`, prints a JSON line for each row.

        Args:
            are_names: whether the headers are the names and types of a source's columns.
            below: the name of the column whose notes are printed below the table. If several rows
                have the same note, it is printed once.
        """
        if self.quiet:
            return
        if self.json:
            for row in rows:
                self._line(OUT, kind, **dict(zip(columns, row, strict=False)))
            return
        grid = Table(
            title=self.format_line(title) if title else None,
            title_justify="left",
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        notes: list[str] = []
        if below:
            lists = [[*row] for row in rows]
            place = columns.index(below)
            names: dict[str, list[str]] = {}
            for row in lists:
                names.setdefault(row.pop(place) or "", []).append(row[0])
            notes = [f"{', '.join(names[note])}: {note}" for note in names if note]
            rows, columns = lists, [column for column in columns if column != below]
        for column in columns:
            header = escape_invisible(column) if are_names else column.replace("_", " ")
            grid.add_column(Text(header), overflow="fold")
        for row in rows:
            grid.add_row(*(self.format_line(_format_value(value)) for value in row))
        if self.out.is_terminal:
            texts = [grid, *map(self.format_line, notes)]
            self.streams.write(OUT, lambda: self.out.print(*texts, sep="\n"))
            return
        # rich's `capture` is not used, because it also writes to the stream, which may be full or
        # closed.
        page = io.StringIO()
        _Console(highlight=False, width=_UNLIMITED_WIDTH, file=page).print(grid)
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        lines += [self.format_line(note).plain for note in notes]
        self.streams.write(OUT, lambda: print(*lines, sep="\n"))

    def say(self, text: str) -> None:
        """Prints text to stdout, except in JSON mode."""
        if not self.quiet and not self.json:
            escaped = Text(escape_invisible(self.redact(text)))
            self.streams.write(OUT, lambda: self.out.print(escaped))

    def format_line(self, text: str) -> Text:
        """Redacts a string, and escapes any line breaks from names and error messages."""
        return Text(_LINE_BREAK.sub(r"\\x0a", escape_invisible(self.redact(text))))

    def _err(self, *texts: Text) -> None:
        self.streams.write(ERR, lambda: self.err.print(*texts, sep="\n"))

    def _line(self, stream: str, kind: str, /, **facts: Any) -> None:
        at = dt.datetime.now(dt.timezone.utc).isoformat()
        self.emit(stream, {"event": kind, "at": at, **self._redact(facts)})

    def emit(self, stream: str, record: Event) -> None:
        """Prints an event as a JSON line."""
        text = json.dumps(record, default=str, ensure_ascii=False)
        text = _CONTROL_CHARACTERS.sub(lambda match: json.dumps(match[0])[1:-1], text)
        self.streams.write(stream, lambda: print(text, file=getattr(sys, stream)))

    def _redact(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {
                key: MASK if inner and is_secret_key(str(key)) else self._redact(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact(inner) for inner in value]
        return self.redact(value if isinstance(value, str) else str(value))


class EventOutput(Output):
    """Passes events to a function, one at a time, and prints nothing.

    The ``loader`` logger receives the warnings and lines that the command line would print.

    Args:
        on_event: the function. If it raises an exception, the exception is only logged.
    """

    is_silent = True

    def __init__(
        self, redact: Callable[[str], str], on_event: Callable[[Event], object] | None
    ) -> None:
        super().__init__("json", redact=redact)
        self._on_event = on_event
        self._lock = threading.Lock()

    def emit(self, stream: str, record: Event) -> None:
        if self._on_event is None:
            return
        with self._lock:
            try:
                self._on_event(record)
            except Exception:
                _log.exception("on_event failed for the event %s", record["event"])

    def warning(self, text: str, **facts: Any) -> None:
        if "table" not in facts:  # Watch logs the tables' warnings
            _log.warning("%s", self.redact(text))
        super().warning(text, **facts)

    def say(self, text: str) -> None:
        _log.info("%s", self.redact(text))


class ConnectorLogHandler(logging.Handler):
    """Prints the connectors' redacted logs (the `loader.program` logger) for `--debug`."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._output.event("said", text, text=text)

    @contextmanager
    def attached(self) -> Iterator[None]:
        program = logging.getLogger("loader.program")
        program.addHandler(self)
        program.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            program.removeHandler(self)
            program.setLevel(logging.NOTSET)


def list_names(names: Sequence[str], most: int = 3) -> str:
    """Returns the first names and the number of the remaining names.

    >>> list_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def escape_invisible(text: str) -> str:
    """Escapes control characters and invisible characters."""

    def format_escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code > 0xFFFF:
            return f"\\U{code:08x}"
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL_CHARACTERS.sub(format_escape, text)


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


class Streams:
    """Writes to the standard streams, and discards output that cannot be written.

    A stream that is not writable must not stop a table's sync, so only the exit code reports the
    problem (:attr:`code`).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lost: dict[str, Exception] = {}
        self._closed = {name for name in (OUT, ERR) if getattr(sys, name) is None}
        if self._closed:
            self._replace_closed()

    @property
    def code(self) -> int:
        """The exit code of a successful command: 0 unless standard output was lost.

        If the reader of a pipe has exited, the code is 141, as after SIGPIPE.
        """
        lost = self._lost.get(OUT)
        if lost is None:
            return 0
        return 128 + signal.SIGPIPE if _is_broken_pipe(lost) else LoaderError.exit_code

    @property
    def error(self) -> LoaderError | None:
        """The error to report for a lost stdout; None if only the reader of a pipe has exited."""
        lost = self._lost.get(OUT)
        if lost is None or _is_broken_pipe(lost):
            return None
        why = getattr(lost, "strerror", None) or _CLOSED
        return LoaderError(
            f"it cannot be written to: {why}",
            where="standard output",
            remedy="The command itself succeeded; `loader status` shows the tables",
        )

    def write(self, name: str, write: Callable[[], object]) -> None:
        """Calls `write` for the stream `name`, unless this stream has already been lost."""
        with self._lock:
            if name in self._lost:
                return
            if name in self._closed:
                self._lost[name] = ValueError(_CLOSED)
                return
            stream: Any = getattr(sys, name)
            try:
                write()
                stream.flush()
            except (OSError, ValueError) as error:
                if isinstance(error, ValueError) and not stream.closed:
                    raise
                self._lost[name] = error
                discard(stream)

    def _replace_closed(self) -> None:
        """Reopens closed streams on /dev/null, so that no file or socket gets their descriptors."""
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                with suppress(OSError):
                    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        for name in self._closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _is_broken_pipe(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def discard(stream: Any) -> None:
    """Redirects a stream to /dev/null, so that Python does not fail to flush it at exit."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(devnull, stream.fileno())
        finally:
            os.close(devnull)
