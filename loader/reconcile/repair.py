"""A repair: appends rows that were read again, and tombstones, as one batch in a new generation.

The generation makes them the newest versions of their keys, regardless of cursors. The stored
cursor stays where it was: a repair does not change what the next sync has to read.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord, now
from loader.reconcile.comparison import GONE, key_names
from loader.rows.delta import DELETED, HASH, Stamp, row_hash, stamp_rows
from loader.rows.order import quote_name
from loader.sync.attempt import TableSync
from loader.sync.batch import Batch, CommitMetadata
from loader.sync.plan import Plan
from loader.sync.protocol import append, finish
from loader.sync.recovery import PriorState, recover

RECONCILE = "reconcile"
"""The mode of its ledger row."""

_ONE_FILE = 100_000


def repair(attempt: TableSync, rows: DataFrame, gone: DataFrame, count: int) -> SyncRecord:
    """Appends what a comparison found, by the steps of a sync: recover, append, record.

    The table's lock stays held.

    Args:
        rows: missed updates and missed rows, in the table's columns.
        gone: the keys of missed deletes.
        count: how many there are of both together.

    Returns the ledger row that it wrote.

    Raises:
        TableError: nothing was published.
    """
    known = recover(attempt)
    intent, commit = append(attempt, build_repair(attempt, known, rows, gone, count))
    if commit is None:
        raise TableError(
            "the differences were gone before they could be appended",
            where=f"table {attempt.plan.name}",
            remedy="Reconcile again",
        )
    return finish(attempt, known, intent, commit)


def build_repair(
    attempt: TableSync, known: PriorState, rows: DataFrame, gone: DataFrame, count: int
) -> Batch:
    """Builds the batch; its state keeps the stored cursor and mark."""
    plan = attempt.plan
    after = replace(known.state, batch=known.next_batch)
    intent = CommitMetadata(attempt.record(after, RECONCILE), after).overruling()
    record, after = intent.record, intent.after
    began = record.started_at or now()
    stamp = Stamp(plan.source, began, after.batch, after.generation, plan.deleted)
    table = plan.table.schema
    names = [f.col(quote_name(name)) for name in table.names]
    full = rows.select(*names, f.lit(False).alias(GONE)).union(_tombstones(plan, gone))
    # In one partition: in a union, both sides would number their rows from the same start.
    full = full.coalesce(1) if count <= _ONE_FILE else full
    stamped_rows = (
        stamp_rows(full, stamp)
        .withColumn(HASH, row_hash(table))
        .withColumn(DELETED, f.col(DELETED) | f.col(GONE))
        .drop(GONE)
    )
    return Batch(stamped_rows, intent)


def _tombstones(plan: Plan, gone: DataFrame) -> DataFrame:
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
