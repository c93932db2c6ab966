"""Turns the deletions that a source reports into tombstones in the raw table.

If a batch deletes a key but also contains a row with this key, no tombstone is appended. The row
itself is appended only if it has changed. If the table has a cursor, the tombstones and the rows of
deleted keys go into a new generation, which makes them newer than all versions in the raw table,
even those with higher cursors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.rows.bookkeeping import DELETED, HASH, Stamp, stamp_rows
from loader.rows.cursor import CursorType
from loader.rows.redelivery import OVERRULES, REDELIVERED
from loader.rows.row_hash import row_hash
from loader.rows.version_order import SEQUENCE, quote_name, version_column
from loader.rows.window import Window
from loader.sources.contents import is_wanted
from loader.sync.table_plan import TablePlan

_NEWEST_HASH = "_cq_held_hash"
_TOMBSTONE_OFFSET = 1 << 60
"""Added to the ``_cq_seq`` of tombstones, so that they sort after the batch's rows."""


def are_too_many(deletes: int, rows: int) -> bool:
    """Returns whether the deletions would remove all rows, or more than a tenth of them."""
    return deletes > 0 and (deletes >= rows or deletes * 10 > rows)


def find_deleted(
    plan: TablePlan, raw: DataFrame, deletions: Sequence[DataFrame], are_few: bool = True
) -> DataFrame | None:
    """Returns the deleted keys with the hash of each key's newest version in the raw table.

    Returns None if there are no deletions.

    Args:
        raw: the source's rows in the raw table.
        deletions: see :meth:`loader.sources.interface.Snapshot.deletions`.
        are_few: whether the deletions fit in the memory of every Spark executor.
    """
    matches = [_find_matching_keys(plan, raw, deletion, are_few) for deletion in deletions]
    if not matches:
        return None
    return reduce(DataFrame.union, matches).dropDuplicates(_key_aliases(plan))


def list_live_keys(plan: TablePlan, raw: DataFrame) -> DataFrame | None:
    """Returns the keys that a complete read of the source would return if none had been deleted.

    These are the keys whose newest version in the raw table is not a tombstone and is not excluded
    by `initial_cursor` or `null_cursor`. Rows without a key (:func:`lacks_key`) are ignored.

    Returns None if the raw table lacks a required column, or if `initial_cursor` is a string,
    because only the source can compare strings.

    Args:
        raw: the source's rows in the raw table.
    """
    cursor = plan.cursor
    columns = {name.lower() for name in raw.columns}
    needed = [*plan.key, *([cursor.name] if cursor else [])]
    is_collated = cursor is not None and cursor.type is CursorType.STRING
    if not {name.lower() for name in needed} <= columns or (plan.initial and is_collated):
        return None
    window = Window(cursor, plan.initial, nulls=plan.options.null_cursor != "exclude")
    is_live = is_wanted(plan.table.schema, window) & ~f.col(DELETED)
    names = _key_aliases(plan)
    keys = (f.col(quote_name(c)).alias(name) for c, name in zip(plan.key, names, strict=True))
    newest = f.max_by(is_live, version_column(cursor.name if cursor else None))
    live_keys = raw.groupBy(*keys).agg(newest.alias("_cq_live")).where("_cq_live").select(*names)
    return live_keys.where(~lacks_key(plan, names))


def lacks_key(plan: TablePlan, names: Sequence[str]) -> Column:
    """Returns a condition that selects the rows of the raw table that have no key.

    These rows were loaded before the key was changed. A key column that the source does not declare
    as part of its primary key may be null, as long as another key column is not.

    Args:
        names: the names of the key's columns in the rows.
    """
    condition = reduce(and_, [f.col(name).isNull() for name in names])
    for column, name in zip(plan.key, names, strict=True):
        if column in plan.table.primary_key:
            condition |= f.col(name).isNull()
    return condition


