"""The snapshot for one run of a program. It returns each table's records in batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.connectors.subprocess.connector_state import (
    ConnectorState,
    StateCipher,
    can_repeat_records,
    can_store_early,
)
from loader.connectors.subprocess.json_values import format_value
from loader.connectors.subprocess.message_reader import MessageReader
from loader.connectors.subprocess.record_masks import RecordMasks
from loader.connectors.subprocess.record_spool import Limits, RecordSpool, SpooledBatch, Stream
from loader.connectors.subprocess.spool_format import DELETIONS_BEFORE, RecordLayout, flag_deleted
from loader.errors import StateError, TableError
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
        folder: a private folder for the program's configuration and for the spool.
        states: maps the name of each table, as in messages, to the state that it resumes from.
        streams: the streams to fill, keyed as in the program's messages.
        number: a lower bound. All new states get higher numbers.
    """

    folder: Path
    requests: Sequence[Request]
    states: Mapping[str, ConnectorState | None]
    streams: Mapping[Hashable, Stream]
    number: int
    context: RunContext


class ProgramSnapshot(Snapshot):
    """The records that a program sends in one run.

    Before :meth:`begin`, the number of rows and the bounds are unknown, because a dry run reads
    nothing.

    Args:
        names: the names of all of the source's tables, including those that the run does not load.
        cipher: encrypts the stored states; None if the source has no `mask_key`.
    """

    delivers = True
    missing_means_deleted = False

    def __init__(
        self,
        source: str,
        protocol: str,
        limits: Limits,
        folder: Path,
        start_read: Callable[[PlannedRead], MessageReader],
        probe: Callable[[], None],
        names: Sequence[str] = (),
        cipher: StateCipher | None = None,
    ) -> None:
        self.source = source
        self.protocol = protocol
        self._limits = limits
        self.folder = folder
        self._start_read = start_read
        self._probe = probe
        self._all_names = tuple(names)
        self._cipher = cipher
        self._read_marks: Callable[[str], Sequence[Mapping[str, Any]]] = lambda _: ()
        self._probe_lock = threading.Lock()
        self._has_probed = False
        self._reader: MessageReader | None = None
        self._names: dict[Hashable, str] = {}
        self._errors: dict[Hashable, StateError] = {}
        self._context: RunContext | None = None
        self._batches: dict[Hashable, SpooledBatch] = {}
        self._layouts: dict[Hashable, RecordLayout] = {}

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._read_marks = marks

    def begin(self, requests: Sequence[Request], context: RunContext) -> None:
        states: dict[str, ConnectorState | None] = {}
        for request in requests:
            try:
                states[request.name] = ConnectorState.from_mark(
                    request.mark, self.protocol, f"table {request.name}", self._cipher
                )
            except StateError as error:
                self._errors[_key_of(request.table)] = error
        if self._errors and not states:
            return
        requests = [request for request in requests if request.name in states]
        known = [states[r.name] for r in requests if r.table.progress is Progress.MARK]
        stored = self._list_other_states(requests, known)
        at_end_only = not can_store_early(known, stored)
        streams: dict[Hashable, Stream] = {}
        for number, request in enumerate(requests):
            key = _key_of(request.table)
            self._names[key] = request.name
            self._layouts[key] = layout = self._build_layout(request)
            is_incremental = request.table.progress is Progress.MARK
            if (
                is_incremental
                and not request.key
                and can_repeat_records(states[request.name], known)
            ):
                context.warn(
                    request.name,
                    "another table resumes from an older state, so records are sent again; without "
                    "a primary key, they are appended again: set primary_key if they have one",
                )
            in_pieces = is_incremental and not (request.whole or at_end_only)
            streams[key] = Stream(
                request.name,
                RecordSpool(
                    self.folder,
                    number,
                    layout,
                    request.cursor,
                    self._limits if in_pieces else None,
                ),
                is_incremental,
            )
        self._context = context
        numbers = [state.number for state in (*known, *stored) if state is not None]
        # New states are numbered from the current time on, which is above the numbers of all
        # earlier states, including unreadable ones.
        number = max([time.time_ns() // 1000, *numbers])
        self._reader = self._start_read(
            PlannedRead(self.folder, requests, states, streams, number, context)
        )

    def _list_other_states(
        self, requests: Sequence[Request], known: Sequence[ConnectorState | None]
    ) -> list[ConnectorState]:
        """Returns the stored states of the source's tables that this run does not resume."""
        if all(state is not None and not state.shared for state in known):
            return []  # each of these states covers only one table
        resuming = {r.table.ref.name for r in requests if r.mark is not None}
        names = {*self._all_names, *(r.table.ref.name for r in requests)} - resuming
        result = []
        for name in sorted(names):
            try:
                for mark in self._read_marks(name):
                    if not is_connector_state(mark) or mark.get("protocol") != self.protocol:
                        continue
                    where = f"table {self.source}.{name}"
                    state = ConnectorState.from_mark(mark, self.protocol, where, self._cipher)
                    result += [state] if state is not None else []
            # The table's next run will report the error. An unreadable state may cover all streams.
            except StateError:
                result.append(
                    ConnectorState(self.protocol, kind="", shared=True, number=0, text="")
                )
        return result

    def probe(self) -> None:
        with self._probe_lock:
            if not self._has_probed:
                self._probe()
                self._has_probed = True

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        key = _key_of(table)
        if key in self._errors:
            raise self._errors[key]
        if self._reader is None or self._context is None:
            self.probe()
            return Bounds(None, mark=window.mark)
        context, name = self._context, self._names.get(key)
        if name is None:
            raise TableError(
                "the table was not requested from the connector, because its stored state could "
                "not be read when the run started",
                where=f"table {self.source}.{table.ref.name}",
                remedy="Nothing was published; run again",
            )
        self._delete_batch(key)
        batch = self._reader.next_batch(key, lambda: context.check_interruption(name))
        self._batches[key] = batch
        return self._build_bounds(table, window, batch)

    def _build_bounds(self, table: SourceTable, window: Window, batch: SpooledBatch) -> Bounds:
        counts, cursor = batch.counts, window.cursor
        mark = window.mark
        if batch.state is not None and table.progress is Progress.MARK:
            mark = batch.state.to_mark(previous=window.mark, cipher=self._cipher)
        low = high = clock = None
        nulls = 0
        if cursor is not None:
            low, high = (
                self._parse_edge(edge[1], table, window) if edge else None
                for edge in (counts.low, counts.high)
            )
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
            notes=batch.warnings,
            deletions=counts.deletions,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        batch = self._batches.get(_key_of(table))
        if batch is None:
            raise TableError(
                "a connector cannot be queried by cursor values",
                where=f"table {self.source}.{table.ref.lake_name}",
                remedy="Reload all records with `loader run --full-refresh`",
            )
        if batch.path is None:
            return empty(spark, table.schema)
        layout = self._layouts[_key_of(table)]
        if batch.deletions_path is None:
            return layout.read_rows(spark, batch.path)
        rows = layout.read_rows(spark, batch.path, numbered=True)
        return flag_deleted(rows, self._read_deletions(spark, table, batch))

    def deletions(self, spark: SparkSession, table: SourceTable) -> list[DataFrame]:
        batch = self._batches.get(_key_of(table))
        result = [] if batch is None else self._read_deletions(spark, table, batch)
        return [rows.drop(DELETIONS_BEFORE) for rows in result]

    def _read_deletions(
        self, spark: SparkSession, table: SourceTable, batch: SpooledBatch
    ) -> list[DataFrame]:
        layout, path = self._layouts[_key_of(table)], batch.deletions_path
        return (
            []
            if path is None
            else [layout.read_deletions(spark, path, by) for by in batch.deletion_columns]
        )

    def has_more(self, table: SourceTable) -> bool:
        batch = self._batches.get(_key_of(table))
        return batch is not None and not batch.is_last

    def is_steady(self, table: SourceTable) -> bool:
        return self._reader is not None

    def abandon(self, table: SourceTable) -> None:
        if self._reader is not None:
            self._reader.abandon(_key_of(table))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _delete_batch(self, key: Hashable) -> None:
        batch = self._batches.pop(key, None)
        if batch is not None:
            batch.delete_files()

    def _build_layout(self, request: Request) -> RecordLayout:
        native = request.table.ref.native
        masks = RecordMasks.of_table(request.table)
        return RecordLayout(request.name, native.columns, request.key, native.selection, masks)

    def _parse_edge(self, value: object, table: SourceTable, window: Window) -> Cursor | None:
        if window.cursor is None:
            return None
        text = format_value(value, table.schema[window.cursor.name].dataType)
        return parse_bound(text, window.cursor.type, table, window)


def _key_of(table: SourceTable) -> Hashable:
    key: Hashable = table.ref.native.key
    return key
