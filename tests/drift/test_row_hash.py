"""Hashes of rows ignore the case and order of names, null columns, and the width of numbers."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loader.rows.row_hash import row_hash

SAME = [
    ("1 as a, 'x' as b", "'x' as b, 1 as a"),
    ("1 as a, 'x' as b", "1 as A, 'x' as `B`"),
    ("1 as a", "1Y as a"),
    ("1 as a", "1L as a"),
    ("float(1.1) as a", "double(float(1.1)) as a"),
    ("1.50BD as a", "cast(1.5 as decimal(12, 2)) as a"),
    ("1 as a", "1 as a, null as b"),
    ("1 as a", "1 as a, cast(null as struct<x: int>) as b"),
    ("struct(1 as x, 'y' as y) as a", "struct('y' as Y, 1L as X) as a"),
    ("struct(1 as x) as a", "struct(1 as x, cast(null as string) as y) as a"),
    ("array(1, null) as a", "array(1L, null) as a"),
    ("array(struct(1 as x)) as a", "array(struct(null as y, 1L as x)) as a"),
    ("map('a', 1, 'b', 2) as m", "map('b', 2L, 'a', 1L) as m"),
    ("map('a', map('b', 1)) as m", "map('a', map('b', 1L)) as m"),
]
DIFFERENT = [
    ("1 as a, null as b", "null as a, 1 as b"),
    ("'ab' as a, 'c' as b", "'a' as a, 'bc' as b"),
    ("1 as a", "2 as a"),
    ("1 as a", "'1' as a"),
    ("true as a", "1 as a"),
    ("'' as a", "cast(null as string) as a"),
    ("struct(1 as x, cast(null as int) as y) as a", "struct(cast(null as int) as x, 1 as y) as a"),
    ("struct(cast(null as int) as x) as a", "cast(null as struct<x: int>) as a"),
    (
        "struct(1 as x, 2 as b) as a, cast(null as int) as b",
        "struct(1 as x, cast(null as int) as b) as a, 2 as b",
    ),
    ("array('a') as a", "array('a', null) as a"),
    ("array('a', null) as a", "array(null, 'a') as a"),
    ("cast(array() as array<int>) as a", "cast(null as array<int>) as a"),
    ("array(array('a'), array('b')) as a", "array(array('a', 'b')) as a"),
    ("array(array('a'), null) as a", "array(array('a', null)) as a"),
    (
        "array(struct(1 as x, null as y), struct(null as x, 2 as y)) as a",
        "array(struct(1 as x, 2 as y), struct(null as x, null as y)) as a",
    ),
    ("map('a', 1) as m", "map('a', 2) as m"),
    ("map('a', null) as m", "cast(map() as map<string, int>) as m"),
    ("map('a', 'b') as m", "map('b', 'a') as m"),
    (
        "map('a', timestamp'2025-01-01 00:00:00.000001') as m",
        "map('a', timestamp'2025-01-01 00:00:00.000002') as m",
    ),
    ("map('a', map('b', 1)) as m", "map('a', map('b', 2)) as m"),
]


def _hash(spark: SparkSession, columns: str) -> int:
    rows = spark.sql(f"select {columns}")
    [row] = rows.select(row_hash(rows.schema).alias("h"), f.lit(1)).collect()
    found: int = row["h"]
    return found


def test_equal_rows_have_equal_hashes(spark: SparkSession) -> None:
    for left, right in SAME:
        assert _hash(spark, left) == _hash(spark, right), (left, right)


def test_different_rows_have_different_hashes(spark: SparkSession) -> None:
    for left, right in DIFFERENT:
        assert _hash(spark, left) != _hash(spark, right), (left, right)


@pytest.mark.parametrize("rows", [10_000])
def test_hashes_of_many_rows_do_not_collide(spark: SparkSession, rows: int) -> None:
    frame = spark.range(rows).selectExpr(
        "array(id, id div 7, null) as a", "struct(id % 100 as x, array(id) as y) as s"
    )
    assert frame.select(row_hash(frame.schema).alias("h")).distinct().count() == rows
