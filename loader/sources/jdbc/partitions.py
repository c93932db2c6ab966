"""Builds SQL conditions that split a window into ranges for parallel readers.

A window is split into ranges of the cursor. Each Spark task then writes a file with a narrow range
of cursors, so that later syncs can prune files by their statistics. The window is first cut into
slices of equal width. One scan then counts the rows in each slice, because a few slices may contain
most of the rows, for example after a bulk load.

A complete read of a PostgreSQL table is split into ranges of pages instead, which needs no count. A
snapshot sees one version of each row, on one page, so each row is read exactly once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Protocol

from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.sources.interface import Bounds, SourceTable, Window, parse_bound
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.metadata import NativeColumns
from loader.spark.error_translation import DatabaseError

# If a slice contained a larger fraction of the rows, a single reader would read nearly all of them.
_SKEWED = 0.8


class DividedSnapshot(Protocol):
    """The snapshot methods that :class:`Ranges` uses."""

    source: Database
    dialect: Dialect

    def connect(self, table: SourceTable) -> AbstractContextManager[Connection]:
        """Opens a connection that reads the snapshot."""

    def is_steady(self, table: SourceTable) -> bool:
        """Returns whether all calls for a table see the same version of its rows."""

    def column(self, table: SourceTable, name: str) -> str:
        """Returns SQL for the stored value of a column."""

    def alias(self, native: NativeColumns, index: int) -> str:
        """Returns the quoted name of a column in the subquery that Spark reads."""

    def where(self, table: SourceTable, window: Window, bounds: Bounds | None = None) -> str:
        """Returns a WHERE clause for the rows of a window."""


@dataclass(frozen=True)
class RangeSplit:
    """The ranges into which a window is split.

    Attributes:
        conditions: a condition for each reader; None if one reader reads all rows.
        column: SQL for an additional column that the conditions use; empty if they use none.
    """

    conditions: list[str] | None = None
    column: str = ""


@dataclass(frozen=True)
class Ranges:
    """Divides the rows of a window into ranges for parallel readers."""

    snapshot: DividedSnapshot
    table: SourceTable
    window: Window
    bounds: Bounds

    def divide(self, spark: SparkSession) -> RangeSplit:
        """Returns one range per core, or fewer ranges if there are few rows."""
        source, literal = self.snapshot.source, self.snapshot.dialect.literal
        options = source.read_options(self.table.ref)
        cores = spark.sparkContext.defaultParallelism
        count = choose_partition_count(self.bounds.rows or 0, cores, options.num_partitions)
        if count < 2:
            return RangeSplit()
        pages = self._cut_pages(count)
        if pages:
            return RangeSplit(pages, ROW_POSITION_COLUMN)
        for name in self._list_columns():
            cuts = self._find_cuts(name, count)
            if cuts:
                index = self.table.schema.names.index(name)
                column = self.snapshot.alias(self.table.ref.native, index)
                marks = [literal(cut) for cut in cuts]
                conditions = [
                    f"{column} < {marks[0]} or {column} is null",
                    *(f"{column} >= {low} and {column} < {high}" for low, high in pairwise(marks)),
                    f"{column} >= {marks[-1]}",
                ]
                return RangeSplit(conditions)
        return RangeSplit()

    def _cut_pages(self, count: int) -> list[str]:
        """Returns conditions that select ranges of pages; an empty list if pages cannot be used."""
        snapshot, table = self.snapshot, self.table
        if self.window.low is not None or not snapshot.is_steady(table):
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
                return cut_pages(connection, snapshot.dialect, relation, cursor, count)
        except DatabaseError as error:
            if error.is_locked_out:
                raise
            return []  # a product that only uses PostgreSQL's protocol

    def _list_columns(self) -> list[str]:
        """Returns the columns that can divide the rows into ranges, in order of preference."""
        table, cursor = self.table, self.window.cursor
        configured = self.snapshot.source.partition_column(table)
        if configured is not None:
            return [configured]
        if cursor is None:
            return list(table.primary_key)
        if self.window.end(self.bounds) is None and not self.snapshot.is_steady(table):
            # Without a shared snapshot, a row whose cursor changes during the read could move to
            # another range and be missed. Keys are assumed not to change.
            return list(table.primary_key)
        return [cursor.name, *table.primary_key]

    def _find_cuts(self, name: str, count: int) -> list[Cursor]:
        """Returns the boundaries of a column's ranges; none if it cannot be split evenly."""
        snapshot, table, window, bounds = self.snapshot, self.table, self.window, self.bounds
        type_ = CursorType.of(table.schema[name].dataType)
        # If the spec sets the column's type, the database and the lake may order its values
        # differently.
        is_converted = table.schema.names.index(name) in table.ref.native.as_texts
        if type_ is None or type_ is CursorType.STRING or is_converted:
            return []
        column = snapshot.column(table, name)
        rows = f"{snapshot.source.rows(table.ref.native)}{snapshot.where(table, window, bounds)}"
        with snapshot.connect(table) as connection:
            if window.cursor is None or name != window.cursor.name:
                [ends] = connection.rows(f"select min({column}), max({column}) from {rows}")
                low, high = (parse_bound(end, type_, table, window) for end in ends)
                bounds = Bounds(bounds.rows, low=low, high=high)
            edges = cut_slices(bounds)
            if not edges:
                return []
            sums = ", ".join(
                f"sum(case when {column} < {snapshot.dialect.literal(edge)} then 1 else 0 end)"
                for edge in edges
            )
            [counts] = connection.rows(f"select {sums} from {rows}")
        below = [*(int(n or 0) for n in counts), bounds.rows or 0]
        return balance_cuts(edges, below, count) if find_largest_share(below) <= _SKEWED else []


