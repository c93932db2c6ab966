"""A repair: rows read again and tombstones, as one batch in a generation of its own.

The generation makes them the newest versions of their keys, whatever the cursors say. The stored
cursor stays where it was: a repair says nothing of what the next sync has to read.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.lease import Lease
from loader.lake.ledger import SyncRecord, now
from loader.reconcile.comparison import GONE, key_names
from loader.rows.delta import DELETED, HASH, Stamp, row_hash, stamped
from loader.rows.order import quoted
from loader.rows.window import Bounds
from loader.sync.batch import Batch
from loader.sync.plan import Plan
from loader.sync.protocol import append, finish
from loader.sync.recovery import Known, Stores, recover
from loader.sync.watch import Watch

RECONCILE = "reconcile"
"""The mode of its ledger row."""

_ONE_FILE = 100_000


def repair(
    plan: Plan,
    held: Lease,
    stores: Stores,
    watch: Watch,
    run_id: str,
    rows: DataFrame,
    gone: DataFrame,
    count: int,
) -> SyncRecord:
    """Appends what a comparison found, by the steps of a sync: recover, append, record.

    Args:
        held: the table's lock; it stays held.
        rows: the rows of missed updates and missed rows, in the table's columns.
        gone: the keys of missed deletes.
        count: how many both are.

    Returns the ledger row that it wrote.

    Raises:
        TableError: nothing was published.
    """
    known = recover(plan, stores, watch, run_id)
    batch = intended(plan, known, run_id, rows, gone, count).overruling()
    commit = append(plan, stores.lake, batch, held, watch)
    if commit is None:
        raise TableError(
            "the differences were gone before they could be appended",
            where=f"table {plan.name}",
            remedy="Reconcile again",
        )
    return finish(plan, stores, known, batch.record, batch.after, Bounds(count), commit, watch)


def intended(
    plan: Plan, known: Known, run_id: str, rows: DataFrame, gone: DataFrame, count: int
) -> Batch:
    """The batch with its ledger row and state: cursor and mark as they were stored."""
    after = replace(known.state, batch=known.next_batch)
    record = SyncRecord(
        run_id=run_id,
        source_name=plan.source,
        table_name=plan.lake_table,
        batch=after.batch,
        generation=after.generation,
        mode=RECONCILE,
        cursor_field=after.cursor_field,
        cursor_type=after.cursor.type.value if after.cursor else None,
        cursor_high=after.cursor.text if after.cursor else None,
        rows_redelivered=0,
        started_at=now(),
    )
    began = record.started_at or now()
    stamp = Stamp(plan.source, began, after.batch, after.generation, plan.deleted)
    table = plan.table.schema
    names = [f.col(quoted(name)) for name in table.names]
    full = rows.select(*names, f.lit(False).alias(GONE)).union(_tombstones(plan, gone))
    # Numbered as one: in a union each side would begin at the same number.
    full = full.coalesce(1) if count <= _ONE_FILE else full
    stamped_rows = (
        stamped(full, stamp)
        .withColumn(HASH, row_hash(table))
        .withColumn(DELETED, f.col(DELETED) | f.col(GONE))
        .drop(GONE)
    )
    return Batch(stamped_rows, record, after)


def _tombstones(plan: Plan, gone: DataFrame) -> DataFrame:
    """Rows that hold their key and nothing else.

    No values: what was deleted at the source is not written once more. No cursor: it would rank a
    row that is created again below its own tombstone.
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
