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
_WIDE = 10_000
# Control characters, which a terminal obeys instead of showing; those that change the direction of
# writing, or that are invisible (Unicode's category Cf); line breaks that are not \n; halves of
# characters. A source chooses its names and error texts, so these are escaped.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u070f\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_OWN_LINE = re.compile(r"\n(?!- )")  # several problems in one error are a list


class _Console(Console):
    """A console that leaves it to its caller what a broken pipe means: rich ends the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Output:
    """Writes results to stdout, progress and errors to stderr; redacts both.

    Args:
        form: ``text`` or ``json``.
        quiet: shows errors only.
        redact: removes secrets from a text.
        debug: shows errors with their stack traces.
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
        # A pipe or a file has no width to fold a table into.
        self.out = _Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
        self.err = _Console(stderr=True, highlight=False, soft_wrap=True)

    def event(self, kind: str, text: str, /, **facts: Any) -> None:
        """Reports an event: a JSON line, or `text` for people (nothing if empty)."""
        if self.quiet:
            return
        if self.json:
            self._line(OUT, kind, **facts)
        elif text:
            self._err(self._line_of(text))

    def show_step(self, text: str) -> None:
        """Shows the user that work still goes on."""
        if not self.quiet and not self.json:
            self._err(self._line_of(text))

    def warning(self, text: str, **facts: Any) -> None:
        """Reports something a user should know, though the command goes on."""
        if self.quiet:
            return
        if self.json:
            self._line(OUT, "warning", text=text, **facts)
        else:
            self._err(Text("warning: ", style="yellow") + self._line_of(text))

    def error(self, error: LoaderError) -> None:
        """Reports what is wrong, where, and what to do; also with `quiet`."""
        trace = redact_foreign("".join(traceback.format_exception(error))) if self.debug else ""
        if self.json:
            facts = {"what": error.what, "where": error.where, "remedy": error.remedy}
            self._line(ERR, "error", **facts, **({"trace": trace} if trace else {}))
            return
        shown = [Text("error: ", style="bold red") + self._line_of(str(error))]
        self._err(*shown, *([Text(_plain(self.redact(trace)), style="dim")] if trace else []))

    def table(
        self, kind: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = ""
    ) -> None:
        """Prints a table for people, or a line per row for machines."""
        if self.quiet:
            return
        if self.json:
            for row in rows:
                self._line(OUT, kind, **dict(zip(columns, row, strict=False)))
            return
        drawn = Table(
            title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        for column in columns:
            drawn.add_column(column.replace("_", " "), overflow="fold")
        for row in rows:
            drawn.add_row(*(self._line_of(_format_value(value)) for value in row))
        if self.out.is_terminal:
            self.streams.write(OUT, lambda: self.out.print(drawn))
            return
        # Not `capture`, which writes an empty text to the stream that may be full or gone.
        page = io.StringIO()
        _Console(highlight=False, width=_WIDE, file=page).print(drawn)
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        self.streams.write(OUT, lambda: print(*lines, sep="\n"))

    def say(self, text: str) -> None:
        """Prints text for people on stdout; it may have several lines."""
        if not self.quiet and not self.json:
            shown = Text(_plain(self.redact(text)))
            self.streams.write(OUT, lambda: self.out.print(shown))

    def _line_of(self, text: str) -> Text:
        """Redacts a text, and escapes line breaks that a source put into it."""
        return Text(_OWN_LINE.sub(r"\\x0a", _plain(self.redact(text))))

    def _err(self, *texts: Text) -> None:
        self.streams.write(ERR, lambda: self.err.print(*texts, sep="\n"))

    def _line(self, stream: str, kind: str, /, **facts: Any) -> None:
        at = dt.datetime.now(dt.timezone.utc).isoformat()
        record = {"event": kind, "at": at, **self._redact(facts)}
        text = json.dumps(record, default=str, ensure_ascii=False)
        text = _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text)
        self.streams.write(stream, lambda: print(text, file=getattr(sys, stream)))

    def _redact(self, value: Any) -> Any:
        """Redacts the texts of a value, but no keys."""
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


