"""Appends the differences that a comparison found to the raw table, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import RECONCILE, SyncRecord
from loader.lake.raw_table import plan_drift
from loader.reconcile.comparison import KEY_ONLY, KIND, RAW_CURSOR, UPDATE, key_names
from loader.reconcile.differences import Differences
from loader.reconcile.history import VerifiedBucket
from loader.rows.bookkeeping import DELETED, HASH, Stamp, stamp_rows
from loader.rows.cursor import Cursor
from loader.rows.literal import cursor_literal
from loader.rows.row_hash import row_hash
from loader.rows.version_order import quote_name
from loader.rows.window import Bounds, Window
from loader.sync.deletions import are_too_many
from loader.sync.mask_changes import describe_masks
from loader.sync.plan_window import LostRows, PlannedBatch, has_plain_cursor
from loader.sync.protocol import sync_locked_table
from loader.sync.recover import PriorState
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import TablePlan

_MAX_ROWS_PER_FILE = 100_000


def repair_differences(
    sync: SyncContext,
    verified: list[VerifiedBucket],
    differences: Differences,
    appends_deletes: bool = True,
) -> tuple[list[VerifiedBucket], SyncRecord | None]:
    """Appends the differences to the raw table.

    Returns the buckets, with the batch number if their differences were appended, and the ledger
    row of the batch, or None if there was nothing to append.

    Args:
        appends_deletes: whether to append missed deletes. Missed updates and rows are always
            appended, because these rows exist in the source.
    """
    held = 0 if appends_deletes else sum(bucket.missed_deletes for bucket in verified)
    missed = sum(bucket.all_missed for bucket in verified) - held
    if not missed:
        return verified, None
    sync.report_phase("repairing", missed)
    deleted = differences.deleted if appends_deletes else differences.deleted.limit(0)
    record = append_differences(sync, differences.rows, deleted, missed)

    def flag(bucket: VerifiedBucket) -> VerifiedBucket:
        if not appends_deletes and bucket.missed_deletes:
            has_rows = bucket.all_missed > bucket.missed_deletes
            return replace(bucket, batch=record.batch) if has_rows else bucket
        return replace(bucket, repaired=True, batch=record.batch) if bucket.all_missed else bucket

    return [flag(bucket) for bucket in verified], record


def has_too_many_deletes(verified: Sequence[VerifiedBucket]) -> bool:
    """Returns whether more than a tenth of the rows, or all rows, are missing from the source."""
    rows = sum(bucket.rows_snapshot for bucket in verified)
    deletes = sum(bucket.missed_deletes for bucket in verified)
    return are_too_many(deletes, rows)


def append_differences(
    sync: SyncContext, rows: DataFrame, deleted: DataFrame, count: int
) -> SyncRecord:
    """Appends differences to the raw table, in the same steps as a sync. Returns the ledger row.

    Does not release the table's lock.

    Args:
        rows: missed updates and missed rows, with the table's columns, KIND and RAW_CURSOR.
        deleted: the keys of missed deletes.
    """

    def plan_repair(sync: SyncContext, prior: PriorState) -> PlannedBatch:
        lake, plan = sync.lake, sync.plan
        drift = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
        return PlannedBatch(
            Window(),
            Bounds(count),
            drift.defer_added(),
            mode=RECONCILE,
            state=replace(
                prior.state,
                batch=prior.next_batch,
                selection=prior.partial_selection,
                masks=describe_masks(plan, prior.state.masks, drift.added),
            ),
            idle_state=prior.state,
            correction=partial(_build_rows, sync.plan, rows, deleted, count),
            corrected=_count_lost_rows(plan, prior.state.cursor, rows),
        )

    record = sync_locked_table(sync, plan_repair)
    if record.batch is None:
        raise TableError(
            "the differences disappeared before they could be appended",
            where=f"table {sync.plan.name}",
            remedy="Run `loader reconcile` again",
        )
    return record


def _count_lost_rows(plan: TablePlan, stored: Cursor | None, rows: DataFrame) -> LostRows:
    """Counts the rows that a simple query on the stored cursor would have missed."""
    cursor = plan.cursor
    if cursor is None or stored is None or not has_plain_cursor(plan, cursor, stored):
        return LostRows()
    value = f.col(quote_name(cursor.name))
    bound = cursor_literal(stored, rows.schema[cursor.name].dataType)
    is_unmoved = (f.col(KIND) == UPDATE) & value.eqNullSafe(f.col(RAW_CURSOR))
    [row] = rows.agg(
        f.count_if(value < bound).alias("below"),
        f.count_if(value == bound).alias("at"),
        f.count_if(is_unmoved & (value <= bound)).alias("unmoved"),
    ).collect()
    return LostRows(row["below"], row["at"], row["unmoved"])


def _build_rows(
    plan: TablePlan, rows: DataFrame, deleted: DataFrame, count: int, stamp: Stamp
) -> DataFrame:
    table = plan.table.schema
    names = [f.col(quote_name(name)) for name in table.names]
    all_rows = rows.select(*names, f.lit(False).alias(KEY_ONLY))
    all_rows = all_rows.union(_build_tombstones(plan, deleted))
    # A single partition, so that rows from the two sides of the union get different `_cq_seq`
    # values.
    all_rows = all_rows.coalesce(1) if count <= _MAX_ROWS_PER_FILE else all_rows
    return (
        stamp_rows(all_rows, stamp)
        .withColumn(HASH, row_hash(table))
        .withColumn(DELETED, f.col(DELETED) | f.col(KEY_ONLY))
        .drop(KEY_ONLY)
    )


def _build_tombstones(plan: TablePlan, deleted: DataFrame) -> DataFrame:
    """Returns tombstones. All columns except the key are null, so no deleted data is written again.

    The cursor is also null, so that a row that is inserted again is newer than its tombstone.
    """
    keys = dict(zip(plan.key, key_names(plan), strict=True))
    return deleted.select(
        *(
            (f.col(keys[column.name]) if column.name in keys else f.lit(None))
            .cast(column.dataType)
            .alias(column.name)
            for column in plan.table.schema.fields
        ),
        f.lit(True).alias(KEY_ONLY),
    )
