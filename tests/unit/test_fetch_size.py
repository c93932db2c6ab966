"""The JDBC fetch size depends on the row width: wide rows are fetched a few at a time."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from loader.sources.jdbc.dialect import TableSize
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.reader import MOST_ROWS, UNKNOWN, choose_fetch_size, needs_row_width

_NUMBERS = StructType([StructField(f"c{i}", IntegerType()) for i in range(8)])
_MANY = StructType([StructField(f"c{i}", IntegerType()) for i in range(1_500)])
_TEXTS = StructType([StructField("id", IntegerType()), StructField("body", StringType())])
_MB = 1 << 20


@pytest.mark.parametrize(
    ("schema", "rows", "expected"),
    [(_NUMBERS, None, False), (_TEXTS, None, True), (_TEXTS, 20, False), (_TEXTS, 21, True)],
)
def test_the_row_width_is_queried_only_if_rows_may_be_wide(
    schema: StructType, rows: int | None, expected: bool
) -> None:
    assert needs_row_width(schema, rows) is expected


@pytest.mark.parametrize(
    ("schema", "rows", "extent", "sampled", "whole", "expected"),
    [
        (_NUMBERS, None, None, 0, True, MOST_ROWS),
        (_MANY, None, None, 0, True, 349),
        (_TEXTS, None, TableSize(400 * _MB, 4_000_000), 0, True, MOST_ROWS),
        (_TEXTS, None, TableSize(400 * _MB, 100), 0, False, 2),
        (_TEXTS, 400, TableSize(1_600 * _MB, 0), 0, True, 2),
        (_TEXTS, 400, TableSize(1_600 * _MB, 0), 0, False, UNKNOWN),
        (_TEXTS, 400, None, 0, True, UNKNOWN),
        (_TEXTS, 400, TableSize(20 * _MB, 400), 4 * _MB, True, 2),
        (_TEXTS, 400, TableSize(1_600 * _MB, 0), 4 * _MB, False, 2),
        (_TEXTS, 400, TableSize(0, 400), 0, True, MOST_ROWS),
        (_TEXTS, 30, TableSize(3_000 * _MB, 30), 0, True, 1),
    ],
)
def test_wide_rows_are_fetched_few_at_a_time(
    schema: StructType,
    rows: int | None,
    extent: TableSize | None,
    sampled: int,
    whole: bool,
    expected: int,
) -> None:
    assert choose_fetch_size(schema, rows, extent, sampled, whole=whole) == expected


@pytest.mark.parametrize(
    ("driver", "expected"), [("MySQL Connector/J", -(2**31)), ("MariaDB Connector/J", 10)]
)
def test_mysql_drivers_stream_rows(driver: str, expected: int) -> None:
    assert MySQL.stream_fetch_size(driver) == expected
