"""Reads a program's messages in a thread of its own, and hands out each stream's pieces in turn."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from loader.connectors.subprocess import supervisor
from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.log_relay import LogRelay
from loader.connectors.subprocess.program import Program
from loader.connectors.subprocess.record_spool import Piece, Spool
from loader.errors import LoaderError, TableError
from loader.spec.redaction import excerpt

_AHEAD = 2 << 30
"""So many bytes may wait to be committed; then the program waits, as its pipe is full."""
_TICK = 0.5
_FAREWELL = 15.0
"""Seconds that a program gets to end by itself once its last stream is committed."""
UNASKED = "which was not asked for, are ignored"
"""The error for messages of another stream."""


@dataclass
class Stream:
    """One stream that is read.

    Attributes:
        name: the table's name, for messages.
        remembers: whether it goes on from a state; if not, it is complete without one.
        begun: the program has reported that the stream began.
        complete: the program has reported that the stream ended well.
        incomplete: the program has reported that the stream did not end well.
        problem: why it has not.
        error: the table's error, after its last piece.
        ended: nothing more comes.
        doubt: why records may be missing from now on, so that no further state counts.
    """

    name: str
    spool: Spool
    remembers: bool = True
    complete: bool = False
    problem: LoaderError | None = None
    pieces: deque[Piece] = field(default_factory=deque)
    error: LoaderError | None = None
    incomplete: bool = False
    begun: bool = False
    ended: bool = False
    doubt: LoaderError | None = None
    wanted: bool = True
    received: int = 0

    def can_take(self) -> bool:
        """Returns whether its records are still wanted."""
        return self.wanted and self.error is None

    def explain_doubt(self) -> LoaderError | None:
        """Returns why records may be missing from now on; None if nothing says so."""
        return self.problem or self.doubt

    def find_own_error(self, failure: str) -> LoaderError | None:
        """Returns the error that the program reports for this stream; None if there is none.

        Args:
            failure: the error that it reports for the whole read, if any.
        """
        if self.problem is not None or not self.incomplete:
            return self.problem
        return read_error(
            failure or "the program did not complete the stream", f"table {self.name}"
        )

    def is_whole(self) -> bool:
        """Returns whether it has ended well, however the program ends.

        One with a state of all streams has not, until the last of these states has come.
        """
        memory = self.spool.memory
        return self.complete and not (memory is not None and memory.shared)


def read_error(text: str, where: str) -> TableError:
    """Returns the error for a read that the program did not finish."""
    return TableError(
        excerpt(text.strip(), 1000).rstrip("."),
        where=where,
        remedy="Rows up to its last state are appended; correct the cause, and run again",
    )


def format_stream(key: Hashable) -> str:
    """Returns a stream's name, with its namespace if it has one."""
    return ".".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)


class MessageFormat(Protocol):
    """Understands the messages of one protocol."""

    def hear(self, line: bytes, delivery: Delivery) -> None:
        """Reads a line, and calls the methods of the delivery that it means.

        Raises:
            TableError: if the line is broken so that a record may be lost.
        """


