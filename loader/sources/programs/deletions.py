"""Marks rows that their program deletes again in the same piece."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.rows.delta import DELETED
from loader.rows.order import quote_name
from loader.sources.programs.layout import AFTER


def with_deleted(rows: DataFrame, deletions: Sequence[DataFrame]) -> DataFrame:
    """Adds whether a row was deleted after it came; keeps the rows' order.

    Args:
        rows: with the number of deletions before each (:data:`AFTER`), which is dropped.
        deletions: by the columns that they name; each with its number.
    """
    names = rows.drop(AFTER).columns
    gone: list[Column] = []
    for number, deletion in enumerate(deletions):
        by, last = deletion.drop(AFTER).columns, f"_cq_last_{number}"
        values = [f"_cq_{number}_{i}" for i in range(len(by))]
        newest = deletion.groupBy(
            *(f.col(quote_name(name)).alias(value) for name, value in zip(by, values, strict=True))
        ).agg(f.max(AFTER).alias(last))
        same = [
            f.col(quote_name(name)) == f.col(value) for name, value in zip(by, values, strict=True)
        ]
        # Broadcast: a shuffle would lose the order.
        rows = rows.join(f.broadcast(newest), reduce(and_, same, f.lit(True)), "left")
        gone.append(f.coalesce(f.col(last) > f.col(AFTER), f.lit(False)))
    return rows.select(
        *(f.col(quote_name(name)) for name in names), reduce(or_, gone).alias(DELETED)
    )
