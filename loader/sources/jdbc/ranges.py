"""Splits a window into ranges of a column, one for each reader, as conditions in SQL."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.sources import Bounds, SourceTable, Window, edge
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.partitions import balance_cuts, largest_share, partition_count, slices
from loader.sources.jdbc.postgresql.pages import COLUMN, page_cuts
from loader.sources.jdbc.table_metadata import NativeColumns
from loader.spark.database_errors import DatabaseError

# If one slice has a larger share of the rows, one reader would get nearly all of them.
_SKEWED = 0.8


class Divided(Protocol):
    """The parts of a database's snapshot that the ranges use."""

    source: Database
    dialect: Dialect

    def connect(self, table: SourceTable) -> AbstractContextManager[Connection]:
        """Opens a connection that sees the snapshot."""

    def steady(self, table: SourceTable) -> bool:
        """Returns whether all calls for a table see it at the same moment."""

    def column(self, table: SourceTable, name: str) -> str:
        """Returns SQL for a column, as the database has it."""

    def alias(self, native: NativeColumns, index: int) -> str:
        """Returns a column's name in the subquery that Spark reads."""

    def where(self, table: SourceTable, window: Window, bounds: Bounds | None = None) -> str:
        """Returns a WHERE clause for the rows of a window."""


@dataclass(frozen=True)
class Division:
    """The division of one window among readers.

    Attributes:
        conditions: one for each reader; None if one reader reads all rows.
        column: SQL for a further column that the conditions are about; empty if there is none.
    """

    conditions: list[str] | None = None
    column: str = ""


@dataclass(frozen=True)
class Ranges:
    """Divides the rows of a window among readers.

    Attributes:
        snapshot: the snapshot that they read.
        window, bounds: the rows that they read.
    """

    snapshot: Divided
    table: SourceTable
    window: Window
    bounds: Bounds

    def division(self, spark: SparkSession) -> Division:
        """Divides the rows: among one reader for each core, unless there are few."""
        source, literal = self.snapshot.source, self.snapshot.dialect.literal
        options = source.read_options(self.table.ref)
        cores = spark.sparkContext.defaultParallelism
        count = partition_count(self.bounds.rows or 0, cores, options.num_partitions)
        if count < 2:
            return Division()
        pages = self._pages(count)
        if pages:
            return Division(pages, COLUMN)
        for name in self._columns():
            cuts = self._cuts(name, count)
            if cuts:
                index = self.table.schema.names.index(name)
                column = self.snapshot.alias(self.table.ref.native, index)
                marks = [literal(cut) for cut in cuts]
                conditions = [
                    f"{column} < {marks[0]} or {column} is null",
                    *(f"{column} >= {low} and {column} < {high}" for low, high in pairwise(marks)),
                    f"{column} >= {marks[-1]}",
                ]
                return Division(conditions)
        return Division()

    def _pages(self, count: int) -> list[str]:
        """Returns conditions for PostgreSQL's pages, if a whole table is read and that is best."""
        snapshot, table = self.snapshot, self.table
        if self.window.low is not None or not snapshot.steady(table):
            return []
        if snapshot.source.partition_column(table) is not None:
            return []
        cursor = None
        if self.window.cursor is not None:
            index = table.schema.names.index(self.window.cursor.name)
            cursor = table.ref.native.columns[index]
        relation = snapshot.source.relation(table.ref.native)
        try:
            with snapshot.connect(table) as connection:
                return page_cuts(connection, snapshot.dialect, relation, cursor, count)
        except DatabaseError as error:
            if error.is_locked_out:
                raise
            return []  # it speaks PostgreSQL's protocol, but stores rows in another way

    def _columns(self) -> list[str]:
        """Returns the columns to cut by, best first."""
        table, cursor = self.table, self.window.cursor
        configured = self.snapshot.source.partition_column(table)
        if configured is not None:
            return [configured]
        if cursor is None:
            return list(table.primary_key)
        if self.window.end(self.bounds) is None and not self.snapshot.steady(table):
            # This reads everything, without an upper bound. If a row's cursor moved from one
            # range to another during the read, the row could be missed. Keys do not move.
            return list(table.primary_key)
        return [cursor.name, *table.primary_key]

    def _cuts(self, name: str, count: int) -> list[Cursor]:
        """Returns a column's values between the ranges; empty if it does not divide rows evenly."""
        snapshot, table, window, bounds = self.snapshot, self.table, self.window, self.bounds
        type_ = CursorType.of(table.schema[name].dataType)
        # The database has another type for a column to which the spec gives one.
        own = table.schema.names.index(name) not in table.ref.native.as_texts
        if type_ is None or type_ is CursorType.STRING or not own:
            return []
        column = snapshot.column(table, name)
        rows = (
            f"{snapshot.source.relation(table.ref.native)}{snapshot.where(table, window, bounds)}"
        )
        with snapshot.connect(table) as connection:
            if window.cursor is None or name != window.cursor.name:
                [ends] = connection.rows(f"select min({column}), max({column}) from {rows}")
                low, high = (edge(end, type_, table, window) for end in ends)
                bounds = Bounds(bounds.rows, low=low, high=high)
            edges = slices(bounds)
            if not edges:
                return []
            sums = ", ".join(
                f"sum(case when {column} < {snapshot.dialect.literal(edge)} then 1 else 0 end)"
                for edge in edges
            )
            [counts] = connection.rows(f"select {sums} from {rows}")
        below = [*(int(n or 0) for n in counts), bounds.rows or 0]
        return balance_cuts(edges, below, count) if largest_share(below) <= _SKEWED else []
