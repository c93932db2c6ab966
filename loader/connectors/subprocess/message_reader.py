"""Reads the messages of a program in a thread, and returns each stream's records in batches."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from loader.connectors.subprocess import supervisor
from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.json_values import encode
from loader.connectors.subprocess.log_relay import LogRelay
from loader.connectors.subprocess.program import Program
from loader.connectors.subprocess.record_spool import (
    RecordSpool,
    SpooledBatch,
    Stream,
    read_error,
)
from loader.errors import LoaderError, TableError
from loader.spec.redaction import excerpt

_MAX_WAITING_BYTES = 2 << 30
"""The size of uncommitted batches above which the reader, and therefore the program, pauses."""
_POLL_SECONDS = 0.5
_EXIT_SECONDS = 15.0
"""The time in seconds that a program has to exit after its last stream is committed."""
UNREQUESTED = "which this run did not request, are ignored"
"""The end of the warning about messages for a stream that the run did not request."""


def format_stream(key: Hashable) -> str:
    return ".".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)


class MessageFormat(Protocol):
    """Parses the messages of one protocol."""

    def handle_line(self, line: bytes, reader: MessageReader) -> None:
        """Parses a line, and calls the reader's method for the message in it.

        Raises:
            TableError: if the line is damaged, because a record could otherwise be lost.
        """


class MessageReader:
    """Reads a program's messages during one run.

    Args:
        start: starts the program. Called in the reading thread.
        streams: the requested streams, keyed as in the messages.
        protocol: the protocol's name in stored states.
        number: the number of the source's newest state.
        timeout: the time in seconds without output after which the program is stopped.
        warn: called with the name of a table or of the source, and a warning.
        before_output: called before any output of the program is shown.
    """

    def __init__(
        self,
        start: Callable[[Callable[[str], None]], Program],
        message_format: MessageFormat,
        streams: Mapping[Hashable, Stream],
        protocol: str,
        number: int,
        timeout: float,
        warn: Callable[[str, str], None],
        source: str,
        before_output: Callable[[], None],
    ) -> None:
        self.streams = streams
        self.source = source
        self._start = start
        self._message_format = message_format
        self._protocol = protocol
        self._number = number
        self._timeout = timeout
        self.log = LogRelay(source, warn, before_output)
        self._process: Program | None = None
        self._changed = threading.Condition()
        self._waiting_bytes = 0
        self._failure: str = ""
        self._fatal: str = ""
        self._stopped: LoaderError | None = None
        self._thread = threading.Thread(target=self._read, name=f"read {source}", daemon=True)
        self._thread.start()

    def quote_line(self, line: bytes) -> str:
        """Quotes the start of a line for an error, unless the line may contain masked values."""
        if self._hides_values:
            return "not shown, because a table has masked columns"
        return repr(excerpt(line.decode("utf-8", "replace"), 120))

    @property
    def _hides_values(self) -> bool:
        return any(stream.spool.layout.masks.patterns for stream in self.streams.values())

    def next_batch(self, key: Hashable, proceed: Callable[[], None]) -> SpooledBatch:
        """Waits for the next batch of a stream, and returns it.

        Args:
            proceed: called while waiting. Raises an error if the user has interrupted the run.

        Raises:
            LoaderError: if the stream failed and has no more batches.
        """
        stream = self.streams[key]
        while True:
            with self._changed:
                if stream.batches:
                    batch = stream.batches.popleft()
                    self._waiting_bytes -= batch.counts.size
                    self._changed.notify_all()
                    return batch
                if stream.error is not None:
                    raise stream.error
                self._changed.wait(_POLL_SECONDS)
            proceed()
            self._stop_if_hung()

    def abandon(self, key: Hashable) -> None:
        """Discards the rest of a stream whose table has failed."""
        stream = self.streams.get(key)
        if stream is None:
            return
        with self._changed:
            stream.is_wanted = False
            for batch in stream.batches:
                self._waiting_bytes -= batch.counts.size
                batch.delete_files()
            stream.batches.clear()
            self._changed.notify_all()
        if self._protocol == "singer" and not stream.is_incremental and self._shares_states():
            self.log.warn_once(
                f"{stream.name} is read in full, and the state of the other tables advances "
                "without it: if the tap sends its records only with new records of another stream, "
                "also read that stream again: --full-refresh",
                stream.name,
            )

    def _shares_states(self) -> bool:
        states = [stream.spool.state for stream in self.streams.values() if stream.is_incremental]
        return any(state is not None and state.shared for state in states)

    def close(self) -> None:
        """Stops the program and the reading thread.

        If all streams succeeded, the program first gets some time to exit on its own.
        """
        with self._changed:
            all_well = all(
                stream.has_ended and not stream.error for stream in self.streams.values()
            )
            for stream in self.streams.values():
                stream.is_wanted = False
            self._waiting_bytes = 0
            self._changed.notify_all()
        if self._process is not None:
            if all_well and self._process.wait(_EXIT_SECONDS):
                self._thread.join(timeout=supervisor.LINGER)
            if not all_well or self._thread.is_alive():
                self._process.stop()
        self._thread.join(timeout=30)

    # The message format calls these methods in the reading thread.

    def add_record(self, key: Hashable, record: Mapping[str, Any], is_deep: bool) -> None:
        """Adds a record to its stream. The stream fails if the record is nested too deeply.

        Args:
            is_deep: whether `record` lacks the record's inner levels.
        """

        def add(spool: RecordSpool) -> None:
            if is_deep:
                raise RecursionError
            spool.add(record)

        stream = self.streams.get(key)
        if stream is not None:
            stream.received += 1
        self._add_to_spool(stream, key, add)

    def add_deletion(self, key: Hashable, where: Sequence[Mapping[str, Any]]) -> None:
        """Records a deletion of all rows that match a condition (values keyed by column)."""
        self._add_to_spool(self.streams.get(key), key, lambda spool: spool.delete(where))

    def _refuse_deep_state(self, key: Hashable | None) -> None:
        for each, stream in self.streams.items():
            if key in (None, each) and stream.is_incremental:
                deep = TableError(
                    "a state is nested too deeply to be stored and passed to the next run",
                    where=f"table {stream.name}",
                    remedy="The records before the previous state are appended. Report it to the "
                    "authors of the connector",
                )
                self._end_stream(stream, deep)

    def _add_to_spool(
        self, stream: Stream | None, key: Hashable, into: Callable[[RecordSpool], None]
    ) -> None:
        if stream is None:
            self.log.warn_once(f"records of {format_stream(key)}, {UNREQUESTED}")
        elif stream.has_ended and stream.can_accept_records():
            self.log.warn_once(
                "the program sent records after the end of their stream", stream.name
            )
        elif stream.can_accept_records():
            try:
                into(stream.spool)
            except LoaderError as problem:
                self._end_stream(stream, problem)
            except RecursionError:
                deep = TableError(
                    "a record's values are nested too deeply to be read",
                    where=f"table {stream.name}",
                    remedy="Exclude the field in the connector's `config`, or with the option "
                    f"table_options.{stream.name.partition('.')[2]}.columns",
                )
                self._end_stream(stream, deep)

    def add_state(
        self,
        kind: str,
        key: Hashable | None,
        value: Any,
        is_deep: bool,
        count: float | None = None,
    ) -> None:
        """Adds a state to the streams that it covers.

        If the state is nested too deeply to be stored, these streams fail.

        Args:
            key: the stream that the state covers, or None for all streams.
            is_deep: whether `value` lacks the state's inner levels.
            count: the number of records that the program has sent since the stream's last state.
        """
        try:
            text = None if is_deep else encode(value)
        except RecursionError:
            text = None
        if text is None:
            self._refuse_deep_state(key)
            return
        self._number += 1
        state = ConnectorState(self._protocol, kind, key is None, self._number, text)
        if key is not None and key not in self.streams:
            self.log.warn_once(f"states of {format_stream(key)}, {UNREQUESTED}")
            return
        covered = self.streams.values() if key is None else [self.streams[key]]
        for stream in covered:
            if key is not None:
                if count is not None and stream.received < count:
                    reason = (
                        f"the program sent {count:,.0f} records, but only {stream.received:,} "
                        "arrived"
                    )
                    self._end_stream(stream, read_error(reason, f"table {stream.name}"))
                stream.received = 0
            if stream.has_ended or stream.find_gap_reason() or not stream.can_accept_records():
                continue
            batch = stream.spool.add_state(state)
            if batch is not None:
                self._queue_batch(stream, batch)

    def note_complete(self, key: Hashable) -> None:
        """Records that a stream succeeded.

        If the stream's state covers all streams, the stream stays open until the program exits,
        because another state may follow.
        """
        stream = self.streams.get(key)
        if stream is None:
            return
        if stream.find_gap_reason():
            self._end_stream(stream, stream.find_gap_reason())
            return
        stream.is_complete = True
        state = stream.spool.state
        if not stream.is_incremental or (state is not None and not state.shared):
            self._end_stream(stream, None)

    def note_begin(self, key: Hashable) -> None:
        stream = self.streams.get(key)
        if stream is not None:
            stream.has_begun = True

    def note_failure(self, text: str, key: Hashable | None = None) -> None:
        """Records that a stream or the whole program failed. The program may continue.

        Later states of the stream are ignored, because earlier records may be missing.
        """
        stream = self.streams.get(key) if key is not None else None
        self.log.before_output()
        if stream is None:
            self._failure = self._failure or text
            for each in self._list_running() if key is None else ():
                each.possible_gap = each.possible_gap or read_error(text, f"table {each.name}")
        elif stream.reported_error is None:
            stream.reported_error = read_error(text, f"table {stream.name}")

    def note_fatal(self, text: str) -> None:
        """Records a fatal log message, shown if the program fails without reporting an error."""
        self._fatal = self._fatal or text

    def note_possible_gap(self, text: str) -> None:
        """Records that the program logged an error but continues.

        Any open stream may then lack records: some programs treat an unreadable page as the last
        page.
        """
        self.log.before_output()
        shown = excerpt(text.strip(), 500).rstrip(".")
        for stream in self._list_running():
            stream.possible_gap = stream.possible_gap or TableError(
                f"the connector reported an error and continued: {shown}",
                where=f"table {stream.name}",
                remedy="The records before the last state are appended; correct the cause, and "
                "run again. If such errors never skip records, set logged_errors: warn",
            )

    def _list_running(self) -> list[Stream]:
        """Returns the open streams. A message without a stream may refer to any of them."""
        streams = [s for s in self.streams.values() if not s.has_ended and not s.is_complete]
        return [s for s in streams if s.has_begun] or streams

    def note_incomplete(self, key: Hashable) -> None:
        """Records that a stream failed. An error message may follow."""
        stream = self.streams.get(key)
        if stream is not None:
            stream.is_incomplete = True

    # The following methods run in the reading thread, except `_stop_if_hung`.

    def _read(self) -> None:
        code: int | None = None
        problem: LoaderError | None = None
        try:
            self._process = self._start(self.log.log)
            for line in self._process.messages():
                if self._waiting_bytes > _MAX_WAITING_BYTES:
                    self._wait_for_commits()
                self._message_format.handle_line(line, self)
            code = self._process.end()
        except LoaderError as error:
            problem = error
        except OSError as error:
            remedy = (
                "Each stream needs an open file: raise the limit of open files (`ulimit -n`), or "
                "sync fewer tables in one run with --select"
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else "Free disk space (records wait in the temporary folder, or in `spool`), and "
                "run again"
            )
            problem = TableError(
                f"the records cannot be written to the spool: {error.strerror}",
                where=f"source {self.source}",
                remedy=remedy,
            )
        except Exception as error:
            text = "" if self._hides_values else f": {error}"
            problem = TableError(
                f"the program's messages cannot be processed: {type(error).__name__}{text}",
                where=f"source {self.source}",
                remedy="This is a bug: run again with --debug, and report the stack trace",
            )
            if not self._hides_values:
                problem.__cause__ = error
        if problem is not None and self._process is not None:
            self._process.stop(patience=1.0)
        self._end_all(code, self._stopped or problem)

    def _end_all(self, code: int | None, problem: LoaderError | None) -> None:
        if problem is None and (code or self._failure):
            assert self._process is not None
            self.log.before_output()
            text = self._failure or self._fatal or self._process.last_log_line
            how = f"it was killed by signal {-code}" if code and code < 0 else f"exit code {code}"
            ended = f"the program failed ({how})" if code else "the program failed"
            problem = read_error(f"{ended}: {text}" if text else ended, f"source {self.source}")
        if problem is not None and all(s.has_ended_well() for s in self.streams.values()):
            self.log.warn_once(f"all streams are complete, but {problem.what}")
        reports_status = problem is None and any(
            stream.is_complete for stream in self.streams.values()
        )
        for stream in self.streams.values():
            if reports_status and stream.has_begun and not stream.is_complete:
                stream.is_incomplete = True
            stream_error = stream.find_reported_error(self._failure)
            self._end_stream(
                stream,
                stream_error
                or (None if stream.has_ended_well() else problem or stream.possible_gap),
            )

    def _end_stream(self, stream: Stream, problem: LoaderError | None) -> None:
        if stream.has_ended:
            return
        try:
            last = stream.spool.finish() if problem is None else stream.spool.finish_at_state()
        except OSError as error:
            last, problem = None, problem or read_error(str(error.strerror), stream.name)
        with self._changed:
            stream.error = problem
            stream.has_ended = True
            if last is not None:
                self._append_batch(stream, last)
            self._changed.notify_all()

    def _queue_batch(self, stream: Stream, batch: SpooledBatch) -> None:
        with self._changed:
            self._append_batch(stream, batch)
            self._changed.notify_all()

    def _append_batch(self, stream: Stream, batch: SpooledBatch) -> None:
        if stream.is_wanted:
            stream.batches.append(batch)
            self._waiting_bytes += batch.counts.size
        else:
            batch.delete_files()

    def _wait_for_commits(self) -> None:
        """Waits until enough batches are committed. The program waits too, as its pipe is full."""
        with self._changed:
            while self._waiting_bytes > _MAX_WAITING_BYTES // 2:
                self._changed.wait(_POLL_SECONDS)
                if self._process is not None:
                    self._process.note_progress()

    def _stop_if_hung(self) -> None:
        """Stops a program that has been silent for too long.

        Also stops processes that keep the output open after the program has exited.
        """
        process = self._process
        if process is None or self._stopped is not None or not self._thread.is_alive():
            return
        if process.has_lingering_output():
            self._stopped = TableError(
                "the program has exited, but a process that it started keeps its output open: "
                "records may be missing",
                where=f"source {self.source}",
                remedy="Make the command wait for the processes that it starts; the records "
                "before the last state are appended",
            )
        elif process.is_silent(self._timeout):
            self._stopped = TableError(
                f"the program has sent nothing for {self._timeout:,.0f} seconds, and was stopped",
                where=f"source {self.source}",
                remedy="Run again; if the program needs longer for a record, raise `timeout`",
            )
        if self._stopped is not None:
            with suppress(OSError):
                process.stop(patience=1.0)