def correct_deleted(flagged: DataFrame, deleted: DataFrame, plan: TablePlan) -> DataFrame:
    """Flags the batch's rows with deleted keys as new versions that override the raw table.

    If a row is the only row with its key in the batch, and equals the newest version in the raw
    table, the deletion has no effect. The row is then flagged as redelivered instead.

    Args:
        flagged: the result of :func:`loader.rows.redelivery.flag_redelivered`.
    """
    is_alone = f.count(f.lit(1)).over(Over.partitionBy(*_key_columns(plan))) == 1
    is_same = f.col(_NEWEST_HASH).eqNullSafe(f.col(HASH)) & ~f.col(DELETED) & f.col("_cq_alone")
    is_redelivered = f.when(f.col(_NEWEST_HASH).isNull(), f.col(REDELIVERED)).otherwise(is_same)
    overrules = f.col(_NEWEST_HASH).isNotNull() | f.max(DELETED).over(
        Over.partitionBy(*_key_columns(plan))
    )
    rows = flagged.withColumn("_cq_alone", is_alone).join(deleted, _match_keys(plan), "left")
    rows = rows.withColumn(REDELIVERED, is_redelivered).withColumn(OVERRULES, overrules)
    return rows.select(*(f.col(quote_name(name)) for name in flagged.columns))


def build_tombstones(
    flagged: DataFrame, deleted: DataFrame, plan: TablePlan, stamp: Stamp
) -> DataFrame:
    """Returns a tombstone for each deleted key that has no row in the batch.

    Only the key columns of a tombstone have values; the source's other columns are null.
    """
    keys = deleted.join(flagged.select(*_key_columns(plan)), _match_keys(plan), "left_anti")
    key_columns = dict(zip((name.lower() for name in plan.key), _key_aliases(plan), strict=True))
    table = plan.table.schema
    values = (
        (
            f.col(key_columns[column.name.lower()])
            if column.name.lower() in key_columns
            else f.lit(None)
        )
        .cast(column.dataType)
        .alias(column.name)
        for column in table.fields
    )
    rows = stamp_rows(keys.select(*values, f.lit(True).alias(DELETED)), stamp)
    return rows.withColumn(HASH, row_hash(table)).withColumn(
        SEQUENCE, f.col(SEQUENCE) + _TOMBSTONE_OFFSET
    )


def _find_matching_keys(
    plan: TablePlan, raw: DataFrame, deletion: DataFrame, are_few: bool
) -> DataFrame:
    """Returns the keys whose newest version is not a tombstone and matches one of the deletions."""
    deletion_columns = deletion.columns
    values = [f"_cq_value_{i}" for i in range(len(deletion_columns))]
    deleted_values = deletion.distinct().toDF(*values)
    deleted_values = f.broadcast(deleted_values) if are_few else deleted_values
    if {name.lower() for name in deletion_columns} <= {name.lower() for name in plan.key}:
        raw = raw.join(deleted_values, _match_values(deletion_columns, values), "left_semi")
    names = _key_aliases(plan)
    newest = raw.groupBy(
        *(
            f.col(quote_name(column)).alias(name)
            for column, name in zip(plan.key, names, strict=True)
        )
    ).agg(
        f.max_by(
            f.struct(*(f.col(quote_name(name)) for name in deletion_columns), HASH, DELETED),
            version_column(plan.cursor.name if plan.cursor else None),
        ).alias("_cq_newest")
    )
    pairs = zip(deletion_columns, values, strict=True)
    conditions = [f.col("_cq_newest")[name] == f.col(value) for name, value in pairs]
    live_keys = newest.where(~f.col("_cq_newest")[DELETED])
    matches = live_keys.join(deleted_values, reduce(and_, conditions, f.lit(True)), "left_semi")
    return matches.select(*names, f.col("_cq_newest")[HASH].alias(_NEWEST_HASH))


def _key_aliases(plan: TablePlan) -> list[str]:
    return [f"_cq_key_{i}" for i in range(len(plan.key))]


def _key_columns(plan: TablePlan) -> list[Column]:
    return [f.col(quote_name(name)) for name in plan.key]


def _match_keys(plan: TablePlan) -> Column:
    pairs = zip(_key_columns(plan), _key_aliases(plan), strict=True)
    return reduce(and_, [column.eqNullSafe(f.col(name)) for column, name in pairs])


def _match_values(columns: Sequence[str], values: Sequence[str]) -> Column:
    pairs = zip(columns, values, strict=True)
    return reduce(and_, [f.col(quote_name(c)) == f.col(v) for c, v in pairs], f.lit(True))
