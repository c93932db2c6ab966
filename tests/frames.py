"""Creates small DataFrames in the JVM: PySpark would start a Python process for their rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def frame_of(spark: SparkSession, rows: Iterable[Sequence[Any]], columns: str) -> DataFrame:
    """Returns rows as a DataFrame with one partition, in the given order.

    Args:
        columns: names and types, as in DDL; only types that JSON can represent.
    """
    names = [column.split()[0] for column in columns.split(",")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=_encode)
    reported = f.from_json(f.lit(text), f"array<struct<{columns}>>", {"mode": "FAILFAST"})
    return spark.range(0, 1, 1, 1).select(f.inline(reported))


def _encode(value: Any) -> str:
    assert isinstance(value, dt.datetime), f"JSON cannot tell {value!r}"
    return value.isoformat()
