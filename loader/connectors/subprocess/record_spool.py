"""Writes a stream's records to disk, in batches that end at a state.

The program decides when to send a state. A state covers all earlier records, so the next run
resumes after these records. If the program fails, the records after its last state are dropped,
because the next run reads them again. :class:`Stream` tracks the progress of one stream.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import types as t

from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.json_values import get_sort_key
from loader.connectors.subprocess.spool_format import EncodedDeletion, RecordLayout
from loader.errors import LoaderError, TableError
from loader.sources.interface import REST_COLUMN
from loader.spec.redaction import excerpt

_TIMES = (t.TimestampType, t.TimestampNTZType)


@dataclass
class Counts:
    """Statistics on a batch.

    Attributes:
        rows, size: the number of records, and their size on disk in bytes.
        low, high: the lowest and highest cursors, each as a sort key and a value in the format of
            the spool.
        nulls: the number of records that have no cursor.
        future: the number of records whose cursor is in the future.
    """

    rows: int = 0
    size: int = 0
    low: tuple[Any, Any] | None = None
    high: tuple[Any, Any] | None = None
    nulls: int = 0
    future: int = 0
    deletions: int = 0

    def add_cursor(self, value: Any, sort_key: Any, is_in_future: bool) -> None:
        """Adds the cursor of a record.

        Args:
            value: the cursor in the format of the spool; None if the record has no cursor.
            sort_key: the sort key of the value; None if the value cannot be ordered.
        """
        if value is None:
            self.nulls += 1
            return
        if sort_key is None:
            return
        if self.low is None or sort_key < self.low[0]:
            self.low = (sort_key, value)
        if self.high is None or sort_key > self.high[0]:
            self.high = (sort_key, value)
        self.future += is_in_future


@dataclass(frozen=True)
class SpooledBatch:
    """Records of one stream on disk, and the state that covers them.

    Attributes:
        path: the file of records, or None if there are no records.
        state: the state to store when the records are published, or None if the program sent none.
        deletions_path: the file of deletions, or None if there are no deletions.
        deletion_columns: the sets of columns whose values identify the deleted rows.
    """

    path: Path | None
    counts: Counts
    state: ConnectorState | None
    is_last: bool = False
    warnings: tuple[str, ...] = ()
    deletions_path: Path | None = None
    deletion_columns: tuple[tuple[str, ...], ...] = ()

    def delete_files(self) -> None:
        for path in (self.path, self.deletions_path):
            if path is not None:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Limits:
    """The limits of a batch, after which the batch ends at the next state.

    Attributes:
        size: the size of the records in bytes.
        seconds: the time in seconds since the batch was started.
    """

    rows: int
    size: int = 256 << 20
    seconds: float = 600.0


class RecordSpool:
    """The spool of one stream.

    Args:
        number: the stream's number, which is part of the file names.
        cursor: the cursor column, or None.
        limits: the limits of a batch; None to write all records to one batch.

    Attributes:
        state: the newest state that covers the stream's records.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        layout: RecordLayout,
        cursor: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.layout = layout
        self.limits = limits
        self.state: ConnectorState | None = None
        self._folder = folder
        self._number = number
        self._cursor_field = layout.get_field(cursor) if cursor is not None else None
        self._cursor_type = layout.schema[cursor].dataType if cursor is not None else t.NullType()
        self._now = encode_now(self._cursor_type, time.time())
        self._reported: set[str] = set()
        self._batches = 0
        self._file: Any = None
        self._reset()

    def add(self, record: Mapping[str, Any]) -> None:
        """Writes a record.

        Raises:
            TableError: if the record cannot be stored.
            OSError: if the disk is full.
        """
        line, encoded = self.layout.encode_record(record, deletions_before=self._tally.deletions)
        if self._file is None:
            self._file = self._path.open("wb", buffering=1 << 18)
        self._file.write(line)
        self._tally.rows += 1
        self._tally.size += len(line)
        if self._cursor_field is not None:
            value = encoded.get(self._cursor_field)
            sort_key = None if value is None else get_sort_key(value, self._cursor_type)
            self._tally.add_cursor(value, sort_key, self._is_in_future(sort_key))

    def delete(self, where: Sequence[Mapping[str, Any]]) -> None:
        """Records a deletion of all earlier rows that match at least one condition.

        Raises:
            TableError: if a condition cannot be used to find rows.
        """
        self._tally.deletions += 1
        for condition in where:
            self._deleted.append(self.layout.encode_deletion(condition, self._tally.deletions))

    def _is_in_future(self, sort_key: Any) -> bool:
        if sort_key is None or self._now is None or not sort_key > self._now:
            return False
        self._now = encode_now(self._cursor_type, time.time())
        return self._now is not None and bool(sort_key > self._now)

    def add_state(self, state: ConnectorState) -> SpooledBatch | None:
        """Adds a state that covers all records so far. Returns the batch if it ends here."""
        self.state = state
        self._covered = replace(self._tally)
        limits, rows = self.limits, self._covered.rows + self._covered.deletions
        if limits is None:
            return None
        waited = time.monotonic() - self._started_at
        enough = rows >= limits.rows or self._covered.size >= limits.size
        if enough or (rows and waited >= limits.seconds):
            return self._close_batch(self._covered, is_last=False)
        return None

    def finish(self) -> SpooledBatch:
        """Returns the last batch, with all of its records, after the program has succeeded."""
        return self._close_batch(self._tally, is_last=True)

    def finish_at_state(self) -> SpooledBatch | None:
        """Returns the last batch, up to its last state; None if there is no state."""
        if self.limits is None or self.state is None:
            self.discard()
            return None
        return self._close_batch(self._covered, is_last=False)

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._path.unlink(missing_ok=True)

    def _close_batch(self, counts: Counts, is_last: bool) -> SpooledBatch:
        path = None
        if self._file is not None:
            self._file.flush()
            if counts.size < self._tally.size:
                self._file.truncate(counts.size)
            self._file.close()
            self._file = None
            path = self._path
            if not counts.rows:
                path.unlink(missing_ok=True)
                path = None
        deletions_path, deletion_columns = self._write_deletions(counts.deletions)
        batch = SpooledBatch(
            path,
            counts,
            self.state,
            is_last,
            self._list_warnings(),
            deletions_path,
            deletion_columns,
        )
        self._batches += 1
        self._reset()
        return batch

    def _write_deletions(self, count: int) -> tuple[Path | None, tuple[tuple[str, ...], ...]]:
        covered = [deletion for deletion in self._deleted if deletion.number <= count]
        if not covered:
            return None, ()
        path = self._path.with_suffix(".deleted")
        with path.open("wb") as file:
            file.writelines(deletion.line for deletion in covered)
        return path, tuple(sorted({deletion.columns for deletion in covered}))

    def _reset(self) -> None:
        self._tally = Counts()
        self._deleted: list[EncodedDeletion] = []
        self._covered = Counts()
        self._started_at = time.monotonic()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number}.{self._batches}.jsonl"

    def _list_warnings(self) -> tuple[str, ...]:
        warnings = []
        for what, fields in (
            ("values of {} do not match its type", self.layout.unfit_counts),
            (
                "records have a field {} that the schema does not declare",
                self.layout.undeclared_counts,
            ),
        ):
            for name, count in fields.items():
                text = what.format(excerpt(name, 100))
                if text not in self._reported:
                    warnings.append(f"{count:,} {text}: stored in the column {REST_COLUMN}")
                self._reported.add(text)
        if len(warnings) > 5:
            warnings = [
                *warnings[:5],
                f"{len(warnings) - 5} more fields have values in the column {REST_COLUMN}",
            ]
        return tuple(warnings)


