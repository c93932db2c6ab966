"""The order of a key's versions. `macros/version_order.sql` defines the same order in SQL.

Versions are ordered by generation, cursor (nulls lowest), batch, and position in the batch. A test
in `tests/dbt` compares the two definitions.
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
    """Returns a key by which versions are sorted. The newest version is last."""
    return (generation, cursor is not None, cursor if cursor is not None else 0, batch, seq)


def version_column(cursor_field: str | None) -> Column:
    """Returns the same sort key as a Spark struct. Nulls are lowest."""
    names = [GENERATION, *([cursor_field] if cursor_field else []), BATCH, SEQUENCE]
    return f.struct(*(f.col(quote_name(name)) for name in names))


def quote_name(name: str) -> str:
    """Quotes a column name with any characters for Spark SQL."""
    return f"`{name.replace('`', '``')}`"
