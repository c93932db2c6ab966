"""Computes a SHA-256 digest of a set of rows in Spark.

The digest depends on the rows, but not on their order, files, compression or partitions.
Someone who can write to the lake cannot find other rows with the same digest. A sum of hashes would
be cheaper, but rows can be constructed so that the sum does not change.

The digest is computed in three steps:

1. A row's source digest is the SHA-256 of its values in the order of the columns, without the
   loader's ``_cq_`` columns. Each value is preceded by its length in characters and a colon; a null
   is a hyphen. The row's digest is the SHA-256 of the source digest (64 hexadecimal digits, with no
   length prefix) and the values of the ``_cq_`` columns.
2. The rows are divided into buckets by the first three hexadecimal digits of their digests. A
   bucket's digest is the SHA-256 of its row digests, sorted and concatenated as hexadecimal digits.
3. The result is the SHA-256 of the bucket digests, concatenated in bucket order.

Values are formatted as follows: integers and strings unchanged; decimals as the digits of the
unscaled value; booleans as `true` or `false`; dates as days since 1970; times with a zone as
microseconds since 1970; other times as Spark prints them; bytes in hexadecimal; floating point
numbers as the xxhash64 of the double, which is different for each number (`-0.0` counts as
`0.0`). The values of structs, arrays and maps are formatted in the same way and concatenated; a map
is sorted by its keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.bookkeeping import COLUMNS
from loader.rows.version_order import BATCH, quote_name

BUCKET_DIGITS = 3
_SOURCE, _ALL = 0, 1  # the two digests of a row
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The digest of no rows: the SHA-256 of an empty string."""


@dataclass(frozen=True)
class RowsDigest:
    """The digests of a batch's rows.

    Attributes:
        sha256: the digest of all columns.
        source_sha256: the digest of the columns without the loader's ``_cq_`` columns.

    >>> RowsDigest().rows
    0
    """

    rows: int = 0
    sha256: str = EMPTY
    source_sha256: str = EMPTY


def compute_digests(rows: DataFrame, columns: t.StructType) -> dict[int, RowsDigest]:
    """Computes the digests of each batch in one pass. The result omits batches without rows.

    Rows without a batch number count as batch 0, which no sync publishes.

    Args:
        rows: rows with the columns, or with wider types, and with a batch number. A value in any
            other column changes the digest, because columns that were added later are null.
        columns: the columns, with the types that determine how the values are formatted.
    """
    known = {name.lower() for name in columns.names}
    later = [
        f.coalesce(f.concat(f.lit("+"), _format_text(_column(field), field.dataType)), f.lit(""))
        for field in rows.schema.fields
        if field.name.lower() not in known
    ]
    row_digests = rows.select(
        f.coalesce(BATCH, f.lit(0)).alias("batch"),
        f.sha2(_concatenate(columns, are_own=False), 256).alias("source"),
        f.concat(_concatenate(columns, are_own=True), *later).alias("own"),
    ).select(
        "batch",
        f.posexplode(f.array("source", f.sha2(f.concat("source", "own"), 256))).alias(
            "kind", "digest"
        ),
    )
    buckets = row_digests.groupBy(
        "batch", "kind", f.substring("digest", 1, BUCKET_DIGITS).alias("bucket")
    ).agg(
        f.count(f.lit(1)).alias("rows"),
        _hash_sorted(f.collect_list("digest"), lambda each: each).alias("digest"),
    )
    totals = buckets.groupBy("batch", "kind").agg(
        f.sum("rows").alias("rows"),
        _hash_sorted(
            f.collect_list(f.struct("bucket", "digest")), lambda each: each["digest"]
        ).alias("digest"),
    )
    found = {(row["batch"], row["kind"]): row for row in totals.collect()}
    return {
        batch: RowsDigest(row["rows"], row["digest"], found[batch, _SOURCE]["digest"])
        for (batch, kind), row in found.items()
        if kind == _ALL
    }


def _concatenate(columns: t.StructType, are_own: bool) -> Column:
    values = [
        _format_value(_column(field), field.dataType)
        for field in columns.fields
        if (field.name in COLUMNS) is are_own
    ]
    return f.concat(f.lit(""), *values)


def _column(field: t.StructField) -> Column:
    return f.col(quote_name(field.name))


def _hash_sorted(items: Column, get_digest: Callable[[Column], Column]) -> Column:
    return f.sha2(f.concat_ws("", f.transform(f.array_sort(items), get_digest)), 256)


def _format_value(value: Column, data_type: t.DataType) -> Column:
    """Returns the text of a value, in a form that shows where the text ends."""
    text = _format_text(value, data_type)
    return f.coalesce(f.concat(f.char_length(text).cast("string"), f.lit(":"), text), f.lit("-"))


def _format_text(value: Column, data_type: t.DataType) -> Column:
    if isinstance(data_type, t.StructType):
        fields = [_format_value(value[each.name], each.dataType) for each in data_type.fields]
        return f.when(value.isNotNull(), f.concat(f.lit(""), *fields))
    if isinstance(data_type, t.ArrayType):
        element = data_type.elementType
        return f.when(
            value.isNotNull(),
            f.concat_ws("", f.transform(value, lambda each: _format_value(each, element))),
        )
    if isinstance(data_type, t.MapType):
        key, item = data_type.keyType, data_type.valueType
        return f.when(
            value.isNotNull(),
            f.concat_ws(
                "",
                f.transform(
                    f.array_sort(f.map_keys(value)),
                    lambda each: f.concat(
                        _format_value(each, key), _format_value(value[each], item)
                    ),
                ),
            ),
        )
    if isinstance(data_type, t.FractionalType) and not isinstance(data_type, t.DecimalType):
        return f.when(value.isNotNull(), f.xxhash64(value.cast("double")).cast("string"))
    if isinstance(data_type, t.DecimalType):
        # Spark formats small decimals as 1.2E-7. The digits before the E are the unscaled value.
        digits = f.translate(f.substring_index(value.cast("string"), "E", 1), ".", "")
        return digits.cast("decimal(38, 0)").cast("string")
    if isinstance(data_type, t.DateType):
        return f.unix_date(value).cast("string")
    if isinstance(data_type, t.TimestampType):
        return f.unix_micros(value).cast("string")
    if isinstance(data_type, t.BinaryType):
        return f.hex(value)
    return value.cast("string")
