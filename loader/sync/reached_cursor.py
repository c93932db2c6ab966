"""Finds the cursor that a read has reached if some of the counted rows have since vanished."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.rows.cursor import Cursor
from loader.rows.version_order import quote_name
from loader.rows.window import next_cursor
from loader.sync.plan_window import PlannedBatch


def find_reached_cursor(planned: PlannedBatch, rows: DataFrame) -> Cursor | None:
    """Returns the cursor to store if some of the counted rows are missing.

    This is the planned cursor or the highest cursor that was read, whichever is lower. A source
    without snapshots may have been emptied, and may later get rows below the planned cursor, which
    the next sync would miss. Only the source can order collated strings. If the cursor is one, the
    planned cursor is kept only if a row with exactly this cursor was read.
    """
    window, bounds, cursor = planned.window, planned.bounds, planned.state.cursor
    if window.cursor is None or window.high is not None or cursor is None:
        return cursor
    column = f.col(quote_name(window.cursor.name))
    is_at_cursor = column == f.lit(cursor.text) if window.cursor.collated else f.lit(False)
    [row] = rows.agg(
        f.max(column).cast("string").alias("highest"), f.max(is_at_cursor).alias("is_at_cursor")
    ).collect()
    if row["is_at_cursor"]:
        return cursor
    highest = None
    if row["highest"] is not None and not window.cursor.collated:
        highest = Cursor.parse(row["highest"], window.cursor.type)
        if highest.order >= cursor.order:
            return cursor
    return next_cursor(window.stored_cursor, replace(bounds, high=highest))
