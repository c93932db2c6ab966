"""The snapshot of a run whose tables are read by the log, or by queries, or some of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from loader.rows.cursor import Cursor
from loader.rows.window import Bounds, Window
from loader.sources import Digest, Snapshot, SourceTable
from loader.sources.contents import Contents
from loader.sources.jdbc.cdc.log import Log
from loader.sources.jdbc.snapshot import JdbcSnapshot


class FollowedSnapshot(Snapshot):
    """Reads tables that follow the log from the log, and all others by queries.

    Args:
        take: takes a snapshot of the database.
        log: the log of the tables that follow it.
    """

    def __init__(self, take: Callable[[], JdbcSnapshot], log: Log) -> None:
        self.log = log
        self._take = take
        self._alone = threading.Lock()
        self._taken: JdbcSnapshot | None = None

    def open(self) -> JdbcSnapshot:
        """Returns the snapshot for queries; takes it on the first call."""
        with self._alone:
            if self._taken is None:
                self._taken = self._take()
            return self._taken

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        return self._of(table).bounds(table, window)

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        return self._of(table).read(spark, table, window, bounds)

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        return self._of(table).preview(table, window)

    def more(self, table: SourceTable) -> bool:
        return self._of(table).more(table)

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        self._of(table).confirm_stored(table, mark)

    def remembers(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self.log.remembers(marks)

    def lacking(self, table: SourceTable) -> list[str]:
        return self._of(table).lacking(table)

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int | None:
        return self._of(table).count_values(table, columns, window, bounds)

    def check_unaltered(self, table: SourceTable) -> None:
        self._of(table).check_unaltered(table)

    def steady(self, table: SourceTable) -> bool:
        return self._of(table).steady(table)

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        return self._of(table).digest(table, window, rows, until)

    def weight(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        return self._of(table).weight(table, window, bounds)

    def living(self, spark: SparkSession, table: SourceTable, keys: DataFrame) -> DataFrame:
        return self.open().living(spark, table, keys)

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        return self.open().contents(spark, table, key, window, unique)

    def _of(self, table: SourceTable) -> Snapshot:
        return self.log if table.ref.name in self.log.tables else self.open()