class Delivery:
    """One run of a program.

    Args:
        start: starts the program; called in the thread that reads it.
        dialect: of its messages.
        streams: the streams that were requested, by the dialect's key.
        protocol: its name in memories.
        number: the number of the newest memory so far.
        silence: after so many seconds without output the program counts as hung.
        warn: gets warnings, with the name of a table or the source.
        source: the source's name, for messages.
        before_words: called before the first output of the program is shown.
    """

    def __init__(
        self,
        start: Callable[[Callable[[str], None]], Program],
        dialect: MessageFormat,
        streams: Mapping[Hashable, Stream],
        protocol: str,
        number: int,
        silence: float,
        warn: Callable[[str, str], None],
        source: str,
        before_words: Callable[[], None],
    ) -> None:
        self.streams = streams
        self.source = source
        self._start = start
        self._dialect = dialect
        self._protocol = protocol
        self._number = number
        self._silence = silence
        self.log = LogRelay(source, warn, before_words)
        self._process: Program | None = None
        self._changed = threading.Condition()
        self._waiting = 0
        self._failure: str = ""
        self._fatal: str = ""
        self._stopped: LoaderError | None = None
        self._reader = threading.Thread(target=self._read, name=f"read {source}", daemon=True)
        self._reader.start()

    def next(self, key: Hashable, proceed: Callable[[], None]) -> Piece:
        """Waits for a stream's next piece.

        Args:
            proceed: raises an error if the run was asked to stop.

        Raises:
            LoaderError: if there is none, as the stream has failed.
        """
        stream = self.streams[key]
        while True:
            with self._changed:
                if stream.pieces:
                    piece = stream.pieces.popleft()
                    self._waiting -= piece.counts.size
                    self._changed.notify_all()
                    return piece
                if stream.error is not None:
                    raise stream.error
                self._changed.wait(_TICK)
            proceed()
            self._watch()

    def abandon(self, key: Hashable) -> None:
        """Discards the rest of a stream, as its table has failed."""
        stream = self.streams.get(key)
        if stream is None:
            return
        with self._changed:
            stream.wanted = False
            for piece in stream.pieces:
                self._waiting -= piece.counts.size
                piece.delete_files()
            stream.pieces.clear()
            self._changed.notify_all()
        if self._protocol == "singer" and not stream.remembers and self._shares_states():
            self.log.warn_once(
                f"{stream.name} is read whole, and the other tables' state goes on without it: if "
                "the tap sends its records only with new ones of another stream, read that stream "
                "again, too: --full-refresh",
                stream.name,
            )

    def _shares_states(self) -> bool:
        memories = [stream.spool.memory for stream in self.streams.values() if stream.remembers]
        return any(memory is not None and memory.shared for memory in memories)

    def close(self) -> None:
        """Ends the program, if it has not ended by itself, and its thread."""
        with self._changed:
            all_well = all(stream.ended and not stream.error for stream in self.streams.values())
            for stream in self.streams.values():
                stream.wanted = False
            self._waiting = 0
            self._changed.notify_all()
        if self._process is not None:
            if all_well and self._process.wait(_FAREWELL):
                self._reader.join(timeout=supervisor.LINGER)
            if not all_well or self._reader.is_alive():
                self._process.stop()
        self._reader.join(timeout=30)

    # What the dialect calls, in the reader's thread.

    def add_record(self, key: Hashable, record: Mapping[str, Any]) -> None:
        """Takes a record."""
        stream = self.streams.get(key)
        if stream is not None:
            stream.received += 1
        self._take(stream, key, lambda spool: spool.add(record))

    def add_deletion(self, key: Hashable, where: Sequence[Mapping[str, Any]]) -> None:
        """Takes a deletion of all rows that meet one of some conditions: values by column."""
        self._take(self.streams.get(key), key, lambda spool: spool.delete(where))

    def refuse_depth(self, key: Hashable) -> None:
        """Fails a stream: one of its records is nested too deeply to be read."""

        def refuse(_: Spool) -> None:
            raise RecursionError

        self._take(self.streams.get(key), key, refuse)

    def refuse_deep_state(self, key: Hashable | None) -> None:
        """Fails what a state covers: it is nested too deeply to be given back at the next run.

        Args:
            key: the stream that it covers; None if it covers all.
        """
        for each, stream in self.streams.items():
            if key in (None, each) and stream.remembers:
                deep = TableError(
                    "a state is nested too deeply to be given back at the next run",
                    where=f"table {stream.name}",
                    remedy="What its states had covered before is appended. Report it to the "
                    "connector's authors",
                )
                self._end_stream(stream, deep)

    def _take(self, stream: Stream | None, key: Hashable, into: Callable[[Spool], None]) -> None:
        if stream is None:
            self.log.warn_once(f"records of {format_stream(key)}, {UNASKED}")
        elif stream.ended and stream.can_take():
            self.log.warn_once("it sent records after the end of their stream", stream.name)
        elif stream.can_take():
            try:
                into(stream.spool)
            except LoaderError as problem:
                self._end_stream(stream, problem)
            except RecursionError:
                deep = TableError(
                    "a record's values are nested too deeply to be read",
                    where=f"table {stream.name}",
                    remedy="Leave the field out in the connector's own configuration, or with "
                    f"table_options.{stream.name.partition('.')[2]}.skip_columns",
                )
                self._end_stream(stream, deep)

    def add_state(
        self, kind: str, key: Hashable | None, text: str, count: float | None = None
    ) -> None:
        """Takes a state.

        Args:
            key: the stream that it covers; None if it covers all.
            text: the state, JSON.
            count: how many records of the stream the program says it has sent since the last one.
        """
        self._number += 1
        memory = ConnectorState(self._protocol, kind, key is None, self._number, text)
        if key is not None and key not in self.streams:
            self.log.warn_once(f"states of {format_stream(key)}, {UNASKED}")
            return
        covered = self.streams.values() if key is None else [self.streams[key]]
        for stream in covered:
            if key is not None:
                if count is not None and stream.received < count:
                    came = f"it sent {count:,.0f} records, and {stream.received:,} came"
                    self._end_stream(stream, read_error(came, f"table {stream.name}"))
                stream.received = 0
            if stream.ended or stream.explain_doubt() or not stream.can_take():
                continue
            piece = stream.spool.cover(memory)
            if piece is not None:
                self._hand_over(stream, piece)

    def note_complete(self, key: Hashable) -> None:
        """Notes that a stream has ended well.

        A state of all streams may still come, and cover it, too: then it ends with the program.
        """
        stream = self.streams.get(key)
        if stream is None:
            return
        if stream.explain_doubt():
            self._end_stream(stream, stream.explain_doubt())
            return
        stream.complete = True
        memory = stream.spool.memory
        if not stream.remembers or (memory is not None and not memory.shared):
            self._end_stream(stream, None)

    def note_begin(self, key: Hashable) -> None:
        """Notes that a stream has begun."""
        stream = self.streams.get(key)
        if stream is not None:
            stream.begun = True

    def note_failure(self, text: str, key: Hashable | None = None) -> None:
        """Notes that a stream, or the program, has failed; it may go on with other streams.

        Later records do not count, as it is unknown which ones are missing.
        """
        stream = self.streams.get(key) if key is not None else None
        self.log.before()
        if stream is None:
            self._failure = self._failure or text
            for each in self._in_doubt() if key is None else ():
                each.doubt = each.doubt or read_error(text, f"table {each.name}")
        elif stream.problem is None:
            stream.problem = read_error(text, f"table {stream.name}")

    def note_fatal(self, text: str) -> None:
        """Notes what the program logs as its end: why it failed, unless it says so otherwise."""
        self._fatal = self._fatal or text

    def note_doubt(self, text: str) -> None:
        """Notes that the program reports an error and goes on, in one of the running streams.

        It may have left something out: a page that it could not read is the last one to some.
        """
        self.log.before()
        shown = excerpt(text.strip(), 500).rstrip(".")
        for stream in self._in_doubt():
            stream.doubt = stream.doubt or TableError(
                f"the connector reported an error and went on: {shown}",
                where=f"table {stream.name}",
                remedy="What its states had covered before is appended; correct the cause, and "
                "run again. If such errors leave nothing out, set logged_errors: warn",
            )

    def _in_doubt(self) -> list[Stream]:
        """Returns the streams that something may be about that names none: those that run."""
        streams = [s for s in self.streams.values() if not s.ended and not s.complete]
        return [s for s in streams if s.begun] or streams

    def note_incomplete(self, key: Hashable) -> None:
        """Notes that a stream has not ended well; what it failed with may follow."""
        stream = self.streams.get(key)
        if stream is not None:
            stream.incomplete = True

    # The reader's thread.

    def _read(self) -> None:
        code: int | None = None
        problem: LoaderError | None = None
        try:
            self._process = self._start(self.log.log)
            for line in self._process.messages():
                if self._waiting > _AHEAD:
                    self._let_catch_up()
                self._dialect.hear(line, self)
            code = self._process.end()
        except LoaderError as error:
            problem = error
        except OSError as error:
            remedy = (
                "Each stream has a file while it is read: raise the limit of open files "
                "(`ulimit -n`), or sync fewer tables at once with --select"
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else "Free disk space (records wait in the folder for temporary files, or in "
                "`spool`), and run again"
            )
            problem = TableError(
                f"the records cannot be kept until they are appended: {error.strerror}",
                where=f"source {self.source}",
                remedy=remedy,
            )
        except Exception as error:
            problem = TableError(
                f"its messages cannot be understood: {type(error).__name__}: {error}",
                where=f"source {self.source}",
                remedy="This is a defect: run again with --debug and report the trace",
            )
            problem.__cause__ = error
        if problem is not None and self._process is not None:
            self._process.stop(patience=1.0)
        self._end_all(code, self._stopped or problem)

    def _end_all(self, code: int | None, problem: LoaderError | None) -> None:
        """Ends the streams that have not ended yet."""
        if problem is None and (code or self._failure):
            assert self._process is not None
            self.log.before()
            said = self._failure or self._fatal or self._process.last_log_line
            how = f"it was killed by signal {-code}" if code and code < 0 else f"exit code {code}"
            ended = f"the program failed ({how})" if code else "the program failed"
            problem = read_error(f"{ended}: {said}" if said else ended, f"source {self.source}")
        if problem is not None and all(s.is_whole() for s in self.streams.values()):
            self.log.warn_once(f"all its streams are complete, but {problem.what}")
        tells = problem is None and any(stream.complete for stream in self.streams.values())
        for stream in self.streams.values():
            if tells and stream.begun and not stream.complete:
                stream.incomplete = True
            of_it = stream.find_own_error(self._failure)
            self._end_stream(
                stream, of_it or (None if stream.is_whole() else problem or stream.doubt)
            )

    def _end_stream(self, stream: Stream, problem: LoaderError | None) -> None:
        if stream.ended:
            return
        try:
            last = stream.spool.end() if problem is None else stream.spool.cut()
        except OSError as error:
            last, problem = None, problem or read_error(str(error.strerror), stream.name)
        with self._changed:
            stream.error = problem
            stream.ended = True
            if last is not None:
                self._put(stream, last)
            self._changed.notify_all()

    def _hand_over(self, stream: Stream, piece: Piece) -> None:
        with self._changed:
            self._put(stream, piece)
            self._changed.notify_all()

    def _put(self, stream: Stream, piece: Piece) -> None:
        if stream.wanted:
            stream.pieces.append(piece)
            self._waiting += piece.counts.size
        else:
            piece.delete_files()

    def _let_catch_up(self) -> None:
        """Waits until pieces have been committed; the program waits, too."""
        with self._changed:
            while self._waiting > _AHEAD // 2:
                self._changed.wait(_TICK)
                if self._process is not None:
                    self._process.note_progress()

    def _watch(self) -> None:
        """Ends a program that was silent for too long, or the processes that it has left behind."""
        running = self._process
        if running is None or self._stopped is not None or not self._reader.is_alive():
            return
        if running.lingers():
            self._stopped = TableError(
                "the program has ended, and a process that it started keeps its output open: "
                "records may be missing",
                where=f"source {self.source}",
                remedy="Let the command wait for what it starts; what its states cover is appended",
            )
        elif running.is_silent(self._silence):
            self._stopped = TableError(
                f"the program has said nothing for {self._silence:,.0f} seconds, and was ended",
                where=f"source {self.source}",
                remedy="Run again; if it needs longer to find its next record, raise `timeout`",
            )
        if self._stopped is not None:
            with suppress(OSError):
                running.stop(patience=1.0)
