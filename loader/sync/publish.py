"""Stages a batch as an invisible snapshot and then makes it visible atomically."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from loader.errors import LoaderError, TableError
from loader.lake.commits import Commit
from loader.lake.raw_table import alter_table, create_raw_table, may_reach_staged
from loader.lake.receipt import property_of as receipt_property_of
from loader.lake.schema_evolution import conform
from loader.lake.source_schema import property_of
from loader.lake.staging import (
    count_staged_rows,
    discard_staged,
    publish_batch,
    read_staged,
    stage_batch,
)
from loader.spark.session import describe_jobs, plan_now
from loader.sync.counted_rows import check_row_count
from loader.sync.extract import Batch
from loader.sync.ownership import build_origin_property, record_origin, register_sharer
from loader.sync.receipts import write_receipt
from loader.sync.sync_context import SyncContext


def publish(sync: SyncContext, batch: Batch) -> tuple[Batch, Commit | None]:
    """Appends a batch, its state and its ledger row in one commit.

    Creates the raw table even if the batch has no rows, because models read the table.

    Returns:
        The batch as it was published, and its commit. The commit is None if the batch has no rows.

    Raises:
        TableError: if the raw table cannot represent the source's columns, if rows are missing, or
            if the run was stopped. In all these cases, no reader sees the batch.
    """
    plan, lake = sync.plan, sync.lake
    if batch.rows is None:
        _finish_without_rows(sync, batch)
        return batch, None
    sync.lease.confirm()
    sync.report_phase("appending")
    describe_jobs(lake.spark, plan.name)
    rows = _prepare_table(sync, batch, batch.rows)
    sync.report_step("prepared")
    staged = _stage(sync, batch, rows)
    rows_staged = count_staged_rows(lake, plan.lake_table, staged)
    try:
        check_row_count(plan, batch.expected_rows, rows_staged)
        if _misses_cursor(sync, batch, staged, rows_staged):
            batch, staged = _stage_with_lower_cursor(sync, batch, staged)
        batch.check_staged()
        sync.snapshot.check_unaltered(plan.table)
    except LoaderError:
        discard_staged(lake, plan.lake_table, staged)
        raise
    if not rows_staged:
        discard_staged(lake, plan.lake_table, staged)
        _finish_without_rows(sync, batch)
        return batch, None
    sync.report_step("staged")
    properties, batch = _add_receipt(sync, batch, staged)
    sync.watch.check_interruption(plan.name)
    sync.lease.confirm()
    if batch.drift.after is not None:
        properties[property_of(plan.policy.source)] = batch.drift.after.text
    published = publish_batch(lake, plan.lake_table, staged, properties)
    sync.report_step("published")
    if plan.accepts_other_origin:
        record_origin(plan, lake)
    return batch, published


def _stage(sync: SyncContext, batch: Batch, rows: DataFrame) -> int:
    facts = {"state": batch.state.to_json(), "sync": batch.record.to_dict()}
    return stage_batch(sync.lake, sync.plan.lake_table, rows, batch.state.batch, facts)


def _add_receipt(sync: SyncContext, batch: Batch, staged: int) -> tuple[dict[str, str], Batch]:
    """Returns the property that stores a staged batch's receipt, and the batch with the receipt."""
    key = sync.stores.signing_key
    if key is None:
        return {}, batch
    receipt = write_receipt(sync, batch, staged, key).envelope
    batch = replace(batch, record=replace(batch.record, receipt=receipt))
    return {receipt_property_of(sync.plan.source): receipt}, batch


def _misses_cursor(sync: SyncContext, batch: Batch, staged: int, rows_staged: int) -> bool:
    """Returns whether counted rows are missing and no staged row reaches the cursor to store.

    This is possible if the source has no snapshots: the rows with the highest cursors may have been
    updated or deleted since they were counted. Later, rows with lower cursors may be inserted,
    which the next sync would miss.
    """
    plan, cursor, counted = sync.plan, batch.state.cursor, batch.counted_rows
    if counted is None or not 0 < rows_staged < counted or cursor is None or plan.cursor is None:
        return False
    return not may_reach_staged(
        sync.lake, plan.lake_table, plan.cursor.name, cursor, staged, batch.state.batch
    )


def _stage_with_lower_cursor(sync: SyncContext, batch: Batch, staged: int) -> tuple[Batch, int]:
    """Stages a batch again, with the cursor that its rows have reached."""
    lake, table = sync.lake, sync.plan.lake_table
    rows = read_staged(lake, table, staged, batch.state.batch)
    cursor = batch.find_cursor(rows)
    batch = replace(
        batch,
        state=replace(batch.state, cursor=cursor),
        record=replace(batch.record, cursor_high=cursor.text if cursor else None),
    )
    again = _stage(sync, batch, rows)
    discard_staged(lake, table, staged)
    return batch, again


def _finish_without_rows(sync: SyncContext, batch: Batch) -> None:
    """Creates the raw table if it is missing, and stores which columns the spec excludes."""
    plan, lake, drift = sync.plan, sync.lake, batch.drift
    ensure_raw_table(sync, batch.state.batch)
    if drift.raw is None or drift.idle.excluded == drift.before.excluded or not plan.key:
        # If the table has no key, the next rows after a change of columns start a new generation.
        # Until those rows are stored, the change must not be stored either.
        return
    sync.lease.confirm()
    lake.set_properties(plan.lake_table, {property_of(plan.policy.source): drift.idle.text})
    if drift.idle_notes:
        sync.warn(f"schema: {'; '.join(drift.idle_notes)}")


def _prepare_table(sync: SyncContext, batch: Batch, rows: DataFrame) -> DataFrame:
    plan, lake, drift = sync.plan, sync.lake, batch.drift
    rows = conform(rows, drift.mappings, f"table {plan.name}")
    columns = lake.schema_of(plan.lake_table, fresh=True) if lake.exists(plan.lake_table) else None
    if columns != drift.raw:
        raise TableError(
            f"the raw table {lake.schema}.{plan.lake_table} was altered, dropped or created while "
            "the source was read",
            where=f"table {plan.name}",
            remedy="Nothing was published, and the cursor has not moved; run again",
        )
    if columns is None:
        ensure_raw_table(sync, batch.state.batch)
        return rows
    rows = plan_now(rows) if drift.alterations else rows
    alter_table(lake, plan.lake_table, drift, plan.policy.source)
    if batch.record.schema_changes:
        sync.warn(f"schema: {batch.record.schema_changes}")
    return rows


def ensure_raw_table(sync: SyncContext, batch: int) -> None:
    """Creates the raw table if it is missing. Models read it even if the source has no rows.

    Args:
        batch: the number of the table's first batch.
    """
    plan, lake = sync.plan, sync.lake
    if lake.exists(plan.lake_table):
        return
    cursor = plan.cursor.name if plan.cursor else None
    create_raw_table(
        lake,
        plan.lake_table,
        plan.table.schema,
        cursor,
        batch,
        build_origin_property(plan, {}),
        plan.table.excluded,
    )
    register_sharer(plan, lake)
