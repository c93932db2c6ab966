"""A mask has the same result in Python, for records of connectors, and in Spark."""

from __future__ import annotations

import datetime as dt
import hmac
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import Column
from loader.connectors.subprocess.json_values import make_converter
from loader.connectors.subprocess.record_masks import RecordMasks
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.rows.mask_values import make_mask
from loader.sources.interface import SourceTable, TableRef
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


def _mask(schema: t.StructType, mask: str) -> MaskedTable:
    table = SourceTable(TableRef("t"), schema)
    return mask_table(table, {"value": mask}, {"value": mask}, KEY)


@pytest.mark.parametrize(
    ("data_type", "mask"),
    [(data_type, mask) for data_type, (_, masks) in CASES.items() for mask in masks],
    ids=lambda each: each if isinstance(each, str) else each.simpleString(),
)
def test_records_of_connectors_are_masked_like_rows(
    spark: SparkSession, tmp_path: Path, data_type: t.DataType, mask: str
) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(CASES[data_type][0] | st.none(), max_size=150))
    def compare(values: list[Any]) -> None:
        columns = [
            Column("n", t.LongType(), make_converter(t.LongType())),
            Column("value", data_type, make_converter(data_type)),
        ]
        plain = RecordLayout("t", columns, (), None)
        table = _mask(plain.schema, mask)
        masked = RecordLayout("t", columns, (), None, RecordMasks.of_table(table))
        rows = []
        for number, layout in enumerate((plain, masked)):
            path = tmp_path / f"{number}.jsonl"
            records = ({"n": n, "value": value} for n, value in enumerate(values))
            path.write_bytes(b"".join(layout.encode_record(record)[0] for record in records))
            rows.append(layout.read_rows(spark, path))
        assert rows[1].schema["value"].dataType == table.schema["value"].dataType
        by_spark = [
            # a value that does not fit the column
            (n, value, rest and None if mask == "null" else rest and '{"value":"***"}')
            for n, value, rest in mask_rows(rows[0], table).collect()
        ]
        assert sorted(rows[1].collect()) == sorted(by_spark)

    compare()


def test_values_of_other_types_have_the_hash_of_their_text(spark: SparkSession) -> None:
    values = [b"\x00\xff", "é", 7, Decimal(7), dt.date(980, 1, 2)]
    texts = [b"\x00\xff", "é".encode(), b"7", b"7", b"0980-01-02"]
    expected = [hmac.new(KEY, text, "sha256").hexdigest() for text in texts]
    assert [make_mask("hash", KEY)(value) for value in values] == expected
    schema = t.StructType([t.StructField("value", t.BinaryType())])
    rows = spark.createDataFrame([(b"\x00\xff",)], schema)
    assert mask_rows(rows, _mask(schema, "hash")).first() == (expected[0],)
