"""A mask has the same result in Python, where connectors' records are masked, and in Spark."""

from __future__ import annotations

import datetime as dt
import hmac
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import Column
from loader.connectors.subprocess.json_values import make_converter
from loader.connectors.subprocess.record_masks import RecordMasks
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.rows.mask_values import make_mask
from loader.sources.interface import REST_COLUMN, SourceTable, TableRef
from loader.sources.masked_source import mask_rows
from loader.sources.masked_table import MaskedTable, mask_table

KEY = b"a secret of at least 16 bytes"
SEPARATORS = " \t\n\r\x0b\x0c\x85\u2028\u00a0\u3000"
TEXTS = st.text(
    st.one_of(
        st.sampled_from(f"aZ@@..İΣßé😀<>,;:()[]\"'{SEPARATORS}"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=12,
)
ADDRESSES = st.builds("{}{}@{}.{}{}".format, *([TEXTS] * 5)) | TEXTS
DATES = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)).map(dt.date.isoformat)
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(dt.datetime.isoformat)
BIGINTS = st.integers(-(2**63), 2**63 - 1)
LONG = t.DecimalType(38, 0)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1) | st.sampled_from(["-0", "1E+3", "7.00"])
ANY = ("redact", "null")
CASES: dict[t.DataType, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    t.StringType(): (ADDRESSES, ("hash", "domain", "last: 1", "last: 4", *ANY)),
    t.LongType(): (BIGINTS, ("hash", *ANY)),
    t.ShortType(): (st.integers(-(2**15), 2**15 - 1), ("hash",)),
    LONG: (DECIMALS, ("hash", *ANY)),
    t.DateType(): (DATES, ("hash", "year", *ANY)),
    t.TimestampType(): (TIMES, ("year", *ANY)),
    t.TimestampNTZType(): (TIMES, ("year", *ANY)),
    t.DoubleType(): (st.floats(allow_nan=False, allow_infinity=False), ANY),
    t.BooleanType(): (st.booleans(), ANY),
}


def _mask_table(schema: t.StructType, masks: dict[str, str]) -> MaskedTable:
    table = SourceTable(TableRef("t"), schema)
    return mask_table(table, masks, masks, KEY)


KINDS = [(data_type, mask) for data_type, (_, masks) in CASES.items() for mask in masks]
MASKS = {f"c{number}": kind for number, kind in enumerate(KINDS)}
"""A column for each combination of a type and one of its masks."""

ROW = st.fixed_dictionaries(
    {data_type.simpleString(): values | st.none() for data_type, (values, _) in CASES.items()}
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ROW, min_size=5, max_size=60))
def test_records_of_connectors_are_masked_like_rows(
    spark: SparkSession, tmp_path: Path, values: list[dict[str, Any]]
) -> None:
    columns = [Column("n", t.LongType(), make_converter(t.LongType()))]
    for name, (data_type, _) in MASKS.items():
        columns.append(Column(name, data_type, make_converter(data_type)))
    plain = RecordLayout("t", columns, (), None)
    table = _mask_table(plain.schema, {name: mask for name, (_, mask) in MASKS.items()})
    masked = RecordLayout("t", columns, (), None, RecordMasks.of_table(table))
    frames = []
    for number, layout in enumerate((plain, masked)):
        path = tmp_path / f"{number}.jsonl"
        records = (
            {"n": n, **{name: row[kind.simpleString()] for name, (kind, _) in MASKS.items()}}
            for n, row in enumerate(values)
        )
        path.write_bytes(b"".join(layout.encode_record(record)[0] for record in records))
        frames.append(layout.read_rows(spark, path))
    for name in MASKS:
        assert frames[1].schema[name].dataType == table.schema[name].dataType
    by_spark = _key_by_number(mask_rows(frames[0], table))
    for row in by_spark.values():  # values that do not fit their columns: `***`, or omitted
        left = {name: "***" for name in row[REST_COLUMN] if MASKS[name][1] != "null"}
        row[REST_COLUMN] = left
    assert _key_by_number(frames[1]) == by_spark
    assert len(by_spark) == len(values)


def _key_by_number(rows: DataFrame) -> dict[int, dict[str, Any]]:
    """Returns the rows, keyed by their numbers, with the rest column parsed from JSON."""
    found = {row["n"]: row.asDict() for row in rows.collect()}
    for row in found.values():
        row[REST_COLUMN] = json.loads(row[REST_COLUMN] or "{}")
    return found


def test_values_of_other_types_have_the_hash_of_their_text(spark: SparkSession) -> None:
    values = [b"\x00\xff", "é", 7, Decimal(7), dt.date(980, 1, 2)]
    texts = [b"\x00\xff", "é".encode(), b"7", b"7", b"0980-01-02"]
    expected = [hmac.new(KEY, text, "sha256").hexdigest() for text in texts]
    assert [make_mask("hash", KEY)(value) for value in values] == expected
    schema = t.StructType([t.StructField("value", t.BinaryType())])
    rows = spark.createDataFrame([(b"\x00\xff",)], schema)
    assert mask_rows(rows, _mask_table(schema, {"value": "hash"})).first() == (expected[0],)
