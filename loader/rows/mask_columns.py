"""Masks columns in Spark.

The `hash` mask is HMAC-SHA-256. Spark shows a query's literals in plans, in the UI, in the event
log and in errors. A secret is therefore not a literal, but a column of a one-row DataFrame that is
joined to the rows. Plans do not show the contents of the DataFrame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.mask_values import ADDRESS, HASH, LOWER, REDACTED, UPPER
from loader.rows.version_order import quote_name

_BLOCK = 64
"""The block size of SHA-256 in bytes."""
_INNER, _OUTER = "_cq_mask_inner", "_cq_mask_outer"


def derive_secrets(masks: Mapping[str, str], key: bytes | None) -> dict[str, bytes]:
    """Returns the two blocks that HMAC derives from the key; empty if there is no `hash` mask."""
    if HASH not in masks.values():
        return {}
    assert key is not None
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return {_INNER: bytes(b ^ 0x36 for b in block), _OUTER: bytes(b ^ 0x5C for b in block)}


def add_secrets(rows: DataFrame, secrets: Mapping[str, bytes]) -> DataFrame:
    """Adds a binary column for each secret, with the secret in every row."""
    if not secrets:
        return rows
    session: Any = rows.sparkSession
    jvm = session._jvm
    values = session.sparkContext._gateway.new_array(jvm.Object, len(secrets))
    for position, secret in enumerate(secrets.values()):
        values[position] = bytearray(secret)
    schema = t.StructType([t.StructField(name, t.BinaryType(), False) for name in secrets])
    java_rows = jvm.java.util.ArrayList()
    java_rows.add(jvm.org.apache.spark.sql.RowFactory.create(values))
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    frame = DataFrame(session._jsparkSession.createDataFrame(java_rows, java_schema), session)
    # With a broadcast join, the partitions keep their row order.
    return rows.crossJoin(f.broadcast(frame))


def mask_rows(rows: DataFrame, masks: Mapping[str, str], key: bytes | None) -> DataFrame:
    """Returns the rows with masked values. Masks for columns that the rows lack are ignored."""
    names, schema = rows.columns, rows.schema
    used = {name: masks[name] for name in names if name in masks}
    rows = add_secrets(rows, derive_secrets(used, key))
    columns = {
        name: mask_column(f.col(quote_name(name)), schema[name].dataType, mask).alias(name)
        for name, mask in used.items()
    }
    return rows.select(*(columns.get(name, f.col(quote_name(name))) for name in names))


def mask_column(value: Column, data_type: t.DataType, mask: str) -> Column:
    """Returns the masked value. Nulls stay null.

    For the `hash` mask, the rows must have the columns that :func:`add_secrets` adds.
    """
    kind, _, count = mask.partition(": ")
    if kind == "null":
        return f.lit(None).cast(data_type)
    if kind == "redact":
        masked = f.lit(REDACTED)
    elif kind == "year":
        return f.year(value)
    elif kind == "domain":
        domain = f.translate(f.regexp_extract(value, rf"{ADDRESS}\z", 1), UPPER, LOWER)
        masked = f.when(domain == "", f.lit(REDACTED)).otherwise(domain)
    elif kind == "last":
        text = f.rtrim(value)
        is_longer = f.length(text) > int(count)
        last = f.concat(f.lit(REDACTED), f.substring(text, -int(count), int(count)))
        masked = f.when(is_longer, last).otherwise(f.lit(REDACTED))
    else:
        text = value if isinstance(data_type, t.BinaryType) else value.cast("string").cast("binary")
        inner = f.unhex(f.sha2(f.concat(f.col(_INNER), text), 256))
        masked = f.sha2(f.concat(f.col(_OUTER), inner), 256)
    return f.when(value.isNotNull(), masked)
