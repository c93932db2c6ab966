"""Deletions that a source names by the values of columns become tombstones in raw.

A batch counts as a whole. A key that is deleted and delivered again in one batch stays: it
gets no tombstone, and if its row has not changed, nothing is appended. Of a table with a cursor,
tombstones and the rows of their keys are in a new generation, as a deletion overrules cursors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.rows.bookkeeping import DELETED, HASH, Stamp, stamp_rows
from loader.rows.redelivery import OVERRULES, REDELIVERED
from loader.rows.row_hash import row_hash
from loader.rows.version_order import SEQUENCE, quote_name, version_column
from loader.sync.table_plan import TablePlan

_HELD = "_cq_held_hash"
_LAST = 1 << 60
"""Tombstones follow all other rows of their batch."""


def find_deleted(
    plan: TablePlan, raw: DataFrame, deletions: Sequence[DataFrame]
) -> DataFrame | None:
    """Returns the keys that deletions mean, and the hash of each one's newest version in raw.

    Args:
        raw: the source's rows.
        deletions: see :meth:`loader.sources.Snapshot.deletions`.

    Returns None if there are no deletions.
    """
    found = [_meant(plan, raw, deletion) for deletion in deletions]
    if not found:
        return None
    return reduce(DataFrame.union, found).dropDuplicates(_names(plan))


def correct_deleted(judged: DataFrame, gone: DataFrame, plan: TablePlan) -> DataFrame:
    """Marks rows whose keys were deleted as new, overruling raw.

    Such a row is redelivered only if it is its key's only one, and raw's newest version: then the
    deletion leaves no trace.

    Args:
        judged: rows of the batch, stamped and marked.
    """
    alone = f.count(f.lit(1)).over(Over.partitionBy(*_key(plan))) == 1
    same = f.col(_HELD).eqNullSafe(f.col(HASH)) & ~f.col(DELETED) & f.col("_cq_alone")
    again = f.when(f.col(_HELD).isNull(), f.col(REDELIVERED)).otherwise(same)
    overrules = f.col(_HELD).isNotNull() | f.max(DELETED).over(Over.partitionBy(*_key(plan)))
    rows = judged.withColumn("_cq_alone", alone).join(gone, _same_key(plan), "left")
    rows = rows.withColumn(REDELIVERED, again).withColumn(OVERRULES, overrules)
    return rows.select(*(f.col(quote_name(name)) for name in judged.columns))


def tombstones(judged: DataFrame, gone: DataFrame, plan: TablePlan, stamp: Stamp) -> DataFrame:
    """Returns a tombstone, which holds only its key, for each deleted key without a row."""
    keys = gone.join(judged.select(*_key(plan)), _same_key(plan), "left_anti")
    of = dict(zip((name.lower() for name in plan.key), _names(plan), strict=True))
    table = plan.table.schema
    values = (
        (f.col(of[column.name.lower()]) if column.name.lower() in of else f.lit(None))
        .cast(column.dataType)
        .alias(column.name)
        for column in table.fields
    )
    rows = stamp_rows(keys.select(*values, f.lit(True).alias(DELETED)), stamp)
    return rows.withColumn(HASH, row_hash(table)).withColumn(SEQUENCE, f.col(SEQUENCE) + _LAST)


def _meant(plan: TablePlan, raw: DataFrame, deletion: DataFrame) -> DataFrame:
    """Returns the keys whose newest version has the values of a deletion, and is no tombstone."""
    by = deletion.columns
    values = [f"_cq_value_{i}" for i in range(len(by))]
    wanted = f.broadcast(deletion.distinct().toDF(*values))
    if {name.lower() for name in by} <= {name.lower() for name in plan.key}:
        raw = raw.join(wanted, _equal(by, values), "left_semi")
    names = _names(plan)
    newest = raw.groupBy(
        *(
            f.col(quote_name(column)).alias(name)
            for column, name in zip(plan.key, names, strict=True)
        )
    ).agg(
        f.max_by(
            f.struct(*(f.col(quote_name(name)) for name in by), HASH, DELETED),
            version_column(plan.cursor.name if plan.cursor else None),
        ).alias("_cq_newest")
    )
    pairs = zip(by, values, strict=True)
    here = [f.col("_cq_newest")[name] == f.col(value) for name, value in pairs]
    live = newest.where(~f.col("_cq_newest")[DELETED])
    found = live.join(wanted, reduce(and_, here, f.lit(True)), "left_semi")
    return found.select(*names, f.col("_cq_newest")[HASH].alias(_HELD))


def _names(plan: TablePlan) -> list[str]:
    return [f"_cq_key_{i}" for i in range(len(plan.key))]


def _key(plan: TablePlan) -> list[Column]:
    return [f.col(quote_name(name)) for name in plan.key]


def _same_key(plan: TablePlan) -> Column:
    pairs = zip(_key(plan), _names(plan), strict=True)
    return reduce(and_, [column.eqNullSafe(f.col(name)) for column, name in pairs])


def _equal(columns: Sequence[str], values: Sequence[str]) -> Column:
    pairs = zip(columns, values, strict=True)
    return reduce(and_, [f.col(quote_name(c)) == f.col(v) for c, v in pairs], f.lit(True))
