"""Presents one run of a program as a snapshot: each table gets its pieces, one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.connectors.subprocess.connector_state import (
    ConnectorState,
    can_repeat_records,
    can_store_in_pieces,
)
from loader.connectors.subprocess.json_values import format_value
from loader.connectors.subprocess.message_reader import Delivery, Stream
from loader.connectors.subprocess.record_spool import Limits, Piece, Spool
from loader.connectors.subprocess.spool_format import AFTER, RecordLayout, flag_deleted
from loader.errors import TableError
from loader.rows.cursor import Cursor, read_clock
from loader.sources.interface import (
    Bounds,
    Progress,
    Request,
    RunContext,
    Snapshot,
    SourceTable,
    Window,
    is_connector_state,
    parse_bound,
)
from loader.spark.session import empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PlannedRead:
    """A read of a program's streams that has not started yet.

    Attributes:
        folder: a private folder for the program's configuration, and for the spool.
        requests: the requested tables.
        states: the stored states to resume from, by the table's name in messages.
        streams: the streams to fill, by the program's key.
        number: the states of this read get higher numbers.
        context: receives warnings.
    """

    folder: Path
    requests: Sequence[Request]
    states: Mapping[str, ConnectorState | None]
    streams: Mapping[Hashable, Stream]
    number: int
    context: RunContext


class ProgramSnapshot(Snapshot):
    """The records that a program delivers in one run.

    Before :meth:`begin`, bounds are unknown: a dry run does not start a read.

    Args:
        source: the source's name.
        protocol: its name in memories.
        limits: of a piece.
        folder: where records wait.
        start_read: starts the read.
        probe: makes sure that the program can reach its source.
        names: all the tables that the source has, also those that are not in the run.
    """

    delivers = True
    missing_means_deleted = False

    def __init__(
        self,
        source: str,
        protocol: str,
        limits: Limits,
        folder: Path,
        start_read: Callable[[PlannedRead], Delivery],
        probe: Callable[[], None],
        names: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.protocol = protocol
        self._limits = limits
        self.folder = folder
        self._start_read = start_read
        self._probe = probe
        self._all = tuple(names)
        self._marks_of: Callable[[str], Sequence[Mapping[str, Any]]] = lambda _: ()
        self._probing = threading.Lock()
        self._probed = False
        self._delivery: Delivery | None = None
        self._names: dict[Hashable, str] = {}
        self._attention: RunContext | None = None
        self._pieces: dict[Hashable, Piece] = {}
        self._layouts: dict[Hashable, RecordLayout] = {}

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._marks_of = marks

    def begin(self, requests: Sequence[Request], attention: RunContext) -> None:
        memories = {
            request.name: ConnectorState.from_mark(
                request.mark, self.protocol, f"table {request.name}"
            )
            for request in requests
        }
        known = [memories[r.name] for r in requests if r.table.progress is Progress.MARK]
        stored = self._list_stored(requests, known)
        whole = not can_store_in_pieces(known, stored)
        streams: dict[Hashable, Stream] = {}
        for number, request in enumerate(requests):
            key = _key_of(request.table)
            self._names[key] = request.name
            self._layouts[key] = layout = self._layout(request)
            remembers = request.table.progress is Progress.MARK
            if remembers and not request.key and can_repeat_records(memories[request.name], known):
                attention.warn(
                    request.name,
                    "another table is behind, so records come again; it has no primary key, so "
                    "they are appended again: set primary_key if they have one",
                )
            in_pieces = remembers and not (request.whole or whole)
            streams[key] = Stream(
                request.name,
                Spool(
                    self.folder,
                    number,
                    layout,
                    request.cursor,
                    self._limits if in_pieces else None,
                ),
                remembers,
            )
        self._attention = attention
        numbers = [memory.number for memory in (*known, *stored) if memory is not None]
        # Beyond those of every run before, also of tables whose state cannot be looked up.
        number = max([time.time_ns() // 1000, *numbers])
        self._delivery = self._start_read(
            PlannedRead(self.folder, requests, memories, streams, number, attention)
        )

    def _list_stored(
        self, requests: Sequence[Request], known: Sequence[ConnectorState | None]
    ) -> list[ConnectorState]:
        """Returns the states of the source's tables that do not go on from theirs in this run."""
        if all(memory is not None and not memory.shared for memory in known):
            return []  # each table has a state of its own
        going_on = {r.table.ref.name for r in requests if r.mark is not None}
        names = {*self._all, *(r.table.ref.name for r in requests)} - going_on
        found = []
        for name in sorted(names):
            for mark in self._marks_of(name):
                if not is_connector_state(mark) or mark.get("protocol") != self.protocol:
                    continue
                memory = ConnectorState.from_mark(
                    mark, self.protocol, f"table {self.source}.{name}"
                )
                found += [memory] if memory is not None else []
        return found

    def probe(self) -> None:
        with self._probing:
            if not self._probed:
                self._probe()
                self._probed = True

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        key = _key_of(table)
        if self._delivery is None or self._attention is None:
            self.probe()
            return Bounds(None, mark=window.mark)
        attention, name = self._attention, self._names[key]
        self._forget(key)
        piece = self._delivery.next(key, lambda: attention.check_interruption(name))
        self._pieces[key] = piece
        return self._bounds(table, window, piece)

    def _bounds(self, table: SourceTable, window: Window, piece: Piece) -> Bounds:
        counts, cursor = piece.counts, window.cursor
        mark = window.mark
        if piece.memory is not None and table.progress is Progress.MARK:
            mark = piece.memory.to_mark(after=window.mark)
        low = high = clock = None
        nulls = 0
        if cursor is not None:
            low, high = (self._edge(value, table, window) for value in (counts.low, counts.high))
            nulls = counts.nulls
            clock = read_clock(cursor.type)
        return Bounds(
            rows=counts.rows,
            nulls=nulls,
            low=low,
            high=high,
            clock=clock,
            future=counts.future,
            reach=low,
            mark=mark,
            must_store_mark=mark != window.mark,
            notes=piece.notes,
            deletions=counts.deletions,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        piece = self._pieces.get(_key_of(table))
        if piece is None:
            raise TableError(
                "the rows of a connector cannot be asked for by their cursors",
                where=f"table {self.source}.{table.ref.lake_name}",
                remedy="Read everything again with `loader run --full-refresh`",
            )
        if piece.path is None:
            return empty(spark, table.schema)
        layout = self._layouts[_key_of(table)]
        if piece.deleted is None:
            return layout.read_rows(spark, piece.path)
        rows = layout.read_rows(spark, piece.path, numbered=True)
        return flag_deleted(rows, self._deletions(spark, table, piece))

    def deletions(self, spark: SparkSession, table: SourceTable) -> list[DataFrame]:
        piece = self._pieces.get(_key_of(table))
        found = [] if piece is None else self._deletions(spark, table, piece)
        return [one.drop(AFTER) for one in found]

    def _deletions(self, spark: SparkSession, table: SourceTable, piece: Piece) -> list[DataFrame]:
        layout, path = self._layouts[_key_of(table)], piece.deleted
        return [] if path is None else [layout.read_deletions(spark, path, by) for by in piece.by]

    def has_more(self, table: SourceTable) -> bool:
        piece = self._pieces.get(_key_of(table))
        return piece is not None and not piece.last

    def is_steady(self, table: SourceTable) -> bool:
        return self._delivery is not None

    def abandon(self, table: SourceTable) -> None:
        if self._delivery is not None:
            self._delivery.abandon(_key_of(table))

    def close(self) -> None:
        """Ends the program."""
        if self._delivery is not None:
            self._delivery.close()

    def _forget(self, key: Hashable) -> None:
        before = self._pieces.pop(key, None)
        if before is not None:
            before.delete_files()

    def _layout(self, request: Request) -> RecordLayout:
        native = request.table.ref.native
        return RecordLayout(request.name, native.columns, request.key, native.skipped)

    def _edge(self, value: object, table: SourceTable, window: Window) -> Cursor | None:
        if value is None or window.cursor is None:
            return None
        text = format_value(value, table.schema[window.cursor.name].dataType)
        return parse_bound(text, window.cursor.type, table, window)


def _key_of(table: SourceTable) -> Hashable:
    """Returns the key that the program's messages have for a table's stream."""
    key: Hashable = table.ref.native.key
    return key
