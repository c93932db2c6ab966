"""A repair: appends rows that were read again, and tombstones, as one batch in a new generation.

The generation makes them the newest versions of their keys, regardless of cursors. The stored
cursor stays where it was: a repair does not change what the next sync has to read.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord
from loader.lake.raw_table import plan_drift
from loader.reconcile.comparison import GONE, key_names
from loader.rows.delta import DELETED, HASH, Stamp, row_hash, stamp_rows
from loader.rows.order import quote_name
from loader.rows.window import Bounds, Window
from loader.sync.engine import sync_locked_table
from loader.sync.plan_window import PlannedBatch
from loader.sync.recover import PriorState
from loader.sync.table_plan import TablePlan
from loader.sync.table_sync import TableSync

RECONCILE = "reconcile"
"""The mode of its ledger row."""

_ONE_FILE = 100_000


def repair(sync: TableSync, rows: DataFrame, gone: DataFrame, count: int) -> SyncRecord:
    """Appends what a comparison found, by the steps of a sync.

    The table's lock stays held.

    Args:
        rows: missed updates and missed rows, in the table's columns.
        gone: the keys of missed deletes.
        count: how many there are of both together.

    Returns the ledger row that it wrote.

    Raises:
        TableError: nothing was published.
    """

    def build_rows(stamp: Stamp) -> DataFrame:
        return _build_rows(sync.plan, rows, gone, count, stamp)

    def plan_repair(sync: TableSync, prior: PriorState) -> PlannedBatch:
        lake, plan = sync.lake, sync.plan
        return PlannedBatch(
            Window(),
            Bounds(count),
            plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy),
            mode=RECONCILE,
            state=replace(prior.state, batch=prior.next_batch),
            idle_state=prior.state,
            correction=build_rows,
        )

    done = sync_locked_table(sync, plan_repair)
    if done.batch is None:
        raise TableError(
            "the differences were gone before they could be appended",
            where=f"table {sync.plan.name}",
            remedy="Reconcile again",
        )
    return done


def _build_rows(
    plan: TablePlan, rows: DataFrame, gone: DataFrame, count: int, stamp: Stamp
) -> DataFrame:
    table = plan.table.schema
    names = [f.col(quote_name(name)) for name in table.names]
    full = rows.select(*names, f.lit(False).alias(GONE)).union(_tombstones(plan, gone))
    # In one partition: in a union, both sides would number their rows from the same start.
    full = full.coalesce(1) if count <= _ONE_FILE else full
    return (
        stamp_rows(full, stamp)
        .withColumn(HASH, row_hash(table))
        .withColumn(DELETED, f.col(DELETED) | f.col(GONE))
        .drop(GONE)
    )


def _tombstones(plan: TablePlan, gone: DataFrame) -> DataFrame:
    """Makes tombstones: rows that hold only their key.

    No values: what the source has deleted must not be written again. No cursor: a row that is
    created again could rank below its own tombstone.
    """
    keys = dict(zip(plan.key, key_names(plan), strict=True))
    return gone.select(
        *(
            (f.col(keys[column.name]) if column.name in keys else f.lit(None))
            .cast(column.dataType)
            .alias(column.name)
            for column in plan.table.schema.fields
        ),
        f.lit(True).alias(GONE),
    )
