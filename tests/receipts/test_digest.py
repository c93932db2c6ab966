"""The digest of rows changes with every value, and can be computed without Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.lake.rows_digest import RowsDigest, compute_digests

DDL = (
    "whole int, note string, amount decimal(20, 8), ratio float, `a.b``c` boolean, day date, "
    "at timestamp, local timestamp_ntz, raw binary, "
    "inner struct<x: int, at: timestamp>, items array<string>, pairs map<string, double>, "
    "_cq_batch bigint, _cq_deleted boolean"
)
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.timezone.utc)
ROW: tuple[Any, ...] = (
    *(7, "n1", Decimal("0.00000012"), 0.5, True, dt.date(2025, 1, 1), NOON),
    *(dt.datetime(2025, 1, 1, 12), b"\x01\xff", (1, NOON), ["a", None], {"k": 1.5, "j": None}),
    *(3, False),
)
OTHER: tuple[Any, ...] = (
    *(8, "n2", Decimal("0.00000013"), 0.25, False, dt.date(2025, 1, 2)),
    NOON + dt.timedelta(microseconds=1),
    dt.datetime(2025, 1, 1, 12, 0, 0, 1),
    *(b"\x01", (1, NOON + dt.timedelta(microseconds=1)), ["a"], {"k": 1.5}, None, True),
)


@pytest.fixture
def columns(spark: SparkSession) -> t.StructType:
    return t.StructType.fromDDL(DDL)


def _digest(rows: DataFrame, columns: t.StructType) -> RowsDigest:
    [digest] = compute_digests(rows, columns).values()
    return digest


def test_every_value_changes_the_digest(spark: SparkSession, columns: t.StructType) -> None:
    """Each row is a batch of its own, and differs from the first row in one value."""
    rows = [ROW]
    for place, value in enumerate(OTHER):
        if columns[place].name != "_cq_batch":
            rows.append((*ROW[:place], value, *ROW[place + 1 :]))
            rows.append((*ROW[:place], None, *ROW[place + 1 :]))
    place = columns.names.index("_cq_batch")
    numbered = [(*row[:place], number, *row[place + 1 :]) for number, row in enumerate(rows)]
    # leave out the batch number, which differs in every row
    others = t.StructType([field for field in columns.fields if field.name != "_cq_batch"])
    digests = compute_digests(spark.createDataFrame(numbered, columns), others)
    assert len({digest.sha256 for digest in digests.values()}) == len(rows)
    changed_flags = {numbered[-2][place], numbered[-1][place]}
    same = {n for n, digest in digests.items() if digest.source_sha256 == digests[0].source_sha256}
    assert same == {0, *changed_flags}


def test_the_number_of_rows_changes_the_digest_their_order_does_not(spark: SparkSession) -> None:
    rows = spark.range(10_000).selectExpr("id", "'n' || id as note", "1L as _cq_batch")
    digest = _digest(rows, rows.schema)
    assert digest.rows == 10_000
    assert _digest(rows.orderBy(f.desc("id")).repartition(7), rows.schema) == digest
    assert _digest(rows.union(rows.limit(1)), rows.schema).sha256 != digest.sha256
    swapped = rows.withColumn("note", f.expr("if(id < 2, 'n' || (1 - id), note)"))
    assert _digest(swapped, rows.schema).sha256 != digest.sha256


def test_wider_types_and_more_columns_have_the_same_digest(
    spark: SparkSession, columns: t.StructType
) -> None:
    rows = spark.createDataFrame([ROW], columns)
    wider = rows.select(
        f.col("whole").cast("bigint").alias("WHOLE"),
        f.col("amount").cast("decimal(30, 8)").alias("amount"),
        f.col("ratio").cast("double").alias("ratio"),
        f.struct(f.col("inner.x").cast("bigint").alias("x"), "inner.at", f.lit(1).alias("y")).alias(
            "inner"
        ),
        *("`a.b``c`", "note", "day", "at", "local", "raw", "items", "pairs"),
        *("_cq_batch", "_cq_deleted"),
        f.lit(None).cast("string").alias("later"),
    )
    assert _digest(wider, columns) == _digest(rows, columns)
    assert _digest(wider.withColumn("later", f.lit("")), columns) != _digest(rows, columns)
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    zone = spark.conf.get("spark.sql.session.timeZone")
    expected = _digest(rows, columns)
    try:
        spark.conf.set("spark.sql.ansi.enabled", "false" if ansi == "true" else "true")
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        assert _digest(wider, columns) == expected
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_the_digest_can_be_computed_without_spark(spark: SparkSession) -> None:
    """By the definition in docs/receipts.md."""
    rows = [(n, None if n % 7 == 0 else f"é{n}", 1, n % 2 == 0) for n in range(9_000)]
    columns = t.StructType.fromDDL("id int, note string, _cq_batch bigint, _cq_deleted boolean")

    def sha256(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(text: str | None) -> str:
        return "-" if text is None else f"{len(text)}:{text}"

    def combine(digests: list[str]) -> str:
        buckets = defaultdict(list)
        for digest in sorted(digests):
            buckets[digest[:3]].append(digest)
        return sha256("".join(sha256("".join(buckets[name])) for name in sorted(buckets)))

    source = [sha256(encode(str(n)) + encode(note)) for n, note, _, _ in rows]
    every = [
        sha256(digest + encode(str(batch)) + encode(str(deleted).lower()))
        for digest, (_, _, batch, deleted) in zip(source, rows, strict=True)
    ]
    expected = RowsDigest(len(rows), combine(every), combine(source))
    assert _digest(spark.createDataFrame(rows, columns), columns) == expected
