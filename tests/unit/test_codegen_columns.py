"""Codegen refuses a raw table with a column that hides other columns from dbt-spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from loader.codegen.table import _columns
from loader.errors import TableError


def test_a_column_that_ends_dbts_list_of_columns_is_refused() -> None:
    """dbt-spark takes a row of `describe table` that begins with # for a heading."""
    schema = StructType([StructField(name, IntegerType()) for name in ("id", "#", "a#")])
    lake: Any = SimpleNamespace(frame=lambda name: SimpleNamespace(schema=schema))
    table = SimpleNamespace(column_comments={})
    plan: Any = SimpleNamespace(name="shop.orders", lake_table="orders", table=table)
    with pytest.raises(TableError, match="ignores '#' and all columns after it"):
        list(_columns(lake, plan))
    schema.fields.pop(1)
    assert [column.name for column in _columns(lake, plan)] == ["id", "a#"]
