"""A JSON value is stored exactly in its column, or unchanged in `_rest`; without Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from loader.connectors.airbyte.catalog import build_state_input
from loader.connectors.airbyte.config import find_declared_secrets
from loader.connectors.airbyte.launch import AirbyteOptions, build_config
from loader.connectors.airbyte.messages import parse_line
from loader.connectors.singer.messages import SingerMessages
from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.json_schema import Column, build_columns, parse_type
from loader.connectors.subprocess.json_values import (
    ConversionError,
    decode,
    encode,
    format_value,
    make_converter,
    make_key_converter,
    to_text,
)
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.errors import StateError, TableError
from loader.spec.options import ColumnSelection


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": "number", "airbyte_type": "integer"}, "bigint"),
        ({"type": "number", "airbyte_type": "big_integer"}, "decimal(38,0)"),
        ({"type": "number", "airbyte_type": "big_number"}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        (
            {
                "type": "string",
                "format": "date-time",
                "airbyte_type": "timestamp_without_timezone",
            },
            "timestamp_ntz",
        ),
        ({"type": "string", "format": "time"}, "string"),
        ({"type": "string", "format": "uri"}, "string"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "string"),
        ({"type": ["string", "integer"]}, "string"),
        ({"type": ["string", "boolean", "null"]}, "string"),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, "timestamp"),
        (
            {"oneOf": [{"type": "string", "format": "date"}, {"type": "string"}]},
            "string",
        ),
        ({"$ref": "#/definitions/money"}, "double"),
        ({"$ref": "#/definitions/loop"}, "string"),
        ({"$ref": "elsewhere.json"}, "string"),
        ({"type": "null"}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": "file"}, "string"),
    ],
)
def test_types_of_json_schemas(schema: Any, expected: str) -> None:
    root = {
        "definitions": {
            "money": {"type": "number"},
            "loop": {"$ref": "#/definitions/loop"},
        }
    }
    assert parse_type(schema, root).simpleString() == expected


def test_columns_of_a_schema() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in ("id", "ID", "secret_1", "x")}}
    types = {"x": t.StringType(), "more": t.DateType()}
    found = build_columns(schema, types, ColumnSelection(exclude=("secret_*",)))
    shown = {column.name: column.type.simpleString() for column in found}
    assert shown == {"id": "bigint", "x": "string", "more": "date"}
    names = ("k\u0131s", "kis", "\u212a", "k", "stra\u00dfe", "STRASSE")
    alike = {"properties": {name: {} for name in names}}
    assert [column.name for column in build_columns(alike, {})] == [
        "k\u0131s",
        "\u212a",
        "stra\u00dfe",
        "STRASSE",
    ]
    assert build_columns({}, {}) == ()
    assert build_columns({"properties": None}, {}) == ()


FITS: list[tuple[t.DataType, Any, Any]] = [
    (t.LongType(), 5, 5),
    (t.LongType(), "5", 5),
    (t.LongType(), -5.0, -5),
    (t.LongType(), -(2**63), -(2**63)),
    (t.IntegerType(), 2**31 - 1, 2**31 - 1),
    (t.DoubleType(), 5, 5.0),
    (t.DoubleType(), "1.5e3", 1500.0),
    (t.DoubleType(), Decimal("0.10000000000000001"), 0.1),
    (t.LongType(), Decimal("9007199254740993.0"), 2**53 + 1),
    (t.StringType(), Decimal("12345678901234567890.123456789"), "12345678901234567890.123456789"),
    (t.StringType(), {"b": 1, "a": [Decimal("1E+400"), 0.5]}, '{"a":[1E+400,0.5],"b":1}'),
    (t.StringType(), ["\ud800é"], '["\\ud800é"]'),
    (t.DoubleType(), 2**60, float(2**60)),
    (t.BooleanType(), "true", True),
    (t.DecimalType(38, 0), 10**37 + 1, str(10**37 + 1)),
    (t.DecimalType(10, 2), "19.99", "19.99"),
    (t.DecimalType(10, 2), 5, "5.00"),
    (t.DecimalType(10, 2), 19.99, "19.99"),
    (t.DateType(), "1970-01-02", 1),
    (t.DateType(), "2024-02-29T00:00:00", 19782),
    (t.TimestampType(), "1970-01-01T00:00:00.0000019Z", 1),
    (t.TimestampType(), "1970-01-01 01:00:00+01:00", 0),
    (t.TimestampType(), "1970-01-01T00:00:00-0130", 5_400_000_000),
    (t.TimestampType(), "1969-12-31T23:59:59.9999999Z", -1),
    (t.TimestampType(), "1970-01-01", 0),
    (t.TimestampType(), "1970-01-01 00:00 UTC", 0),
    (t.TimestampNTZType(), "1970-01-01T00:00:01", 1_000_000),
    (t.StringType(), "text", "text"),
    (t.StringType(), 5, "5"),
    (t.StringType(), {"b": [None, "é"], "a": 1}, '{"a":1,"b":[null,"é"]}'),
]
MISFITS: list[tuple[t.DataType, Any]] = [
    (t.LongType(), True),
    (t.LongType(), 1.5),
    (t.LongType(), 2.0**60),
    (t.LongType(), 2**63),
    (t.LongType(), "five"),
    (t.LongType(), "٣"),
    (t.LongType(), [1]),
    (t.IntegerType(), 2**31),
    (t.DoubleType(), 2**60 + 1),
    (t.DoubleType(), 10**400),
    (t.DoubleType(), "NaN"),
    (t.DoubleType(), True),
    (t.DoubleType(), "9007199254740993"),
    (t.DoubleType(), Decimal("9007199254740993.0")),
    (t.DoubleType(), "1e999"),
    (t.DoubleType(), Decimal("1e-400")),
    (t.FloatType(), 1e39),
    (t.LongType(), Decimal("1e999999999")),
    (t.StringType(), "half \ud800"),
    (t.DecimalType(10, 2), "1_000"),
    (t.DecimalType(10, 2), "٣"),
    (t.DateType(), "2025-06-30T23:59:60Z"),
    (t.BooleanType(), 1),
    (t.BooleanType(), []),
    (t.DecimalType(10, 2), "1.999"),
    (t.DecimalType(10, 2), "123456789"),
    (t.DecimalType(10, 2), "NaN"),
    (t.DecimalType(10, 2), float("inf")),
    (t.DateType(), "2024-02-30"),
    (t.DateType(), "2024-02-29T01:00:00"),
    (t.DateType(), 20240229),
    (t.TimestampType(), ""),
    (t.TimestampType(), "0000-00-00 00:00:00"),
    (t.TimestampType(), "10000-01-01"),
    (t.TimestampType(), "9999-12-31T23:59:59-23:00"),
    (t.TimestampType(), "yesterday"),
    (t.TimestampType(), 1700000000),
]


@pytest.mark.parametrize(("data_type", "value", "expected"), FITS)
def test_values_that_fit(data_type: t.DataType, value: Any, expected: Any) -> None:
    found = make_converter(data_type)(value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("data_type", "value"), MISFITS)
def test_values_that_do_not_fit(data_type: t.DataType, value: Any) -> None:
    with pytest.raises(ConversionError):
        make_converter(data_type)(value)


@pytest.mark.parametrize(
    ("data_type", "one", "other"),
    [
        (t.LongType(), 7, "007"),
        (t.DoubleType(), Decimal("0.1000000000000000000001"), Decimal("0.1000000000000000000002")),
        (t.DoubleType(), "9007199254740993", "9007199254740995"),
        (t.DecimalType(10, 0), "7", " 7"),
        (t.FloatType(), 0.1, 0.10000000001),
        (t.TimestampType(), "2025-01-01T00:00:00.1234567", "2025-01-01T00:00:00.1234568"),
        (t.TimestampNTZType(), "2025-01-01 00:00:00", "2024-12-31 23:59:60"),
        (t.DateType(), "2025-01-01", "2025-01-01 00:00:00.0000001"),
        (t.StringType(), "\ud800", "\ud801"),
    ],
)
def test_keys_that_differ_do_not_become_one(data_type: t.DataType, one: Any, other: Any) -> None:
    convert = make_key_converter(data_type, make_converter(data_type))
    found = set()
    for value in (one, other):
        with suppress(ConversionError):
            found.add(convert(value))
    assert len(found) < 2
    layout = RecordLayout(
        "api.items", (Column("id", data_type, make_converter(data_type)),), ("id",), ()
    )
    with pytest.raises(TableError, match="could replace another record"):
        layout.encode_record({"id": other})


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (t.LongType(), "7"),
        (t.LongType(), 7.0),
        (t.DoubleType(), 0.1),
        (t.DoubleType(), "1.50"),
        (t.DecimalType(10, 2), "1.50"),
        (t.DecimalType(10, 2), 0),
        (t.TimestampType(), "2025-01-01T00:00:00.1234560Z"),
        (t.DateType(), "2025-01-01"),
        (t.StringType(), " 007 "),
    ],
)
def test_keys_that_fit(data_type: t.DataType, value: Any) -> None:
    convert = make_converter(data_type)
    assert make_key_converter(data_type, convert)(value) == convert(value)


def test_numbers_keep_their_digits() -> None:
    for text in (
        '{"at": 1735689600.123456789123, "b": [1e400, -1.5], "a": 1}',
        "[0.1, 1.0, 12345678901234567890]",
    ):
        kept = decode(text)
        assert decode(encode(kept)) == kept
        state = ConnectorState("airbyte", "STREAM", False, 3, encode(kept))
        assert state.value == kept
    assert encode(decode('{"b": 1735689600.123456789123, "a": 1e400}')) == (
        '{"b":1735689600.123456789123,"a":1E+400}'
    )
    assert type(decode("0.1")) is float


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_any_value_fits_or_is_a_conversion_error(value: Any) -> None:
    """No other error is raised, and values that fit can be written as JSON."""
    for data_type, _, _ in FITS:
        if value is None:
            continue
        try:
            found = make_converter(data_type)(value)
        except ConversionError:
            continue
        assert json.loads(json.dumps(found)) == found
        if isinstance(data_type, t.DecimalType):
            assert -Decimal(found).as_tuple().exponent == data_type.scale  # type: ignore[operator]


def test_cursors_are_shown_as_text() -> None:
    for data_type, text in {
        t.TimestampType(): "2025-01-01 00:00:00.000001",
        t.DateType(): "2025-01-01",
        t.LongType(): "-7",
        t.StringType(): "z",
    }.items():
        assert format_value(make_converter(data_type)(text), data_type) == text


def test_a_state_comes_back_as_it_was() -> None:
    large = json.dumps({"partitions": [{"id": n, "at": None} for n in range(5000)]})
    for text in ('{"b": 1, "a": {"é": [1.5, null]}}', large):
        state = ConnectorState("airbyte", "STREAM", False, 3, text)
        mark = json.loads(json.dumps(state.to_mark()))
        assert ConnectorState.from_mark(mark, "airbyte", "") == state
    assert len(json.dumps(state.to_mark())) < len(large) / 5
    newer = ConnectorState("airbyte", "STREAM", False, 9, text)
    assert newer.to_mark(previous=mark) is mark
    for wrong in ({**mark, "protocol": "singer"}, {**mark, "packed": "?"}, {"a": 1}):
        with pytest.raises(StateError, match="--full-refresh"):
            ConnectorState.from_mark(wrong, "airbyte", "table a.b")


def test_the_state_that_a_connector_gets() -> None:
    def stream(name: str, number: int) -> ConnectorState:
        text = json.dumps({"stream_descriptor": {"name": name}, "stream_state": {"n": number}})
        return ConnectorState("airbyte", "STREAM", False, number, text)

    def every(number: int) -> ConnectorState:
        parts = [{"stream_descriptor": {"name": n}, "stream_state": number} for n in "ab"]
        text = json.dumps({"shared_state": {"lsn": number}, "stream_states": parts})
        return ConnectorState("airbyte", "GLOBAL", True, number, text)

    a, b = (None, "a"), (None, "b")
    warned: list[str] = []

    def given(one: ConnectorState | None, other: ConnectorState | None) -> Any:
        return build_state_input({a: one, b: other}, {a, b, (None, "c")}, warned.append)

    assert given(None, None) is None
    assert given(stream("a", 1), None) == [{"type": "STREAM", "stream": stream("a", 1).value}]
    [whole] = given(every(5), every(3))
    assert whole == {"type": "GLOBAL", "global": every(3).value}
    # the other stream has no state, or an older one of its own: its part is removed
    for older in (None, stream("b", 4)):
        [part] = given(every(5), older)
        names = [each["stream_descriptor"]["name"] for each in part["global"]["stream_states"]]
        assert names == ["a"]
        assert part["global"]["shared_state"] == {"lsn": 5}
    assert given(every(5), stream("b", 6)) == [{"type": "GLOBAL", "global": every(5).value}]
    legacy = ConnectorState("airbyte", "LEGACY", True, 1, '{"a": 1, "b": 2, "c": 3}')
    assert given(legacy, None) == {"a": 1, "c": 3}
    assert given(ConnectorState("airbyte", "LEGACY", True, 1, '{"a": 1}'), None) == {"a": 1}
    assert warned == []
    # a state that cannot be divided is not passed: the other stream would miss records
    opaque = ConnectorState("airbyte", "LEGACY", True, 1, '{"cursor": 1}')
    log = ConnectorState(
        "airbyte", "GLOBAL", True, 1, '{"shared_state": {"lsn": 1}, "stream_states": []}'
    )
    plugin = ConnectorState("cloudquery", "LEGACY", True, 1, legacy.text)
    for state in (opaque, log, plugin):
        assert given(state, None) is None
        assert warned.pop() == (
            "b starts over, but the connector has one state for all streams: all records "
            "are read again, and records without a primary key are appended again"
        )
    # a state may lack the namespace that the catalog has
    x, y, z = ("n", "a"), ("n", "b"), ("m", "b")
    [part] = build_state_input({x: every(5), y: None}, {x, y}, warned.append) or []
    [kept] = part["global"]["stream_states"]
    assert kept["stream_descriptor"] == {"name": "a"}
    assert build_state_input({x: every(5), y: None}, {x, y, z}, warned.append) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "RECORD", "record": {"stream": "a", "data": {"id": 1}',
        b'{"type": "RECORD"}',
        b'{"type": "RECORD", "record": {"stream": "a", "data": []}}',
        b'{"type": "RECORD", "record": {"data": {}}}',
        b'{"type": "STATE", "state": 5}',
        b'{"type": "STATE", "state": {"type": "STREAM"}}',
        b'{"type": "STATE", "state": {"type": "STREAM", "stream": {"stream_descriptor": []}}}',
        b'{"type": "STATE", "state": {"type": "GLOBAL"}}',
        b'{"type": "RECORD", "record": {"stream": "a", "data": {}, "namespace": {}}}',
        b'\x00{"type": "STATE", "state": {}}',
        b'{"stream": "a", "record": {"id": 2, "v": "abc',
        b' {"typ',
        b"{'type': 'RECORD', 'record': {'stream': 'a', 'data': {}}}",
        '\ufeff{"record": {"stream": "a"'.encode("utf-16"),
        '\ufeff{"record": {"stream": "a"'.encode(),
        b'{"record": {"stream": "a", "data": {}}}',
        b'{"type": "record", "record": {"stream": "a", "data": {}}}',
        b'[{"type": "RECORD", "record": {"stream": "a", "data": {}}}]',
        b'{"type": "RECORD", "record": {}}{"type": "RECORD", "record": {}}',
    ],
)
def test_a_broken_record_or_state_is_an_error(line: bytes) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        parse_line(line, "api", lambda: None)
    tap = line.replace(b'"data": {}', b'"stream": "a"')
    if b'"record"' in tap:
        with pytest.raises(TableError, match="cannot be read"):
            SingerMessages({}, {"a": "a"}).handle_line(tap, Mock(source="tap"))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"INFO",
        b"INFO the record {id: 5} of stream a",
        b"[1]",
        b"5",
        b"{}",
        b'{"type": 5}',
        b'{"level": "info", "state": "running"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_other_lines_are_logged(line: bytes) -> None:
    assert parse_line(line, "api", lambda: None) is None
    delivery = Mock(source="tap")
    SingerMessages({}, {"a": "a"}).handle_line(line, delivery)
    assert {call[0] for call in delivery.mock_calls} <= {"log.relay"}


def test_equal_values_have_equal_text() -> None:
    assert to_text({"a": 1, "b": {"d": 1.0, "c": None}}) == to_text(
        {"b": {"c": None, "d": 1.0}, "a": 1}
    )


def test_secrets_that_a_specification_declares() -> None:
    hidden = {"type": "string", "airbyte_secret": True}
    about = {
        "properties": {
            "pat": hidden,
            "start": {"type": "string"},
            "auth": {"oneOf": [{"properties": {"key": hidden}}, {"properties": {"user": {}}}]},
            "keys": {"type": "array", "items": hidden},
            "missing": hidden,
        }
    }
    config = {
        "pat": "p1",
        "start": "2025",
        "auth": {"key": {"deep": ["k1", True, None, 5]}, "user": "u"},
        "keys": ["a1", "a2"],
    }
    assert list(find_declared_secrets(about, config)) == ["p1", "k1", "5", "a1", "a2"]
    for odd in (None, [], "x", {"properties": 5}, {"properties": {"pat": 1}}):
        assert list(find_declared_secrets(odd, config)) == []


def test_a_manifests_times_stay_as_they_are_written(tmp_path: Path) -> None:
    """A connector gets its manifest as JSON, which has no type for times."""
    (tmp_path / "m.yaml").write_text("spec: {default: 2024-01-01, from: 2022-03-01T00:00:00Z}\n")
    given = build_config(AirbyteOptions(manifest="m.yaml"), tmp_path)
    reported = json.loads(encode(given))["__injected_declarative_manifest"]
    assert reported["spec"] == {"default": "2024-01-01", "from": "2022-03-01T00:00:00Z"}
