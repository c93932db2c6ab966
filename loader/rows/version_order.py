"""The total order of a key's versions, in Python; `macros/version_order.sql` is the same in SQL.

Generation, then cursor (nulls lowest), then batch, then position in the batch. A test checks that
the two agree (`tests/dbt`).
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

GENERATION = "_cq_generation"
BATCH = "_cq_batch"
SEQUENCE = "_cq_seq"
SOURCE_NAME = "_cq_source_name"


def version_order(generation: int, cursor: Any, batch: int, seq: int) -> tuple[Any, ...]:
    """Returns a sort key: the greatest is the newest version."""
    return (generation, cursor is not None, cursor if cursor is not None else 0, batch, seq)


def version_column(cursor_field: str | None) -> Column:
    """Returns the same order as a Spark struct, in which nulls sort lowest."""
    names = [GENERATION, *([cursor_field] if cursor_field else []), BATCH, SEQUENCE]
    return f.struct(*(f.col(quote_name(name)) for name in names))


def quote_name(name: str) -> str:
    """Quotes a column name for Spark's parser; it may have any characters."""
    return f"`{name.replace('`', '``')}`"