ROWS_PER_PARTITION = 50_000
SLICES = 32


def choose_partition_count(rows: int, parallelism: int, configured: int | None) -> int:
    """Returns the number of ranges: by default one per 50,000 rows, but at most one per core."""
    if configured is not None:
        return configured
    return max(1, min(parallelism, rows // ROWS_PER_PARTITION))


def cut_slices(bounds: Bounds, count: int = SLICES) -> list[Cursor]:
    """Returns the boundaries between `count` slices of equal width.

    Returns an empty list if the bounds are equal or are strings.
    """
    low, high = bounds.low, bounds.high
    if low is None or high is None or low.type is CursorType.STRING or not low.order < high.order:
        return []
    cuts: list[Cursor] = []
    for index in range(1, count):
        cut = _interpolate(low, high, index, count)
        if cut.order > (cuts[-1].order if cuts else low.order) and cut.order <= high.order:
            cuts.append(cut)
    return cuts


def balance_cuts(cuts: Sequence[Cursor], counts: Sequence[int], partitions: int) -> list[Cursor]:
    """Chooses the boundaries that split the rows most evenly.

    Args:
        cuts: the possible boundaries, in ascending order.
        counts: the number of rows below each boundary, followed by the total number of rows.
    """
    total = counts[-1]
    chosen: list[Cursor] = []
    for part in range(1, partitions):
        target = total * part / partitions
        index = min(range(len(cuts)), key=lambda i: abs(counts[i] - target), default=None)
        if index is not None and (not chosen or cuts[index].order > chosen[-1].order):
            chosen.append(cuts[index])
    return chosen


def find_largest_share(below: Sequence[int]) -> float:
    """Returns the fraction of the rows that is in the largest slice.

    Args:
        below: the number of rows below each boundary, followed by the total number of rows.
    """
    total = below[-1]
    widths = [b - a for a, b in zip([0, *below], below, strict=False)]
    return max(widths) / total if total else 0.0


def _interpolate(low: Cursor, high: Cursor, index: int, count: int) -> Cursor:
    start, end = low.order, high.order
    if low.type is CursorType.INTEGER:
        return Cursor(str(start + (end - start) * index // count), low.type)
    if low.type is CursorType.DECIMAL:
        return Cursor.parse(str(start + (end - start) * Decimal(index) / count), low.type)
    if low.type is CursorType.DOUBLE:
        return Cursor.parse(repr(start + (end - start) * index / count), low.type)
    if low.type is CursorType.DATE:
        return Cursor((start + (end - start) * index // count).isoformat(), low.type)
    moment: dt.datetime = start + (end - start) * index / count
    return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), low.type)


ROW_POSITION = "strandline_ctid"
"""The column of the subquery that contains a row's physical position (page and index)."""

ROW_POSITION_COLUMN = f"ctid as {ROW_POSITION}"

_ORDERED = 0.95
"""The minimum correlation at which a table counts as stored in cursor order."""


def cut_pages(
    connection: Connection, dialect: Dialect, relation: str, cursor: str | None, count: int
) -> list[str]:
    """Returns conditions on :data:`ROW_POSITION` for `count` ranges of pages, or an empty list.

    The list is empty for partitioned tables, for table storage that has no pages, and for
    PostgreSQL before version 14, which scans the whole table for each range. It is also empty if
    the table is not stored in cursor order, because later syncs could not use the cursor to prune
    the files that would be written.

    Raises:
        DatabaseError: if the server uses PostgreSQL's protocol but has no pages.
    """
    name = dialect.text(relation)
    statistics = connection.rows(
        f"""
        select
            pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int,
            (
                select s.correlation
                from pg_catalog.pg_stats as s
                where s.schemaname = n.nspname
                    and s.tablename = c.relname
                    and s.attname = {dialect.text(cursor or "")}
            )
        from pg_catalog.pg_class as c
        join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
        join pg_catalog.pg_am as a on a.oid = c.relam
        where c.oid = {name}::regclass
            and c.relkind = 'r'
            and a.amname = 'heap'
            and not exists (select from pg_catalog.pg_inherits where inhparent = c.oid)
            and current_setting('server_version_num')::int >= 140000
        """
    )
    if not statistics:
        return []
    connection.rows(f"select ctid::text from {relation} limit 1")
    [(pages, correlation)] = statistics
    if cursor is not None and abs(float(correlation or 0)) < _ORDERED:
        return []
    cuts = sorted({int(pages or 0) * part // count for part in range(1, count)} - {0})
    marks = [f"{ROW_POSITION} >= '({cut},0)'::tid" for cut in cuts]
    ends = [f"{ROW_POSITION} < '({cut},0)'::tid" for cut in cuts]
    if not cuts:
        return []
    return [
        ends[0],
        *(f"{low} and {high}" for low, high in zip(marks, ends[1:], strict=False)),
        marks[-1],
    ]
