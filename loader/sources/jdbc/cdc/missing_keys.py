"""Finds keys that live in raw and are gone from the source, after a read of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.rows.delta import DELETED
from loader.rows.order import BATCH, GENERATION, SEQUENCE, quote_name
from loader.sources import SourceTable


def find_missing_keys(
    rows: DataFrame,
    table: SourceTable,
    key: Sequence[str],
    held: Callable[[Sequence[str]], DataFrame],
) -> DataFrame:
    """Returns tombstones of the keys that live in raw and are not among the rows.

    Args:
        rows: all rows that the source has.
        held: reads columns of raw (:attr:`Window.held`).
    """
    raw = held([*key, DELETED, GENERATION, BATCH, SEQUENCE])
    newest = f.max_by(DELETED, f.struct(GENERATION, BATCH, SEQUENCE))
    alive = (
        raw.groupBy(*(f.col(quote_name(name)) for name in key))
        .agg(newest.alias(DELETED))
        .where(~f.coalesce(f.col(DELETED), f.lit(False)))
        .select(*(f.col(quote_name(name)).alias(f"_cq_key_{i}") for i, name in enumerate(key)))
    )
    condition = f.lit(True)
    for i, name in enumerate(key):
        condition = condition & f.col(f"_cq_key_{i}").eqNullSafe(f.col(quote_name(name)))
    gone = alive.join(
        rows.select(*(f.col(quote_name(name)) for name in key)), condition, "left_anti"
    )
    places = {name: f"_cq_key_{i}" for i, name in enumerate(key)}
    return gone.select(
        *(
            (f.col(places[field.name]) if field.name in places else f.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in table.schema.fields
        ),
        f.lit(True).alias(DELETED),
    )
