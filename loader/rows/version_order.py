"""Defines the order of a key's versions, and assigns generations to rows.

Versions are ordered by generation, cursor (nulls lowest), batch, and position in the batch.
`macros/version_order.sql` defines the same order in SQL, which a test in `tests/dbt` checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

GENERATION = "_cq_generation"
BATCH = "_cq_batch"
SEQUENCE = "_cq_seq"
SOURCE_NAME = "_cq_source_name"


def version_order(generation: int, cursor: Any, batch: int, seq: int) -> tuple[Any, ...]:
    """Returns a sort key for versions. The newest version is last."""
    return (generation, cursor is not None, cursor if cursor is not None else 0, batch, seq)


def version_column(cursor_field: str | None) -> Column:
    """Returns the sort key of :func:`version_order` as a Spark struct. Nulls are lowest."""
    names = [GENERATION, *([cursor_field] if cursor_field else []), BATCH, SEQUENCE]
    return f.struct(*(f.col(quote_name(name)) for name in names))


def quote_name(name: str) -> str:
    """Quotes and escapes a name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class Generations:
    """The generations in the raw table that are compared with a window's rows.

    Attributes:
        base: the newest generation that started with a full read. Older ones are not compared.
        current: the newest generation; higher than `base` if a later batch overrode the cursor
            order.
    """

    base: int
    current: int


def assign_generation(
    rows: DataFrame, raw: DataFrame, key: Sequence[str], generations: Generations
) -> DataFrame:
    """Assigns each row to its key's generation in the raw table.

    Some sources may return several versions of a key in any order. The cursor then determines the
    newest version, unless a repair overrode the order. Rows with a repaired key are appended to the
    repair's generation. All other rows are appended to the base generation, so that a version with
    a higher cursor remains newer than a late row.

    From the raw table, only rows above the base generation are read.
    """
    parts = [f"_cq_key_{i}" for i in range(len(key))]
    repaired = (
        raw.where(f.col(GENERATION) > f.lit(generations.base))
        .groupBy(
            *(f.col(quote_name(name)).alias(part) for name, part in zip(key, parts, strict=True))
        )
        .agg(f.max(GENERATION).alias("_cq_key_generation"))
    )
    same_key = [f.col(quote_name(n)).eqNullSafe(f.col(p)) for n, p in zip(key, parts, strict=True)]
    base = f.lit(generations.base).cast("bigint")
    return (
        rows.join(repaired, reduce(and_, same_key), "left")
        .withColumn(GENERATION, f.coalesce("_cq_key_generation", base))
        .select(*(f.col(quote_name(name)) for name in rows.columns))
    )


def number_versions(rows: DataFrame, key: Sequence[str], generation: int) -> DataFrame:
    """Assigns a new generation to each version of a key, in the order of the source's log.

    A later version then counts as newer, regardless of its cursor.

    Args:
        generation: the newest generation in the raw table.
    """
    order = Over.partitionBy(*(f.col(quote_name(name)) for name in key)).orderBy(SEQUENCE)
    number = f.row_number().over(order).cast("bigint")
    return rows.withColumn(GENERATION, f.lit(generation) + number)
