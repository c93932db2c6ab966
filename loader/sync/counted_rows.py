"""Compares the rows that were read with the rows that the source has counted."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.rows.cursor import Cursor
from loader.rows.version_order import quote_name
from loader.rows.window import next_cursor
from loader.sync.plan_window import PlannedBatch
from loader.sync.table_plan import TablePlan


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


def check_row_count(plan: TablePlan, expected_rows: int | None, read: int) -> None:
    """Raises a TableError if the number of rows read differs from the source's count.

    If they differ, the table was changed by DDL that is not MVCC-safe.

    Args:
        expected_rows: the number of rows that the source counted; None if the number of rows read
            need not match.
    """
    if expected_rows is None or read == expected_rows:
        return
    raise TableError(
        f"{read} rows were read, but {expected_rows} were counted in the same snapshot: the table "
        "was changed during the run by DDL that is not MVCC-safe (TRUNCATE, ALTER, ATTACH)",
        where=f"table {plan.name}",
        remedy="Nothing was published, and the cursor has not moved; run again",
    )
