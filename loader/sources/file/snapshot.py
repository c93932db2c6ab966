"""Reads a window of a table's files in the order of their modification times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.rows.cursor import Cursor, CursorType, choose_later, read_clock
from loader.rows.literal import cursor_literal
from loader.rows.version_order import SEQUENCE, quote_name
from loader.sources.file import listing as list_of
from loader.sources.file.json_precision import check_numbers
from loader.sources.file.lines import add_line_checks, check_line_lengths
from loader.sources.file.listing import (
    MODIFIED,
    PATH,
    find_loaded_files,
    find_moved_in,
    has_read_boundary,
)
from loader.sources.file.rows import number_rows, read_rows
from loader.sources.interface import Bounds, Snapshot, SourceTable, Window, parse_bound

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions


class FileSnapshot(Snapshot):
    """The current files. If a file is rewritten during the read, the next sync rereads it."""

    missing_means_deleted = False

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        cursor = window.cursor
        if cursor is None or cursor.name == MODIFIED:
            return self._bounds_of_files(table, window)
        rows = read_rows(self.spark, table, None).where(_is_in_window(table, window, window.high))
        column = f.col(quote_name(cursor.name))
        [row] = rows.agg(
            f.count(f.lit(1)).alias("rows"),
            f.count(column).alias("dated"),
            f.min(column).cast("string").alias("low"),
            f.max(column).cast("string").alias("high"),
        ).collect()
        clock = read_clock(cursor.type)
        high = parse_bound(row["high"], cursor.type, table, window)
        future = 0
        if high is not None and clock is not None and high.order > clock.order:
            data_type = table.schema[cursor.name].dataType
            future = rows.where(column > cursor_literal(clock, data_type)).count()
        return Bounds(
            rows=row["rows"],
            nulls=row["rows"] - row["dated"],
            low=parse_bound(row["low"], cursor.type, table, window),
            high=high,
            clock=clock,
            future=future,
        )

    def _bounds_of_files(self, table: SourceTable, window: Window) -> Bounds:
        """Returns the bounds of the files' times, without counting the rows in new files."""
        # The clock must be read before the files are listed.
        clock = read_clock(CursorType.TIMESTAMPTZ)
        assert clock is not None
        native: ReaderOptions = table.ref.native
        files = list_of.files(self.spark, native).localCheckpoint(eager=True)
        inside = files.where(list_of.is_in_window(window, window.high))
        if window.cursor is None:
            return Bounds(None if inside.take(1) else 0)
        beyond = has_read_boundary(files, native, window)
        unread = list_of.is_in_window(window, window.high, beyond)
        future = f.col(MODIFIED) > cursor_literal(clock, files.schema[MODIFIED].dataType)
        [row] = inside.agg(
            f.count_if(unread).alias("files"),
            f.min(MODIFIED).cast("string").alias("low"),
            f.max(MODIFIED).cast("string").alias("high"),
            f.count_if(future).alias("future"),
        ).collect()
        moved = find_moved_in(files, window)
        oldest = None
        if moved is not None:
            [[oldest]] = moved.agg(f.min(MODIFIED).cast("string")).collect()
        low, high, reach = (
            parse_bound(text, CursorType.TIMESTAMPTZ, table, window)
            for text in (row["low"], row["high"], oldest)
        )
        mark = None
        passed = clock if high is not None and high.order > clock.order else high
        before = choose_later(window.low, passed)
        if before is not None and window.high is None:
            mark = list_of.build_mark(files, table, window, before, clock)
        return Bounds(
            rows=None if row["files"] or reach else 0,
            low=low,
            high=high,
            clock=clock,
            future=row["future"],
            reach=reach,
            mark=mark,
            must_store_mark=mark != window.mark,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        names = [quote_name(name) for name in table.schema.names]
        by_time = window.cursor is None or window.cursor.name == MODIFIED
        end, native = window.end(bounds), table.ref.native
        files = list_of.files(spark, native)
        chosen = None
        if by_time:
            chosen = list_of.is_in_window(window, end, has_read_boundary(files, native, window))
            moved = find_moved_in(files, window) if bounds.reach is not None else None
            if moved is not None:
                chosen = chosen | f.col(PATH).isin([row[PATH] for row in moved.collect()])
            loaded = find_loaded_files(window, table)
            chosen = chosen if loaded is None else chosen & ~loaded
        check_line_lengths(spark, native, chosen, f"table {table.ref.name}")
        check_numbers(spark, table, chosen)
        rows = read_rows(spark, table, chosen)
        rows = rows if by_time else rows.where(_is_in_window(table, window, end))
        rows = number_rows(rows, files if chosen is None else files.where(chosen))
        return add_line_checks(rows.select(*names, SEQUENCE), spark, native, chosen)


def _is_in_window(table: SourceTable, window: Window, end: Cursor | None) -> Column:
    if window.cursor is None:
        return f.lit(True)
    column = f.col(quote_name(window.cursor.name))
    data_type = table.schema[window.cursor.name].dataType
    inside = column.isNotNull()
    if window.low is not None:
        inside = inside & (column >= cursor_literal(window.low, data_type))
    if end is not None:
        inside = inside & (column <= cursor_literal(end, data_type))
    return inside | column.isNull() if window.nulls else inside
