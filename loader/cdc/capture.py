"""The capture plug-in for PostgreSQL, which reads tables from the database's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar, cast

from loader.cdc.debezium.launcher import build_missing_error, is_installed
from loader.cdc.log_snapshot import LogSnapshot, open_log
from loader.cdc.requirements import list_setup_sql
from loader.cdc.slot import choose_slot_name
from loader.sources.interface import Bounds, ExclusiveResource, Snapshot, SourceTable, Window
from loader.sources.jdbc.interface import (
    Database,
    JdbcOptions,
    JdbcSnapshot,
    JdbcTableOptions,
    LogCapture,
    OpenQueries,
)
from loader.spec.options import options_for

Method = TypeVar("Method", bound=Callable[..., Any])


class PostgresCapture(LogCapture):
    """Reads changes to PostgreSQL tables with Debezium."""

    def check_installed(self, where: str) -> None:
        if not is_installed():
            raise build_missing_error(where)

    def list_setup_sql(self, source: str, options: JdbcOptions, tables: Sequence[str]) -> list[str]:
        filters = {
            name: options_for(options.table_options, name, JdbcTableOptions()).where
            for name in tables
        }
        return list_setup_sql(
            choose_slot_name(source, options.slot), options.user or "<role>", filters
        )

    def find_single_reader(self, source: str, options: JdbcOptions) -> ExclusiveResource:
        slot = choose_slot_name(source, options.slot)
        identity = (options.url.partition("?")[0], slot)
        return ExclusiveResource(identity, f"the replication slot {slot}", "slot")

    @contextmanager
    def open_snapshot(
        self,
        database: Database,
        followed: Sequence[SourceTable],
        queried: Sequence[SourceTable],
        open_queries: OpenQueries,
    ) -> Iterator[Snapshot]:
        with open_log(database, followed) as log, ExitStack() as opened:
            # Tables that are read from the log are not locked, because this could cause a deadlock:
            # an ALTER TABLE would wait for the run's locks, Debezium would wait for the ALTER
            # TABLE, and the run would wait for Debezium before it releases its locks.
            snapshot = CompositeSnapshot(
                lambda: opened.enter_context(open_queries(queried)),
                log,
                lambda: open_queries(()),
                opened,
            )
            if queried:
                snapshot.open_queries()
            yield snapshot


def _delegate(method: Method, by_queries: bool = False) -> Method:
    """Returns a method that forwards its calls to the snapshot that reads the table.

    Args:
        by_queries: whether the snapshot queries the table even if it has `sync_mode: cdc`.
    """

    def call(self: CompositeSnapshot, *args: Any, **kwargs: Any) -> Any:
        [table] = [value for value in (*args, *kwargs.values()) if isinstance(value, SourceTable)]
        snapshot = self._open_for(table) if by_queries else self.find_snapshot(table)
        return getattr(snapshot, method.__name__)(*args, **kwargs)

    return cast(Method, call)


class CompositeSnapshot(Snapshot):
    """Reads the tables with `sync_mode: cdc` from the log, and all other tables by queries.

    Args:
        open_jdbc: opens the database snapshot for tables without `sync_mode: cdc`.
        open_beside: opens a database snapshot for queries on tables with `sync_mode: cdc`.
        rereads_log: whether the next sync of a table reads the log again, up to its end at that
            time.
    """

    def __init__(
        self,
        open_jdbc: Callable[[], JdbcSnapshot],
        log: LogSnapshot,
        open_beside: Callable[[], AbstractContextManager[JdbcSnapshot]],
        stack: ExitStack,
        rereads_log: bool = False,
    ) -> None:
        self.log = log
        self._open_jdbc = open_jdbc
        self._open_beside = open_beside
        self._stack = stack
        self._rereads_log = rereads_log
        self._lock = threading.Lock()
        self._jdbc: JdbcSnapshot | None = None
        self._beside: JdbcSnapshot | None = None

    read = _delegate(Snapshot.read)
    preview = _delegate(Snapshot.preview)
    has_more = _delegate(Snapshot.has_more)
    confirm_stored = _delegate(Snapshot.confirm_stored)
    list_unmet_requirements = _delegate(Snapshot.list_unmet_requirements)
    list_option_notes = _delegate(Snapshot.list_option_notes)
    count_values = _delegate(Snapshot.count_values)
    check_unaltered = _delegate(Snapshot.check_unaltered)
    is_steady = _delegate(Snapshot.is_steady)
    digest = _delegate(Snapshot.digest)
    deletions = _delegate(Snapshot.deletions)
    lower_window = _delegate(Snapshot.lower_window)
    finds_late_rows_by_time = _delegate(Snapshot.finds_late_rows_by_time)
    estimate_bytes = _delegate(Snapshot.estimate_bytes)
    read_current_rows = _delegate(Snapshot.read_current_rows, by_queries=True)
    read_first = _delegate(Snapshot.read_first, by_queries=True)
    contents = _delegate(Snapshot.contents, by_queries=True)
    _find_contents_bounds = _delegate(Snapshot._find_contents_bounds, by_queries=True)

    def masks_rows(self, table: SourceTable) -> bool:
        return table.ref.name in self.log.tables

    def get_query_snapshot(self, table: SourceTable) -> Snapshot:
        return self._open_for(table)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self.log.use_marks(marks)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        if self._rereads_log:
            self._rereads_log = False
            self.log.forget_changes()
        return self.find_snapshot(table).bounds(table, window)

    @contextmanager
    def open_later(self, table: SourceTable) -> Iterator[Snapshot]:
        if table.ref.name not in self.log.tables:
            with self.open_queries().open_later(table) as later:
                yield later
            return
        with ExitStack() as stack:
            yield CompositeSnapshot(self._open_jdbc, self.log, self._open_beside, stack, True)

    def open_queries(self) -> JdbcSnapshot:
        """Returns the snapshot for queries. The first call opens it."""
        with self._lock:
            if self._jdbc is None:
                self._jdbc = self._open_jdbc()
            return self._jdbc

    def _open_for(self, table: SourceTable) -> JdbcSnapshot:
        if table.ref.name not in self.log.tables:
            return self.open_queries()
        with self._lock:
            if self._beside is None:
                self._beside = self._stack.enter_context(self._open_beside())
            return self._beside

    def find_snapshot(self, table: SourceTable) -> Snapshot:
        return self.log if table.ref.name in self.log.tables else self.open_queries()
