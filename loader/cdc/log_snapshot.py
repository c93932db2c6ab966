"""Reads the log of a PostgreSQL database once per run, for its tables with `sync_mode: cdc`."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.cdc.catalog_changes import has_changed
from loader.cdc.changes import Changes, find_missing_keys
from loader.cdc.debezium.engine import build_missing_error, is_installed
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.first_load import FirstLoads
from loader.cdc.position import Mark, format_position
from loader.cdc.requirements import UnmetRequirements, find_unmet_requirements
from loader.cdc.slot import SlotAdvance, SourceSlot, name_in_log, schema_and_table, slot_name
from loader.cdc.slot_setup import SlotSetup, prepare_slot
from loader.cdc.table_definition import (
    Definitions,
    LoggedColumn,
    describe_alteration,
    describe_misnaming,
    list_by_number,
)
from loader.cdc.wal_reader import LogRead, LogReader
from loader.errors import TableError
from loader.rows.bookkeeping import DELETED
from loader.rows.window import Bounds, Logged, Window
from loader.sources.interface import Snapshot, SourceTable
from loader.sources.jdbc.interface import Database
from loader.spark.temporary_files import private_folder

_log = logging.getLogger("loader")
T = TypeVar("T")

SEGMENT = 16 * 1024 * 1024
"""The log is recycled in files of this size: a shorter way is not worth a commit of its own."""


class LogSnapshot(Snapshot):
    """The log, and the tables that follow it; opened once a run.

    Nothing is asked of the database before the first table needs it. The first table that needs
    changes reads those of all tables.

    Args:
        tables: all of the run's tables with `sync_mode: cdc`.
        stack: closed at the end of the run.
    """

    def __init__(self, database: Database, tables: Sequence[SourceTable], stack: ExitStack) -> None:
        self.database = database
        self.tables = {table.ref.name: table for table in tables}
        self.slot = SourceSlot(database, slot_name(database.name, database.options.slot))
        self.where = f"source {database.name}, sync_mode: cdc"
        self._stack = stack
        self._lock = threading.RLock()
        self._setup: SlotSetup | None = None
        self._failure: Exception | None = None
        self._slot_advance = SlotAdvance(self.slot)
        self._unfinished: dict[str, Mark] = {}
        self._definitions = Definitions(database)
        self._placeholder = secrets.token_hex(16)
        self._loads = FirstLoads(self.slot, list(tables), stack)
        stack.callback(self._loads.release_slot)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        # A full refresh begins without a mark, and goes on with the chunk that it has just read.
        own = self._unfinished.pop(table.ref.name, None)
        mark = Mark.from_dict(window.mark) or own
        # From here on, the slot keeps the log for the table in any case.
        self._slot_advance.record_mark(table.ref.name, mark)
        with self._lock:
            ready = self._run_once(self._prepare)
            if table.ref.name in ready.refused:
                raise ready.refused[table.ref.name]
            columns = self._definitions.read_columns(table)
            parts, lost = self._definitions.read_partitions(table, mark)
            if mark is not None:
                gone = "" if own is not None else ready.explain_loss(self.slot, table, mark)
                lost = (
                    gone
                    or describe_alteration(mark.columns, columns)
                    or lost
                    or self._explain_new_key(table, mark)
                )
            if mark is None or lost:
                found = self._bound_first_load(table, window, ready, parts, lost)
                return replace(
                    found, notes=(*found.notes, *ready.warn_of_unread_slot(self.slot, mark))
                )
            if mark.loaded is not None:
                return self._bound_next_chunk(table, mark, ready)
            held = self._run_once(lambda: self._log_read)
        if held.begun > mark.position:
            raise TableError(
                "another run moved the replication slot meanwhile",
                where=f"{self._definitions.where(table)}, sync_mode: cdc",
                remedy="Run again. Two projects that read the same database need a `slot` each",
            )
        after = replace(
            mark.move_to(held.position, list_by_number(columns), parts),
            slot=self.slot.name,
            catalog=self._definitions.catalogs[table.ref.name],
        )
        spool, name = held.spool, name_in_log(table)
        changed = spool is not None and spool.count_changes(name) > 0
        if changed and spool is not None:
            self._definitions.refuse_replaced_values(table, columns, spool)
            lost = self._explain_broken_load(table, columns, mark, spool)
            if lost:
                with self._lock:
                    return self._bound_first_load(table, window, ready, parts, lost)
            if list_by_number(self._definitions.read_columns(table)) != list_by_number(
                columns
            ):  # now that all is read
                raise self._definitions.alteration_error(table)
            if list_by_number(columns) != mark.columns or has_changed(mark.catalog, after.catalog):
                names = self._changes(table, columns, mark, spool).list_column_names(
                    self.database.spark
                )
                lost = describe_misnaming(names, mark.columns, columns)
                if lost:
                    with self._lock:
                        return self._bound_first_load(table, window, ready, parts, lost)
        return Bounds(
            rows=None if changed else 0,
            mark=after.to_dict(),
            settled=after.position - mark.position >= SEGMENT
            or (after.seen, after.partitions, after.catalog)
            != (mark.seen, mark.partitions, mark.catalog),
            log=Logged(
                format_position(mark.position), format_position(after.position), ready.slot.held
            ),
            notes=(
                *ready.warn_of_retained_log(self.slot),
                *ready.warn_of_unread_slot(self.slot, mark),
            ),
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        assert bounds.log is not None
        if bounds.log.low is None or bounds.log.continued:
            rows = self._loads.read(spark, table, bounds).withColumn(DELETED, f.lit(False))
            if window.read_raw is None or bounds.log.continued:
                return rows
            return rows.unionByName(
                find_missing_keys(rows, table, self._definitions.list_key(table), window.read_raw)
            )
        mark, spool = Mark.from_dict(window.mark), self._log_read.spool
        assert mark is not None
        assert spool is not None
        return self._changes(table, self._definitions.read_columns(table), mark, spool).select_rows(
            spark, window
        )

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        mark = Mark.from_dict(window.mark)
        if mark is None:
            return Bounds(None)
        with self.database.connect(self._definitions.where(table)) as connection:
            return Bounds(
                None,
                log=Logged(
                    format_position(mark.position), format_position(self.slot.read_end(connection))
                ),
            )

    def is_steady(self, table: SourceTable) -> bool:
        return self._loads.is_steady(table)

    def has_more(self, table: SourceTable) -> bool:
        return table.ref.name in self._unfinished

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        found = Mark.from_dict(mark)
        if found is not None:
            self._slot_advance.record_mark(table.ref.name, found)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._slot_advance.marks_of = marks

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        unmet, name = self._unmet_requirements, table.ref.name
        error = unmet.server or unmet.tables.get(name)
        if error is not None:
            raise error
        self._definitions.read_columns(table)
        error = unmet.unpublishable.get(name) or unmet.publication
        if error is not None:
            raise error
        with self.database.connect(self._definitions.where(table)) as connection:
            slot = self.slot.read_slot(connection)
        if not is_installed():
            raise build_missing_error(f"{self._definitions.where(table)}, sync_mode: cdc")
        if slot is None:
            return [f"the first run creates the replication slot {self.slot.name}"]
        kept = f"the replication slot {self.slot.name} keeps {slot.held >> 20:,} MB of log"
        return [f"{self.slot.name}: {slot.lost}"] if slot.lost else [kept]

    @cached_property
    def _unmet_requirements(self) -> UnmetRequirements:
        with self.database.connect(self.where) as connection:
            return find_unmet_requirements(
                connection,
                self.slot,
                list(self.tables.values()),
                self._definitions.list_key,
                self.where,
            )

    def advance_slot(self) -> None:
        """Moves the slot to where all of its tables are safe; called once all is published."""
        self._loads.release_slot()
        if self._setup is not None and self._failure is None:
            self._slot_advance.advance(self._setup.slot, self._loads.exclude_loads)

    def _changes(
        self, table: SourceTable, columns: Sequence[LoggedColumn], mark: Mark, spool: ChangeSpool
    ) -> Changes:
        return Changes(
            table=table,
            spool=spool,
            logged=name_in_log(table),
            columns=columns,
            key=self._definitions.list_key(table),
            first=spool.find_first_after(mark.position),
            seen=mark.seen,
            earlier=mark.earlier,
            placeholder=self._placeholder,
            cached=self._cache,
        )

    @cached_property
    def _folder(self) -> Path:
        return self._stack.enter_context(private_folder("cdc"))

    def _cache(self, rows: DataFrame) -> DataFrame:
        kept = rows.persist()
        self._stack.callback(kept.unpersist)
        return kept

    def _run_once(self, step: Callable[[], T]) -> T:
        """Takes a step that all tables need; if one failed, every table gets its error."""
        if self._failure is not None:
            raise self._failure
        try:
            return step()
        except Exception as error:
            self._failure = error
            raise

    def _prepare(self) -> SlotSetup:
        """Makes publication and slot ready, once."""
        if self._setup is None:
            if not is_installed():
                raise build_missing_error(self.where)  # before there is a slot that keeps the log
            tables = list(self.tables.values())
            self._setup = prepare_slot(self.slot, tables, self._definitions.list_key, self.where)
            self._loads.together = self._setup.created
        return self._setup

    def _bound_first_load(
        self, table: SourceTable, window: Window, ready: SlotSetup, parts: Iterable[str], lost: str
    ) -> Bounds:
        """Bounds a read of all rows; if they are many, and raw has none, of a first chunk."""
        position, found, seen = self._loads.bound_table(table)
        key, rows = self._definitions.list_key_columns(table), found.rows
        upto = None
        large = (rows or 0) > self.database.options.batch_rows
        if large and window.read_raw is None and self._loads.is_divisible(table, key):
            chunk, seen = self._loads.bound_next_chunk(table, key, None)
            rows, upto = chunk.rows, chunk.upto
        mark = Mark(
            position,
            self.slot.name,
            ready.system,
            seen,
            list_by_number(self._definitions.read_columns(table)),
            frozenset(parts),
            ready.published.get(schema_and_table(table), ""),
            upto,
            key=tuple(self._definitions.list_key(table)) if upto is not None else (),
            catalog=self._definitions.catalogs[table.ref.name],
        )
        if upto is not None:
            self._unfinished[table.ref.name] = mark
        notes = (f"{lost}: all rows are read again",) if lost else ()
        return replace(
            found,
            rows=rows if window.read_raw is None else None,
            mark=mark.to_dict(),
            settled=True,
            log=Logged(None, format_position(mark.position), ready.slot.held),
            notes=(*notes, *found.notes),
        )

    def _bound_next_chunk(self, table: SourceTable, mark: Mark, ready: SlotSetup) -> Bounds:
        """Bounds the next chunk of a first load."""
        chunk, seen = self._loads.bound_next_chunk(
            table, self._definitions.list_key_columns(table), mark.loaded
        )
        after = mark.add_chunk(chunk.upto, seen)
        if chunk.upto is not None:
            self._unfinished[table.ref.name] = after
        resumed = mark.seen is not None and mark.seen.text != seen.text
        if resumed:
            self._loads.refuse_lossy_values(table)
        at = format_position(mark.position)
        return Bounds(
            rows=chunk.rows,
            mark=after.to_dict(),
            settled=True,
            log=Logged(at, at, ready.slot.held, continued=True),
            notes=("its first load was broken off, and goes on where it was",) if resumed else (),
        )

    def _explain_new_key(self, table: SourceTable, mark: Mark) -> str:
        """Returns whether the chunks of a first load are no ranges of the table's key any more."""
        key = tuple(self._definitions.list_key(table))
        return "its key was changed during its first load" if mark.key not in ((), key) else ""

    def _explain_broken_load(
        self, table: SourceTable, columns: Sequence[LoggedColumn], mark: Mark, spool: ChangeSpool
    ) -> str:
        """Returns why a first load that was broken off does not fit together with the log."""
        if not mark.earlier:
            return ""
        name = name_in_log(table)
        if spool.count_truncates(name):
            return "it was truncated during its first load"
        moved = spool.count_left_out(name) and self._changes(
            table, columns, mark, spool
        ).has_moved_rows(self.database.spark)
        return "a row with a large value got another key during its first load" if moved else ""

    @cached_property
    def _log_read(self) -> LogRead:
        """The log up to its end, read once."""
        logged = [name_in_log(table) for table in self.tables.values()]
        assert self._setup is not None
        reader = LogReader(
            self.slot, self._setup.slot, logged, self._folder, self._placeholder, self.where
        )
        return reader.read()


@contextmanager
def open_log(database: Database, tables: Sequence[SourceTable]) -> Iterator[LogSnapshot]:
    """Opens the log for the tables of a run; moves the slot at the end."""
    with ExitStack() as stack:
        log = LogSnapshot(database, tables, stack)
        yield log
        try:
            log.advance_slot()
        except Exception as error:
            # All is published. The next run drops what it reads again, and moves the slot.
            _log.warning("%s: the slot was not moved: %s", log.where, error)
