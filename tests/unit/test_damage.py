"""Which exceptions mean a damaged table. Tests with damaged files are in tests/maintenance/."""

from __future__ import annotations

import pytest

from loader.corruption import detect_damage
from loader.errors import sentence

_DATA = "00001-1-7132a8fe-9874-4b78-ac9c-d124f4ec86d6-00001.parquet"
_MANIFEST = "83f8419c-efad-49c0-9f95-5cff52253ff6-m0.avro"
_WRITING = "\n\tat org.apache.iceberg.spark.source.SparkWrite$DataWriter.write"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "Metadata file for version 11 is missing under /wh/raw/orders/metadata",
            "its metadata cannot be read: v11.metadata.json is damaged or missing",
        ),
        (
            f"File /wh/raw/orders/metadata/{_MANIFEST} does not exist",
            f"its metadata cannot be read: {_MANIFEST} is damaged or missing",
        ),
        (
            "java.io.EOFException: null\n\tat org.apache.iceberg.avro.AvroIterable.newFileReader",
            "its metadata cannot be read: a manifest is damaged or missing",
        ),
        (
            f"file:/wh/raw/orders/data/{_DATA} is not a Parquet file (length is too low: 0)",
            f"its data cannot be read: {_DATA} is damaged or missing",
        ),
        (
            "footer is too large: 4247762216to be read\n\tat org.apache.iceberg.parquet.ReadConf",
            "its data cannot be read: a Parquet file is damaged or missing",
        ),
    ],
)
def test_a_lost_file_is_damage(text: str, reported: str) -> None:
    found = detect_damage(text, "table raw.orders")
    assert found is not None
    assert found.what == reported


@pytest.mark.parametrize(
    "text",
    [
        "File file:/in/data/orders.parquet does not exist",
        f"file:/in/data/orders.parquet is not a Parquet file (length is too low: 0){_WRITING}",
        f"footer is too large: 4247762216to be read{_WRITING}",
        f"java.io.EOFException{_WRITING}",
        "File file:/in/orders-m0.avro does not exist",
        "table raw.orders does not exist",
    ],
)
def test_a_missing_file_of_a_source_is_not_damage(text: str) -> None:
    assert detect_damage(text, "table shop.orders") is None


def test_the_message_of_javas_exception_is_shown() -> None:
    text = (
        "An error occurred while calling o70.sql.\n"
        ": org.apache.iceberg.exceptions.RuntimeIOException: Failed to read file: /wh/v1.json\n"
        "\tat org.apache.iceberg.TableMetadataParser.read"
    )
    assert sentence(RuntimeError(text)) == "Failed to read file: /wh/v1.json"
    assert sentence(RuntimeError("[NO_TABLE] There is none.")) == "There is none"