class Overheard(logging.Handler):
    """Shows connectors' logs (the logger `loader.program`), redacted; for `--debug`."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a line."""
        text = record.getMessage()
        self._output.event("said", text, text=text)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens for as long as a command runs."""
        program = logging.getLogger("loader.program")
        program.addHandler(self)
        program.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            program.removeHandler(self)
            program.setLevel(logging.NOTSET)


class Progress:
    """Live progress, a line per table: phase, rows, rate.

    Implements :class:`loader.sync.run_context.Listener`.

    Args:
        rows_done: returns the rows that Spark has written for a table so far; None if unknown.
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
            known = self._tables.get(table, ("", None, dt.datetime.now()))
            self._tables[table] = (phase, rows if rows is not None else known[1], known[2])
        text = "" if self._live is not None else _phase_text(table, phase, rows)
        self.output.event("phase", text, table=table, phase=phase, rows=rows)

    def warn(self, table: str, text: str) -> None:
        self.output.warning(f"{table}: {text}", table=table)

    def done(self, table: str, text: str) -> None:
        """Removes the line of a finished table and prints `text`."""
        with self._lock:
            self._tables.pop(table, None)
        if not self.output.json:
            self.output.event("done", text)

    def _render(self) -> Table:
        drawn = Table(box=None, pad_edge=False, show_header=False)
        for table, phase, count, rate, seconds in self._progress():
            drawn.add_row(self.output._line_of(table), phase, count, rate, seconds)
        return drawn

    def _lines(self) -> list[str]:
        """Returns the same as lines of a log."""
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


def _plain(text: str) -> str:
    """Escapes a text's control characters and invisible ones."""

    def format_value(found: re.Match[str]) -> str:
        code = ord(found[0])
        if code > 0xFFFF:
            return f"\\U{code:08x}"
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _OBEYED.sub(format_value, text)


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
"""After so long a step is shown; then after twice as long, until it is every :data:`LONGEST`."""

LONGEST = 60.0

_PAUSE = 0.5


class SlowSteps(logging.Handler):
    """Shows the oldest of the steps that :func:`loader.spark.named_steps.step` encloses.

    Args:
        show: shows a line.

    Attributes:
        describe: returns lines that are shown instead, if there are any: the tables of a run.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self.describe: Callable[[], list[str]] = list
        self._show_line = show
        self._ended = threading.Event()
        self._steps: dict[int | None, tuple[str, float]] = {}  # by thread, with its begin

    def emit(self, record: logging.LogRecord) -> None:
        """Notes that a step has begun or ended."""
        self._steps.pop(record.thread, None)
        if record.getMessage():
            self._steps[record.thread] = record.getMessage(), time.monotonic()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Shows steps for as long as a command runs."""
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
        doing: object = None
        shown, pause = 0.0, SECONDS
        while not self._ended.wait(min(_PAUSE, SECONDS)):
            now = time.monotonic()
            lines, current, began = self.describe(), "tables", now
            oldest = min(self._steps.copy().values(), key=lambda one: one[1], default=None)
            if not lines and oldest is not None:
                current, began = oldest
                lines = [f"{current} ({now - began:.0f} s)"]
            if (current, bool(lines)) != doing:
                doing, shown, pause = (current, bool(lines)), began, SECONDS
            if lines and now - shown >= pause:
                shown, pause = now, min(2 * pause, LONGEST)
                for line in lines:
                    self._show_line(line)


class Streams:
    """Writes to the standard streams. What cannot be written is lost, and nothing fails for it.

    A sync must not fail a table because its progress is no longer read. The exit code shows it:
    see :attr:`code`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lost: dict[str, Exception] = {}
        self._closed = {name for name in (OUT, ERR) if getattr(sys, name) is None}
        if self._closed:
            self._replace()

    @property
    def code(self) -> int:
        """The exit code of a command that did its work: 0 unless standard output was lost.

        If a pipe has lost its reader, it is that of a process that SIGPIPE ended, 141.
        """
        lost = self._lost.get(OUT)
        if lost is None:
            return 0
        return 128 + signal.SIGPIPE if _unread(lost) else LoaderError.exit_code

    @property
    def error(self) -> LoaderError | None:
        """Why standard output was lost; None if it was not, or if its reader went away."""
        lost = self._lost.get(OUT)
        if lost is None or _unread(lost):
            return None
        why = getattr(lost, "strerror", None) or _CLOSED
        return LoaderError(
            f"it cannot be written: {why}",
            where="standard output",
            remedy="The command did its work without it; `loader status` shows the tables",
        )

    def write(self, name: str, write: Callable[[], object]) -> None:
        """Calls `write`, which writes to a stream; does nothing if the stream was lost before."""
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

    def _replace(self) -> None:
        """Opens closed streams on nothing, so that no file or socket gets their numbers."""
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                with suppress(OSError):
                    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        for name in self._closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _unread(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def discard(stream: Any) -> None:
    """Lets what is left in a stream's buffer go nowhere: else Python reports it at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
