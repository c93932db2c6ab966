"""Spools records to disk, in pieces, each up to a state that covers it.

A program decides when it sends a state, which means that the source need not send the records
before it again. Records after the last state are read again if the program dies, so they are
dropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import types as t

from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.json_schema import REST
from loader.connectors.subprocess.json_values import get_sort_key
from loader.connectors.subprocess.spool_format import Condition, RecordLayout
from loader.spec.redaction import excerpt

_TIMES = (t.TimestampType, t.TimestampNTZType)


@dataclass(frozen=True)
class Counts:
    """Statistics of a piece's records.

    Attributes:
        rows, size: how many, and in how many bytes.
        low, high: the lowest and highest cursor, as the spool holds them.
        nulls: records without a cursor.
        future: records whose cursor lies in the future.
        deletions: how often rows were deleted.
    """

    rows: int = 0
    size: int = 0
    low: Any = None
    high: Any = None
    nulls: int = 0
    future: int = 0
    deletions: int = 0


@dataclass(frozen=True)
class Piece:
    """Records of one stream, and the state that covers them.

    Attributes:
        path: their file; None if there are none.
        memory: the state to store once they are published; None if the program sent none.
        last: no piece follows.
        notes: warnings about the records.
        deleted: their deletions, in a file of its own; None if there are none.
        by: the sets of columns that deletions name.
    """

    path: Path | None
    counts: Counts
    memory: ConnectorState | None
    last: bool = False
    notes: tuple[str, ...] = ()
    deleted: Path | None = None
    by: tuple[tuple[str, ...], ...] = ()

    def delete_files(self) -> None:
        """Deletes its files."""
        for path in (self.path, self.deleted):
            if path is not None:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Limits:
    """Limits after which a piece is complete at the next state.

    Attributes:
        rows, size, seconds: from how many on; whichever comes first.
    """

    rows: int
    size: int = 256 << 20
    seconds: float = 600.0


class _Tally:
    """Counts the records of a piece as they come."""

    def __init__(self) -> None:
        self.rows = self.size = self.nulls = self.future = self.deletions = 0
        self.low: tuple[Any, Any] | None = None
        self.high: tuple[Any, Any] | None = None

    def counts(self) -> Counts:
        low, high = (edge[1] if edge else None for edge in (self.low, self.high))
        return Counts(self.rows, self.size, low, high, self.nulls, self.future, self.deletions)

    def cursor(self, value: Any, order: Any, ahead: bool) -> None:
        """Counts a record's cursor.

        Args:
            value, order: the value as the spool holds it, and its sort key.
            ahead: whether it lies in the future.
        """
        if value is None:
            self.nulls += 1
            return
        if order is None:
            return
        if self.low is None or order < self.low[0]:
            self.low = (order, value)
        if self.high is None or order > self.high[0]:
            self.high = (order, value)
        self.future += ahead


class Spool:
    """One stream's records, as they come.

    Args:
        folder: where its files are.
        number: of the stream, for the files' names.
        layout: how its records are written.
        cursor: the cursor's column; None if there is none.
        limits: None if the whole read is one piece.

    Attributes:
        memory: the newest state that covers its records.
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
        self.memory: ConnectorState | None = None
        self._folder = folder
        self._number = number
        self._place = layout.place(cursor) if cursor is not None else None
        self._type = layout.schema[cursor].dataType if cursor is not None else t.NullType()
        self._clock = encode_now(self._type, time.time())
        self._noted: set[str] = set()
        self._pieces = 0
        self._file: Any = None
        self._blank()

    def add(self, record: Mapping[str, Any]) -> None:
        """Writes a record.

        Raises:
            TableError: if it cannot be kept.
            OSError: if the disk is full.
        """
        line, wire = self.layout.encode_record(record, after=self._tally.deletions)
        if self._file is None:
            self._file = self._path.open("wb", buffering=1 << 18)
        self._file.write(line)
        self._tally.rows += 1
        self._tally.size += len(line)
        if self._place is not None:
            value = wire.get(self._place)
            order = None if value is None else get_sort_key(value, self._type)
            self._tally.cursor(value, order, self._is_ahead(order))

    def delete(self, where: Sequence[Mapping[str, Any]]) -> None:
        """Notes that all rows before it that meet one of some conditions are deleted.

        Raises:
            TableError: if they cannot be found.
        """
        self._tally.deletions += 1
        for condition in where:
            self._deleted.append(self.layout.encode_deletion(condition, self._tally.deletions))

    def _is_ahead(self, order: Any) -> bool:
        if order is None or self._clock is None or not order > self._clock:
            return False
        self._clock = encode_now(self._type, time.time())
        return self._clock is not None and bool(order > self._clock)

    def cover(self, memory: ConnectorState) -> Piece | None:
        """Notes a state that covers all records so far; returns the piece if it is complete."""
        self.memory = memory
        self._covered = self._tally.counts()
        limits, rows = self.limits, self._covered.rows + self._covered.deletions
        if limits is None:
            return None
        waited = time.monotonic() - self._began
        enough = rows >= limits.rows or self._covered.size >= limits.size
        if enough or (rows and waited >= limits.seconds):
            return self._seal(self._covered, last=False)
        return None

    def end(self) -> Piece:
        """Returns the last piece, with all records: the program has ended well."""
        return self._seal(self._tally.counts(), last=True)

    def cut(self) -> Piece | None:
        """Returns the last piece without the records that no state covers; None if none is left."""
        if self.limits is None or self.memory is None:
            self.drop()
            return None
        return self._seal(self._covered, last=False)

    def drop(self) -> None:
        """Deletes the file that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._path.unlink(missing_ok=True)

    def _seal(self, counts: Counts, last: bool) -> Piece:
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
        deleted, by = self._seal_deletions(counts.deletions)
        piece = Piece(path, counts, self.memory, last, self._notes(), deleted, by)
        self._pieces += 1
        self._blank()
        return piece

    def _seal_deletions(self, count: int) -> tuple[Path | None, tuple[tuple[str, ...], ...]]:
        covered = [one for one in self._deleted if one.number <= count]
        if not covered:
            return None, ()
        path = self._path.with_suffix(".deleted")
        with path.open("wb") as file:
            file.writelines(one.line for one in covered)
        return path, tuple(sorted({one.columns for one in covered}))

    def _blank(self) -> None:
        self._tally = _Tally()
        self._deleted: list[Condition] = []
        self._covered = Counts()
        self._began = time.monotonic()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number}.{self._pieces}.jsonl"

    def _notes(self) -> tuple[str, ...]:
        """Warnings about fields; each once."""
        notes = []
        for what, fields in (
            ("values of {} do not fit its type", self.layout.misfits),
            ("records have a field {} that the schema does not declare", self.layout.undeclared),
        ):
            for name, count in fields.items():
                text = what.format(excerpt(name, 100))
                if text not in self._noted:
                    notes.append(f"{count:,} {text}: kept in the column {REST}")
                self._noted.add(text)
        if len(notes) > 5:
            notes = [*notes[:5], f"{len(notes) - 5} more fields have values in the column {REST}"]
        return tuple(notes)


def encode_now(data_type: t.DataType, now: float) -> int | None:
    """Returns the time as the spool holds a cursor of a type; None if that is no time."""
    if isinstance(data_type, _TIMES):
        return int(now * 1_000_000)
    return int(now // 86400) if isinstance(data_type, t.DateType) else None
