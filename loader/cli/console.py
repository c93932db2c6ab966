"""Console output of all commands: tables and progress for people, JSON lines for machines.

Also reports steps that take more than a few seconds, and standard streams that cannot be written.
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
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loader.errors import LoaderError
from loader.spark.named_steps import LOGGER
from loader.spec.redaction import MASK, is_secret_key, redact_foreign

OUT, ERR = "stdout", "stderr"
_CLOSED = "it is closed"
_UNLIMITED_WIDTH = 10_000
# Characters that are escaped, because names and error texts of a source are not trusted: control
# characters, invisible characters (Unicode category Cf), characters that change the direction of
# text, line breaks other than \n, and lone surrogates.
_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u070f\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Keeps the line breaks before list items of a merged error (`- `).
_LINE_BREAK = re.compile(r"\n(?!- )")


class _Console(Console):
    """A console that raises BrokenPipeError, where rich's console would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Output:
    """Writes results to stdout, progress and errors to stderr, without secrets.

    Args:
        form: ``text`` or ``json``.
        quiet: whether to print errors only.
        redact: removes secrets from a text.
        debug: whether to print errors with their stack traces.
    """

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
        """Prints an event as a JSON line, or as `text` without `--log-format json`."""
        if self.quiet:
            return
        if self.json:
            self._line(OUT, kind, **facts)
        elif text:
            self._err(self._format_line(text))

    def show_step(self, text: str) -> None:
        """Prints the step that the command is waiting for, except in JSON output."""
        if not self.quiet and not self.json:
            self._err(self._format_line(text))

    def warning(self, text: str, **facts: Any) -> None:
        """Prints a warning."""
        if self.quiet:
            return
        if self.json:
            self._line(OUT, "warning", text=text, **facts)
        else:
            self._err(Text("warning: ", style="yellow") + self._format_line(text))

    def error(self, error: LoaderError) -> None:
        """Prints an error with its location and remedy, even if `quiet` is set."""
        trace = redact_foreign("".join(traceback.format_exception(error))) if self.debug else ""
        if self.json:
            facts = {"what": error.what, "where": error.where, "remedy": error.remedy}
            self._line(ERR, "error", **facts, **({"trace": trace} if trace else {}))
            return
        texts = [Text("error: ", style="bold red") + self._format_line(str(error))]
        self._err(*texts, *([Text(_escape(self.redact(trace)), style="dim")] if trace else []))

    def table(
        self, kind: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = ""
    ) -> None:
        """Prints a table, or with `--log-format json` a JSON line for each row."""
        if self.quiet:
            return
        if self.json:
            for row in rows:
                self._line(OUT, kind, **dict(zip(columns, row, strict=False)))
            return
        grid = Table(
            title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        for column in columns:
            grid.add_column(column.replace("_", " "), overflow="fold")
        for row in rows:
            grid.add_row(*(self._format_line(_format_value(value)) for value in row))
        if self.out.is_terminal:
            self.streams.write(OUT, lambda: self.out.print(grid))
            return
        # Not rich's `capture`, because it writes to the stream, which may be full or closed.
        page = io.StringIO()
        _Console(highlight=False, width=_UNLIMITED_WIDTH, file=page).print(grid)
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        self.streams.write(OUT, lambda: print(*lines, sep="\n"))

    def say(self, text: str) -> None:
        """Prints text to stdout, except in JSON output."""
        if not self.quiet and not self.json:
            escaped = Text(_escape(self.redact(text)))
            self.streams.write(OUT, lambda: self.out.print(escaped))

    def _format_line(self, text: str) -> Text:
        """Redacts a text, and escapes line breaks, which come from names and error texts."""
        return Text(_LINE_BREAK.sub(r"\\x0a", _escape(self.redact(text))))

    def _err(self, *texts: Text) -> None:
        self.streams.write(ERR, lambda: self.err.print(*texts, sep="\n"))

    def _line(self, stream: str, kind: str, /, **facts: Any) -> None:
        at = dt.datetime.now(dt.timezone.utc).isoformat()
        record = {"event": kind, "at": at, **self._redact(facts)}
        text = json.dumps(record, default=str, ensure_ascii=False)
        text = _CONTROL_CHARACTERS.sub(lambda match: json.dumps(match[0])[1:-1], text)
        self.streams.write(stream, lambda: print(text, file=getattr(sys, stream)))

    def _redact(self, value: Any) -> Any:
        """Redacts the texts in a value, except the keys of mappings."""
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


class ConnectorLogHandler(logging.Handler):
    """Prints the redacted logs of connectors (the logger `loader.program`) for `--debug`."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a log record."""
        text = record.getMessage()
        self._output.event("said", text, text=text)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attaches the handler while a command runs."""
        program = logging.getLogger("loader.program")
        program.addHandler(self)
        program.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            program.removeHandler(self)
            program.setLevel(logging.NOTSET)


class Progress:
    """Live progress, with one line for each table that shows phase, rows and rate.

    Implements :class:`loader.sync.run_context.Listener`.

    Args:
        rows_done: returns the number of rows that Spark has written for a table so far, or None if
            the number is unknown.
    """

    def __init__(self, output: Output, rows_done: Callable[[str], int | None]) -> None:
        self.output = output
        self.rows_done = rows_done
        self._tables: dict[str, tuple[str, int | None, dt.datetime]] = {}
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.output.err.is_terminal and not self.output.json and not self.output.quiet:
            self._live = Live(
                get_renderable=self._render,
                console=self.output.err,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        else:
            self.output.slow_steps.describe = self._lines
        return self

    def __exit__(self, *_: object) -> None:
        self.output.slow_steps.describe = list
        if self._live is not None:
            self.output.streams.write(ERR, self._live.stop)

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        with self._lock:
            _, old_rows, since = self._tables.get(table, ("", None, dt.datetime.now()))
            self._tables[table] = (phase, rows if rows is not None else old_rows, since)
        text = "" if self._live is not None else _phase_text(table, phase, rows)
        self.output.event("phase", text, table=table, phase=phase, rows=rows)

    def warn(self, table: str, text: str) -> None:
        self.output.warning(f"{table}: {text}", table=table)

    def done(self, table: str, text: str) -> None:
        """Removes the line of a finished table, and prints `text`."""
        with self._lock:
            self._tables.pop(table, None)
        if not self.output.json:
            self.output.event("done", text)

    def _render(self) -> Table:
        grid = Table(box=None, pad_edge=False, show_header=False)
        for table, phase, count, rate, seconds in self._progress():
            grid.add_row(self.output._format_line(table), phase, count, rate, seconds)
        return grid

    def _lines(self) -> list[str]:
        return [f"{table}: {', '.join(filter(None, facts))}" for table, *facts in self._progress()]

    def _progress(self) -> Iterator[tuple[str, str, str, str, str]]:
        with self._lock:
            tables = dict(self._tables)
        for table, (phase, rows, since) in tables.items():
            seconds = (dt.datetime.now() - since).total_seconds()
            done = self.rows_done(table)
            count = f"{done or 0:,} of {rows:,} rows" if rows is not None else ""
            rate = f"{done / seconds:,.0f} rows/s" if done and seconds > 0 else ""
            yield table, phase, count, rate, f"{seconds:.0f} s"


def _escape(text: str) -> str:
    """Escapes control characters and invisible characters."""

    def format_escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code > 0xFFFF:
            return f"\\U{code:08x}"
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL_CHARACTERS.sub(format_escape, text)


def _phase_text(table: str, phase: str, rows: int | None) -> str:
    return f"{table}: {phase} {rows:,} rows" if rows is not None else f"{table}: {phase}"


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


SECONDS = 5.0
"""The seconds before the first report of a step. The interval then doubles up to LONGEST."""

LONGEST = 60.0
"""The longest interval between two reports of a step, in seconds."""

_PAUSE = 0.5


class SlowSteps(logging.Handler):
    """Reports the oldest running step (:func:`loader.spark.named_steps.step`).

    Args:
        show: prints a line.

    Attributes:
        describe: returns lines to print instead of the step, such as the progress of tables. If
            there are none, the step is printed.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self.describe: Callable[[], list[str]] = list
        self._show_line = show
        self._ended = threading.Event()
        # maps the thread to the step's text and start
        self._steps: dict[int | None, tuple[str, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Records that a step has begun or ended."""
        self._steps.pop(record.thread, None)
        if record.getMessage():
            self._steps[record.thread] = record.getMessage(), time.monotonic()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Reports slow steps while a command runs."""
        log = logging.getLogger(LOGGER)
        log.addHandler(self)
        log.setLevel(logging.DEBUG)
        thread = threading.Thread(target=self._show, name="slow-steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            log.removeHandler(self)

    def _show(self) -> None:
        reported: object = None
        last, pause = 0.0, SECONDS
        while not self._ended.wait(min(_PAUSE, SECONDS)):
            now = time.monotonic()
            lines, current, began = self.describe(), "tables", now
            oldest = min(self._steps.copy().values(), key=lambda step: step[1], default=None)
            if not lines and oldest is not None:
                current, began = oldest
                lines = [f"{current} ({now - began:.0f} s)"]
            if (current, bool(lines)) != reported:
                reported, last, pause = (current, bool(lines)), began, SECONDS
            if lines and now - last >= pause:
                last, pause = now, min(2 * pause, LONGEST)
                for line in lines:
                    self._show_line(line)


class Streams:
    """Writes to the standard streams, and discards output that cannot be written.

    Lost output must not stop a table's sync, so only the exit code reports it (:attr:`code`).
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
        """The error if standard output was lost; None if only because its reader has exited."""
        lost = self._lost.get(OUT)
        if lost is None or _is_broken_pipe(lost):
            return None
        why = getattr(lost, "strerror", None) or _CLOSED
        return LoaderError(
            f"it cannot be written: {why}",
            where="standard output",
            remedy="The command itself succeeded; `loader status` shows the tables",
        )

    def write(self, name: str, write: Callable[[], object]) -> None:
        """Calls `write` for the stream `name`, unless the stream was lost before."""
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
        """Opens closed streams on /dev/null, so that no file or socket gets their descriptors."""
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
    """Redirects a stream to /dev/null, because Python would fail to flush its buffer at exit."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(devnull, stream.fileno())
        finally:
            os.close(devnull)
