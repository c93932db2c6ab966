"""Reads a PostgreSQL log once per run, for all tables with `sync_mode: cdc`."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.cdc.catalog_changes import has_rewritten_columns
from loader.cdc.changes import Changes, find_missing_keys
from loader.cdc.debezium.launcher import build_missing_error, is_installed
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.first_load import FirstLoads
from loader.cdc.position import Mark, format_position
from loader.cdc.requirements import RequirementErrors, check_requirements
from loader.cdc.slot import (
    SlotAdvance,
    SourceSlot,
    build_log_name,
    choose_slot_name,
    get_schema_and_table,
)
from loader.cdc.slot_setup import SlotSetup, prepare_slot
from loader.cdc.table_definition import (
    LoggedColumn,
    TableDefinitions,
    describe_alteration,
    describe_selection,
    describe_unknown_names,
    list_by_number,
)
from loader.cdc.wal_reader import LogRead, LogReader
from loader.errors import TableError
from loader.rows.bookkeeping import DELETED
from loader.rows.mask_columns import mask_rows
from loader.rows.window import Bounds, LogRange, Window
from loader.sources.interface import Snapshot, SourceTable
from loader.sources.jdbc.interface import Database
from loader.sources.masked_table import MaskedTable, get_original
from loader.spark.temporary_files import private_folder

_log = logging.getLogger("loader")
T = TypeVar("T")

SEGMENT_BYTES = 16 * 1024 * 1024
"""The size of one file of the log. The server recycles only whole files."""


class LogSnapshot(Snapshot):
    """Reads a run's tables that have `sync_mode: cdc`.

    The first table that is read sets up the slot. The first table that needs changes reads the log,
    once for all tables.
    """

    def __init__(self, database: Database, tables: Sequence[SourceTable], stack: ExitStack) -> None:
        self.database = database
        self.tables = {table.ref.name: table for table in tables}
        self.slot = SourceSlot(database, choose_slot_name(database.name, database.options.slot))
        self.where = f"source {database.name}, sync_mode: cdc"
        self._stack = stack
        self._lock = threading.RLock()
        self._setup: SlotSetup | None = None
        self._failure: Exception | None = None
        self._slot_advance = SlotAdvance(self.slot)
        self._unfinished: dict[str, Mark] = {}
        self._planned: dict[str, LogRead] = {}
        self._loaded: set[str] = set()
        self._definitions = TableDefinitions(database)
        self._placeholder = secrets.token_hex(16)
        self._spool_key = secrets.token_bytes(32)
        self._loads = FirstLoads(self.slot, list(map(get_original, tables)), stack)
        stack.callback(self._loads.release_slot)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        # A full refresh ignores the stored checkpoint. So each later chunk continues from the
        # checkpoint of the previous chunk in this run.
        unfinished = self._unfinished.pop(table.ref.name, None)
        mark = Mark.from_dict(window.mark) or unfinished
        # Recorded now, so that the slot does not move past this checkpoint if the table fails
        # later.
        self._slot_advance.record_mark(table.ref.name, mark)
        with self._lock:
            setup = self._run_once(self._prepare)
            if table.ref.name in setup.refused:
                raise setup.refused[table.ref.name]
            columns = self._definitions.read_columns(table)
            excluded = self._definitions.excluded[table.ref.name]
            partitions, reload_reason = self._definitions.read_partitions(table, mark)
            if mark is not None:
                is_from_this_run = unfinished is not None or table.ref.name in self._loaded
                loss = "" if is_from_this_run else setup.explain_loss(self.slot, table, mark)
                reload_reason = (
                    loss
                    or describe_selection(mark.excluded, columns)
                    or describe_alteration(mark.columns, columns)
                    or reload_reason
                    or self._explain_new_key(table, mark)
                )
            if mark is None or reload_reason:
                first_load = self._plan_first_load(table, window, setup, partitions, reload_reason)
                return replace(
                    first_load,
                    notes=(*first_load.notes, *setup.warn_of_unread_slot(self.slot, mark)),
                )
            if mark.loaded_up_to is not None:
                return self._plan_next_chunk(table, mark, setup)
            log_read = self._run_once(lambda: self._log_read)
            self._planned[table.ref.name] = log_read
        if log_read.oldest_position > mark.position:
            raise TableError(
                "another run moved the replication slot during this run",
                where=f"{self._definitions.get_location(table)}, sync_mode: cdc",
                remedy="Run again. If two projects read the same database, set a different `slot` "
                "in each",
            )
        next_mark = replace(
            mark.move_to(log_read.position, list_by_number(columns), partitions),
            slot=self.slot.name,
            catalog=self._definitions.catalogs[table.ref.name],
            excluded=list_by_number(excluded),
        )
        spool, name = log_read.spool, build_log_name(table)
        has_changes = spool is not None and spool.count_changes(name) > 0
        if has_changes and spool is not None:
            self._definitions.refuse_replaced_values(table, columns, spool)
            reload_reason = self._explain_broken_load(table, columns, mark, spool)
            if reload_reason:
                with self._lock:
                    return self._plan_first_load(table, window, setup, partitions, reload_reason)
            # The table may have been altered while the log was being read.
            if list_by_number(self._definitions.read_columns(table)) != list_by_number(columns):
                raise self._definitions.build_alteration_error(table)
            if list_by_number(columns) != mark.columns or has_rewritten_columns(
                mark.catalog, next_mark.catalog
            ):
                names = self._build_changes(table, columns, mark, spool).list_column_names(
                    self.database.spark
                )
                reload_reason = describe_unknown_names(
                    names, {**mark.columns, **mark.excluded}, [*columns, *excluded]
                )
                if reload_reason:
                    with self._lock:
                        return self._plan_first_load(
                            table, window, setup, partitions, reload_reason
                        )
        return Bounds(
            rows=None if has_changes else 0,
            mark=next_mark.to_dict(),
            must_store_mark=next_mark.position - mark.position >= SEGMENT_BYTES
            or (next_mark.snapshot, next_mark.partitions, next_mark.catalog)
            != (mark.snapshot, mark.partitions, mark.catalog),
            log=LogRange(
                format_position(mark.position),
                format_position(next_mark.position),
                setup.slot.retained_bytes,
            ),
            notes=(
                *setup.warn_of_retained_log(self.slot),
                *setup.warn_of_unread_slot(self.slot, mark),
            ),
            complete_until=setup.complete_until,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        assert bounds.log is not None
        if bounds.log.low is None or bounds.log.is_first_load_chunk:
            rows = self._loads.read(spark, get_original(table), bounds)
            if isinstance(table, MaskedTable):
                rows = mask_rows(rows, table.masks, table.key)
            rows = rows.withColumn(DELETED, f.lit(False))
            if window.read_raw is None or bounds.log.is_first_load_chunk:
                return rows
            return rows.unionByName(
                find_missing_keys(rows, table, self._definitions.list_key(table), window.read_raw)
            )
        mark, spool = Mark.from_dict(window.mark), self._planned[table.ref.name].spool
        assert mark is not None
        assert spool is not None
        return self._build_changes(
            table, self._definitions.read_columns(table), mark, spool
        ).select_rows(spark, window)

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        mark = Mark.from_dict(window.mark)
        if mark is None:
            return Bounds(None)
        with self.database.connect(self._definitions.get_location(table)) as connection:
            return Bounds(
                None,
                log=LogRange(
                    format_position(mark.position), format_position(self.slot.read_end(connection))
                ),
            )

    def is_steady(self, table: SourceTable) -> bool:
        return self._loads.is_steady(get_original(table))

    def has_more(self, table: SourceTable) -> bool:
        return table.ref.name in self._unfinished

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        stored = Mark.from_dict(mark)
        if stored is not None:
            self._slot_advance.record_mark(table.ref.name, stored)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._slot_advance.load_marks = marks

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        errors, name = self._requirement_errors, table.ref.name
        error = errors.server or errors.tables.get(name)
        if error is not None:
            raise error
        self._definitions.read_columns(table)
        error = errors.unpublishable.get(name) or errors.publication
        if error is not None:
            raise error
        with self.database.connect(self._definitions.get_location(table)) as connection:
            slot = self.slot.read_slot(connection)
        if not is_installed():
            raise build_missing_error(f"{self._definitions.get_location(table)}, sync_mode: cdc")
        if slot is None:
            return [f"the first run creates the replication slot {self.slot.name}"]
        retained = (
            f"the replication slot {self.slot.name} retains {slot.retained_bytes >> 20:,} MB of log"
        )
        return [f"{self.slot.name}: {slot.lost}"] if slot.lost else [retained]

    @cached_property
    def _requirement_errors(self) -> RequirementErrors:
        with self.database.connect(self.where) as connection:
            return check_requirements(
                connection,
                self.slot,
                list(self.tables.values()),
                self._definitions.list_key,
                self.where,
            )

    def forget_changes(self) -> None:
        """Makes the next table that needs changes read the log again."""
        with self._lock:
            self.__dict__.pop("_log_read", None)

    def advance_slot(self) -> None:
        """Moves the slot to the lowest stored position. Call once all tables are published."""
        self._loads.release_slot()
        if self._setup is not None and self._failure is None:
            self._slot_advance.advance(self._setup.slot, self._loads.exclude_loads)

    def _build_changes(
        self, table: SourceTable, columns: Sequence[LoggedColumn], mark: Mark, spool: ChangeSpool
    ) -> Changes:
        return Changes(
            table=table,
            spool=spool,
            log_name=build_log_name(table),
            columns=columns,
            key=self._definitions.list_key(table),
            first=spool.find_first_after(mark.position),
            snapshot=mark.snapshot,
            earlier_chunks=mark.earlier_chunks,
            placeholder=self._placeholder,
            spool_key=self._spool_key,
            cache=self._cache_rows,
        )

    @cached_property
    def _folder(self) -> Path:
        return self._stack.enter_context(private_folder("cdc"))

    def _cache_rows(self, rows: DataFrame) -> DataFrame:
        cached = rows.persist()
        self._stack.callback(cached.unpersist)
        return cached

    def _run_once(self, step: Callable[[], T]) -> T:
        """Runs a step for all tables. If it fails, the same error is raised for every table."""
        if self._failure is not None:
            raise self._failure
        try:
            return step()
        except Exception as error:
            self._failure = error
            raise

    def _prepare(self) -> SlotSetup:
        if self._setup is None:
            if not is_installed():
                # Checked before the slot is created, because even an unused slot retains the log.
                raise build_missing_error(self.where)
            tables = list(self.tables.values())
            self._setup = prepare_slot(self.slot, tables, self._definitions.list_key, self.where)
            self._loads.share_snapshot = self._setup.created
        return self._setup

    def _plan_first_load(
        self,
        table: SourceTable,
        window: Window,
        setup: SlotSetup,
        partitions: Iterable[str],
        reload_reason: str,
    ) -> Bounds:
        """Plans a full read, or only its first chunk if the table is large and has no raw table."""
        position, bounds, snapshot = self._loads.plan_load(get_original(table))
        self._loaded.add(table.ref.name)
        key, rows = self._definitions.list_key_columns(table), bounds.rows
        last_key = None
        is_large = (rows or 0) > self.database.options.batch_rows
        if is_large and window.read_raw is None and self._is_divisible(table, key):
            chunk, snapshot = self._loads.plan_next_chunk(get_original(table), key, None)
            rows, last_key = chunk.rows, chunk.last_key
        mark = Mark(
            position,
            self.slot.name,
            setup.system,
            snapshot,
            list_by_number(self._definitions.read_columns(table)),
            frozenset(partitions),
            setup.published.get(get_schema_and_table(table), ""),
            last_key,
            key=tuple(self._definitions.list_key(table)) if last_key is not None else (),
            catalog=self._definitions.catalogs[table.ref.name],
            excluded=list_by_number(self._definitions.excluded[table.ref.name]),
        )
        if last_key is not None:
            self._unfinished[table.ref.name] = mark
        notes = (f"{reload_reason}: all rows are read again",) if reload_reason else ()
        return replace(
            bounds,
            rows=rows if window.read_raw is None else None,
            mark=mark.to_dict(),
            must_store_mark=True,
            log=LogRange(None, format_position(mark.position), setup.slot.retained_bytes),
            notes=(*notes, *bounds.notes),
            complete_until=bounds.complete_until if last_key is None else None,
        )

    def _is_divisible(self, table: SourceTable, key: Sequence[LoggedColumn]) -> bool:
        """Returns whether a table can be loaded in chunks.

        A table with a masked key cannot be, because the state stores the last key of each chunk.
        """
        masks = table.masks if isinstance(table, MaskedTable) else {}
        if masks.keys() & set(self._definitions.list_key(table)):
            return False
        return self._loads.is_divisible(get_original(table), key)

    def _plan_next_chunk(self, table: SourceTable, mark: Mark, setup: SlotSetup) -> Bounds:
        chunk, snapshot = self._loads.plan_next_chunk(
            get_original(table), self._definitions.list_key_columns(table), mark.loaded_up_to
        )
        next_mark = replace(
            mark.add_chunk(chunk.last_key, snapshot),
            excluded=list_by_number(self._definitions.excluded[table.ref.name]),
        )
        if chunk.last_key is not None:
            self._unfinished[table.ref.name] = next_mark
        is_resumed = mark.snapshot is not None and mark.snapshot.text != snapshot.text
        if is_resumed:
            self._loads.refuse_lossy_values(get_original(table))
        position = format_position(mark.position)
        return Bounds(
            rows=chunk.rows,
            mark=next_mark.to_dict(),
            must_store_mark=True,
            log=LogRange(position, position, setup.slot.retained_bytes, is_first_load_chunk=True),
            notes=("continues a first load that was interrupted",) if is_resumed else (),
        )

    def _explain_new_key(self, table: SourceTable, mark: Mark) -> str:
        """Returns a reason to reload the table if its key changed between chunks, otherwise ""."""
        key = tuple(self._definitions.list_key(table))
        return "its key was changed during its first load" if mark.key not in ((), key) else ""

    def _explain_broken_load(
        self, table: SourceTable, columns: Sequence[LoggedColumn], mark: Mark, spool: ChangeSpool
    ) -> str:
        """Returns the reason why an interrupted first load cannot be merged with the log, or ""."""
        if not mark.earlier_chunks:
            return ""
        name = build_log_name(table)
        if spool.count_truncates(name):
            return "it was truncated during its first load"
        is_incomplete = spool.count_omitted(name) and self._build_changes(
            table, columns, mark, spool
        ).has_incomplete_key_changes(self.database.spark)
        return (
            "a row with a large value got another key during its first load"
            if is_incomplete
            else ""
        )

    @cached_property
    def _log_read(self) -> LogRead:
        log_names = [build_log_name(table) for table in self.tables.values()]
        assert self._setup is not None
        excluded = [
            f"{build_log_name(table)}.{name}"
            for table in self.tables.values()
            for name, *_ in table.ref.native.layout
            if name not in table.ref.native.columns
        ]
        reader = LogReader(
            self.slot,
            self._setup.slot,
            log_names,
            Path(mkdtemp(dir=self._folder)),  # other tables may still be reading an earlier spool
            self._placeholder,
            self.where,
            excluded,
            [build_log_name(t) for t in self.tables.values() if isinstance(t, MaskedTable)],
            self._spool_key,
        )
        return reader.read()


@contextmanager
def open_log(database: Database, tables: Sequence[SourceTable]) -> Iterator[LogSnapshot]:
    """Opens the log for the tables of a run, and moves the slot forward afterwards."""
    with ExitStack() as stack:
        log = LogSnapshot(database, tables, stack)
        yield log
        try:
            log.advance_slot()
        except Exception as error:
            # Only a warning, because the rows of all tables are already published. The next run
            # reads these changes again, skips them, and moves the slot.
            _log.warning("%s: the slot was not moved: %s", log.where, error)