def encode_now(data_type: t.DataType, now: float) -> int | None:
    """Converts a time to the spool's format for a cursor type, or to None for other types."""
    if isinstance(data_type, _TIMES):
        return int(now * 1_000_000)
    return int(now // 86400) if isinstance(data_type, t.DateType) else None


@dataclass
class Stream:
    """The progress of one stream within a read.

    Attributes:
        is_incremental: whether the stream resumes from a state. Other streams can be complete
            without one.
        is_complete: whether the program reported that the stream succeeded.
        error: the error to raise after the last batch.
        is_incomplete: whether the program reported that the stream failed.
        has_begun: whether the program reported that the stream started.
        has_ended: whether no more batches follow.
        possible_gap: the reason why records may be missing, or None. If set, later states are
            ignored.
        is_wanted: whether the run still loads the table; False once the table has failed.
        received: the number of records since the last state.
    """

    name: str
    spool: RecordSpool
    is_incremental: bool = True
    is_complete: bool = False
    reported_error: LoaderError | None = None
    batches: deque[SpooledBatch] = field(default_factory=deque)
    error: LoaderError | None = None
    is_incomplete: bool = False
    has_begun: bool = False
    has_ended: bool = False
    possible_gap: LoaderError | None = None
    is_wanted: bool = True
    received: int = 0

    def can_accept_records(self) -> bool:
        """Returns whether the run can still load the stream's records."""
        return self.is_wanted and self.error is None

    def find_gap_reason(self) -> LoaderError | None:
        """Returns the error that may have caused records to be lost, or None if there is none."""
        return self.reported_error or self.possible_gap

    def find_reported_error(self, failure: str) -> LoaderError | None:
        """Returns the error that the program reported for this stream; None if it reported none.

        Args:
            failure: the error that the program reported for all streams, or "".
        """
        if self.reported_error is not None or not self.is_incomplete:
            return self.reported_error
        return read_error(
            failure or "the program did not complete the stream", f"table {self.name}"
        )

    def has_ended_well(self) -> bool:
        """Returns whether the stream has succeeded, so that later failures do not affect it.

        Returns False if the stream's state covers all streams, because another state may follow.
        """
        state = self.spool.state
        return self.is_complete and not (state is not None and state.shared)


def read_error(text: str, where: str) -> TableError:
    return TableError(
        excerpt(text.strip(), 1000).rstrip("."),
        where=where,
        remedy="The records before the last state are appended; correct the cause, and run again",
    )
