"""The plug-in of `jdbc` for PostgreSQL: some tables are read by the log, the others by queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

from loader.cdc.debezium.engine import build_missing_error, is_installed
from loader.cdc.log_snapshot import LogSnapshot, open_log
from loader.cdc.requirements import list_setup_sql
from loader.cdc.slot import slot_name
from loader.sources.interface import ExclusiveResource, Snapshot, SourceTable
from loader.sources.jdbc.interface import (
    Database,
    JdbcOptions,
    JdbcSnapshot,
    LogCapture,
    OpenQueries,
)

Method = TypeVar("Method", bound=Callable[..., Any])


class PostgresCapture(LogCapture):
    """Reads the changes of PostgreSQL's tables with Debezium."""

    def check_installed(self, where: str) -> None:
        if not is_installed():
            raise build_missing_error(where)

    def list_setup_sql(self, source: str, options: JdbcOptions, tables: Sequence[str]) -> list[str]:
        return list_setup_sql(slot_name(source, options.slot), options.user or "<role>", tables)

    def find_single_reader(self, source: str, options: JdbcOptions) -> ExclusiveResource:
        slot = slot_name(source, options.slot)
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
            # Tables that follow the log are not locked. A session that alters one would wait for
            # the run, and the run for Debezium, which waits for them.
            snapshot = CompositeSnapshot(lambda: opened.enter_context(open_queries(queried)), log)
            if queried:
                snapshot.open_queries()
            yield snapshot


def _pass_on(method: Method, by_queries: bool = False) -> Method:
    """Returns a method that calls the same method of the snapshot that reads the call's table.

    Args:
        by_queries: queries answer it, of all tables.
    """

    def call(self: CompositeSnapshot, *args: Any, **named: Any) -> Any:
        [table] = [one for one in (*args, *named.values()) if isinstance(one, SourceTable)]
        found = self.open_queries() if by_queries else self.find_snapshot(table)
        return getattr(found, method.__name__)(*args, **named)

    return cast(Method, call)


class CompositeSnapshot(Snapshot):
    """Reads tables that follow the log from the log, and all others by queries.

    Args:
        take: takes a snapshot of the database for queries.
        log: the log of the tables that follow it.
    """

    def __init__(self, take: Callable[[], JdbcSnapshot], log: LogSnapshot) -> None:
        self.log = log
        self._take = take
        self._lock = threading.Lock()
        self._taken: JdbcSnapshot | None = None

    bounds = _pass_on(Snapshot.bounds)
    read = _pass_on(Snapshot.read)
    preview = _pass_on(Snapshot.preview)
    has_more = _pass_on(Snapshot.has_more)
    confirm_stored = _pass_on(Snapshot.confirm_stored)
    list_unmet_requirements = _pass_on(Snapshot.list_unmet_requirements)
    count_values = _pass_on(Snapshot.count_values)
    check_unaltered = _pass_on(Snapshot.check_unaltered)
    is_steady = _pass_on(Snapshot.is_steady)
    digest = _pass_on(Snapshot.digest)
    estimate_bytes = _pass_on(Snapshot.estimate_bytes)
    read_current_rows = _pass_on(Snapshot.read_current_rows, by_queries=True)
    contents = _pass_on(Snapshot.contents, by_queries=True)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self.log.use_marks(marks)

    def open_queries(self) -> JdbcSnapshot:
        """Returns the snapshot for queries; takes it on the first call."""
        with self._lock:
            if self._taken is None:
                self._taken = self._take()
            return self._taken

    def find_snapshot(self, table: SourceTable) -> Snapshot:
        """Returns the snapshot that reads a table."""
        return self.log if table.ref.name in self.log.tables else self.open_queries()
