"""A hostile connector can fail its own streams, but not exhaust the loader's time or memory."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as t

from loader.connectors.airbyte.catalog import group_by_name, resolve_stream
from loader.connectors.airbyte.catalog import parse_catalog as airbyte_entries
from loader.connectors.singer.catalog import parse_catalog as singer_entries
from loader.connectors.singer.messages import SingerMessages
from loader.connectors.subprocess import program
from loader.connectors.subprocess.connector_state import ConnectorState
from loader.connectors.subprocess.json_schema import Column, build_columns
from loader.connectors.subprocess.json_values import (
    ConversionError,
    decode,
    make_converter,
    make_key_converter,
)
from loader.connectors.subprocess.log_relay import truncate_nesting
from loader.connectors.subprocess.message_reader import MessageReader
from loader.connectors.subprocess.program import Program, read_answer
from loader.connectors.subprocess.record_spool import Limits
from loader.connectors.subprocess.source import CatalogEntry, ProgramOptions, ProgramSource
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.connectors.subprocess.supervisor import MAX_LOG_LINE
from loader.errors import LoaderError, StateError, TableError
from loader.sources.interface import Progress
from tests.connectors.subprocess.program_reads import opened, record_of, sends, state_of


def _nest_references(levels: int) -> dict[str, Any]:
    """Returns a schema in which each definition refers to the next one many times."""
    parts: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 9} for n in range(levels)
    }
    parts[f"d{levels}"] = {"type": "integer"}
    return {"definitions": parts, "properties": {"a": {"$ref": "#/definitions/d0"}}}


def test_nested_references_are_read_once() -> None:
    started = time.monotonic()
    [found] = build_columns(_nest_references(15), {})
    assert (found.type, time.monotonic() - started < 5) == (t.LongType(), True)


def test_a_long_chain_of_references_has_a_type() -> None:
    parts = {f"d{n}": {"$ref": f"#/definitions/d{n + 1}"} for n in range(5000)}
    schema = {
        "definitions": {**parts, "d5000": {"type": "boolean"}},
        "properties": {"a": {"$ref": "#/definitions/d0"}},
    }
    assert [column.type for column in build_columns(schema, {})] == [t.BooleanType()]


def test_an_exponential_schema_is_one_error() -> None:
    options = {"anyOf": [{"type": "string", "format": str(n)} for n in range(2000)]}
    schema = {
        "definitions": {"many": options},
        "properties": {f"c{n}": {"$ref": "#/definitions/many"} for n in range(2000)},
    }
    started = time.monotonic()
    with pytest.raises(TableError, match=r"api\.items: the JSON schema.*100,000") as refused:
        build_columns(schema, {}, where="table api.items")
    assert "columns" in refused.value.remedy
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": 5}}},
        {"properties": {"a": {"type": [["string"]], "anyOf": 7}}},
        {"properties": 5},
    ],
)
def test_an_invalid_schema_is_read_as_text(schema: dict[str, Any]) -> None:
    assert {column.type for column in build_columns(schema, {})} <= {t.StringType()}


def test_a_long_name_is_no_column() -> None:
    found = build_columns({"properties": {"a" * 255: {}, "b" * 20_000: {}}}, {})
    assert [len(column.name) for column in found] == [255]
    layout = RecordLayout("api.items", found, (), None)
    assert json.loads(layout.encode_record({"b" * 20_000: 1})[1]["r"]) == {"b" * 20_000: 1}


class _Listed(ProgramSource):
    """A source with a given catalog."""

    def __init__(self, names: list[str]) -> None:
        self.name = "api"
        self._names = names

    def list_entries(self, folder: Path) -> list[CatalogEntry]:
        return [CatalogEntry(name, name, {}, Progress.WHOLE, (), None, {}) for name in self._names]

    prepare_read: Any = None


_Listed.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def test_many_streams_are_listed_quickly() -> None:
    names = [f"s{n}" for n in range(100_000)]
    started = time.monotonic()
    assert len(_Listed(names).tables()) == 100_000
    assert time.monotonic() - started < 10
    with pytest.raises(TableError, match="two streams called s7"):
        _Listed([*names, "s7"]).tables()


def _answer(folder: Path, script: str, silence: float = 60.0) -> list[bytes]:
    return list(
        read_answer(
            lambda hear: Program([sys.executable, "-c", script], folder, {}, 1 << 20, hear),
            lambda line: line,
            (),
            silence,
            "source api",
        )
    )


def test_an_answer_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_MAX_ANSWER_BYTES", 1 << 20)
    with pytest.raises(TableError, match=r"source api: .*more than 1,048,576 bytes"):
        _answer(tmp_path, "while True: print('x' * 1000)")


def test_an_answer_that_never_comes_is_ended(tmp_path: Path) -> None:
    """The program prints something now and then, so it never counts as hung."""
    started = time.monotonic()
    with pytest.raises(TableError, match="has not answered for 4 seconds"):
        _answer(tmp_path, "import time\nwhile True: print('x', flush=True); time.sleep(.1)", 1.0)
    assert time.monotonic() - started < 30


def test_an_endless_line_on_standard_error_is_cut(tmp_path: Path) -> None:
    heard: list[str] = []
    script = (
        "import sys\nfor _ in range(2000): sys.stderr.write('x' * 10_000)\n"
        "sys.stderr.write('\\nafter\\n')"
    )
    tracemalloc.start()
    process = Program([sys.executable, "-c", script], tmp_path, {}, 64 << 20, heard.append)
    assert list(process.lines()) == []
    assert process.end() == 0
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(text) for text in heard] == [MAX_LOG_LINE + 1, len("after")]
    assert most < 10_000_000  # of 20 million
    assert process.last_log_line == "after"


DIGITS = "7" * 1_000_000
TIME = "2020-01-01T00:00:00." + "0" * 300_000


@pytest.mark.parametrize(
    "data_type",
    [
        t.LongType(),
        t.DoubleType(),
        t.DecimalType(38, 9),
        t.TimestampType(),
        t.DateType(),
        t.BooleanType(),
    ],
)
def test_endless_digits_fit_no_column(data_type: t.DataType) -> None:
    huge = [
        decode(DIGITS),
        decode(f"0.{DIGITS}"),
        decode("1e999999999"),
        DIGITS,
        TIME,
        "-" + DIGITS,
    ]
    started = time.monotonic()
    for value in huge:
        for convert in (
            make_converter(data_type),
            make_key_converter(data_type, make_converter(data_type)),
        ):
            if isinstance(data_type, t.DoubleType) and value is huge[1]:
                continue  # rounded, as every fraction is
            with pytest.raises(ConversionError):
                convert(value)
    assert time.monotonic() - started < 60


def test_a_number_of_a_million_digits_is_kept(tmp_path: Path) -> None:
    assert decode(DIGITS) == Decimal(DIGITS)
    assert decode(f"[-{DIGITS}, 5]") == [Decimal(f"-{DIGITS}"), 5]
    assert type(decode("5")) is int
    layout = RecordLayout(
        "api.items", (Column("id", t.LongType(), make_converter(t.LongType())),), (), ()
    )
    assert layout.encode_record({"id": decode(DIGITS)})[1] == {"r": f'{{"id":{DIGITS}}}'}


def _nest(depth: int) -> str:
    return '{"a":' * depth + "1.00000000000000000001" + "}" * depth


@pytest.mark.parametrize("depth", [400, 5_000, 100_000])
def test_a_deep_record_fails_its_stream_only(tmp_path: Path, depth: int) -> None:
    """Records that the previous state covers are kept; the program continues with other streams."""
    data = f'{{"id":2,"text":{_nest(depth)}}}'
    deep = f'{{"type":"RECORD","record":{{"stream":"items","data":{data}}}}}'
    (tmp_path / "deep").write_text(deep + "\n")
    script = sends(
        record_of(1), state_of(1), then=f"print(open({str(tmp_path / 'deep')!r}).read())"
    )
    script += "\n" + sends(record_of(3), state_of(3), then="open('done', 'w')")
    delivery, following = opened(tmp_path, script, Limits(1), [])
    with pytest.raises(LoaderError, match="nested") as refused:
        [following() for _ in range(9)]
    assert refused.value.where == "table api.items"
    assert "columns" in refused.value.remedy
    assert delivery._process is not None
    delivery._thread.join(30)
    delivery.close()
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("depth", [600, 100_000])
@pytest.mark.parametrize("kind", ["STREAM", "GLOBAL", "LEGACY"])
def test_a_deep_state_fails_what_it_covers_only(tmp_path: Path, depth: int, kind: str) -> None:
    """Records that the previous state covers are kept; streams that are read whole are complete."""
    states = {
        "STREAM": f'"stream":{{"stream_descriptor":{{"name":"items"}},"s":{_nest(depth)}}}',
        "GLOBAL": f'"global":{_nest(depth)}',
        "LEGACY": f'"data":{_nest(depth)}',
    }
    deep = f'{{"type":"STATE","state":{{"type":"{kind}",{states[kind]}}}}}'
    log = f'{{"type":"LOG","log":{{"level":"INFO","message":"well","more":{_nest(depth)}}}}}'
    (tmp_path / "deep").write_text(f"{log}\n{deep}\n")
    then = f"print(open({str(tmp_path / 'deep')!r}).read())"
    script = sends(record_of(1), state_of(1), then=then) + "\n" + sends(record_of(2))
    delivery, following = opened(tmp_path, script, Limits(1), [])
    assert following().counts.rows == 1
    with pytest.raises(TableError, match="state is nested too deeply") as refused:
        [following() for _ in range(9)]
    assert refused.value.where == "table api.items"
    delivery.close()
    whole, following = opened(tmp_path, script, None, [])
    assert following().counts.rows == 2
    whole.close()


def test_a_deep_state_of_a_tap_fails_what_it_covers_only() -> None:
    refused: list[Any] = []
    delivery: Any = MessageReader.__new__(MessageReader)
    delivery.source, delivery._refuse_deep_state = "api", refused.append
    for depth in (600, 100_000):
        line = f'{{"type":"STATE","value":{_nest(depth)}}}'
        SingerMessages({}, {"items": "items"}).handle_line(line.encode(), delivery)
    assert refused == [None, None]


def test_a_deep_state_that_was_stored_is_one_error() -> None:
    mark = {"protocol": "airbyte", "kind": "LEGACY", "shared": True, "number": 1}
    with pytest.raises(StateError, match="stored state cannot be read"):
        ConnectorState.from_mark({**mark, "state": _nest(100_000)}, "airbyte", "table api.items")


WRONG_STREAMS: tuple[dict[str, Any], ...] = (
    {"supported_sync_modes": 5},
    {"source_defined_primary_key": "x"},
    {"source_defined_primary_key": [5]},
    {"source_defined_primary_key": [[["x"]]]},
    {"namespace": 7},
    {"json_schema": []},
    {"default_cursor_field": 5},
    {"default_cursor_field": [["x"]]},
    {"source_defined_cursor": [1]},
    {"name": 5},
)
WRONG_TAPS: tuple[dict[str, Any], ...] = (
    {"metadata": 5},
    {"metadata": [5]},
    {"metadata": [{"breadcrumb": 5, "metadata": {}}]},
    {"metadata": [{"breadcrumb": ["properties", []], "metadata": {}}]},
    {"metadata": [{"breadcrumb": [], "metadata": 5}]},
    {"metadata": [{"breadcrumb": [], "metadata": {"table-key-properties": 5}}]},
    {"metadata": [{"breadcrumb": [], "metadata": {"valid-replication-keys": 5}}]},
    {"metadata": [{"breadcrumb": [], "metadata": {"replication-key": ["a"]}}]},
    {"key_properties": 7},
    {"key_properties": [["a"]]},
    {"replication_key": ["a"]},
    {"schema": []},
    {"tap_stream_id": []},
    {"stream": 5},
)


@pytest.mark.parametrize(
    ("read", "good", "wrong"),
    [
        *((airbyte_entries, {"name": "items"}, wrong) for wrong in WRONG_STREAMS),
        *((singer_entries, {"stream": "items"}, wrong) for wrong in WRONG_TAPS),
    ],
)
def test_a_wrong_kind_in_a_catalog_is_one_error(read: Any, good: Any, wrong: Any) -> None:
    def listed(*streams: Any) -> Any:
        return read({"streams": [*streams]}, "source api", lambda *_: None)

    assert [entry.name for entry in listed(good)] == ["items"]
    with pytest.raises(TableError, match=r"^source api: the .* catalog cannot be read") as refused:
        listed(good, {**good, **wrong})
    assert f"stream 2, {next(iter(wrong))}" in str(refused.value)
    for neither in (None, [], {"streams": 5}, {"streams": [5]}):
        with pytest.raises(TableError, match="catalog cannot be read"):
            read(neither, "source api", lambda *_: None)


def test_null_fields_of_a_catalog_are_accepted() -> None:
    """Connectors write null for fields that they do not know."""
    fields = ("namespace", "json_schema", "supported_sync_modes", "source_defined_cursor")
    fields += ("default_cursor_field", "source_defined_primary_key")
    stream = {"name": "items", **dict.fromkeys(fields)}
    assert airbyte_entries({"streams": [stream]}, "source api", lambda *_: None)
    about = {"breadcrumb": [], "metadata": {"table-key-properties": None}}
    tap = {"stream": "items", "key_properties": None, "schema": None, "metadata": [about]}
    assert singer_entries({"streams": [tap]}, "source api", lambda *_: None)


def test_streams_of_many_messages_are_resolved_quickly() -> None:
    """The messages lack the namespace that the catalog has."""
    streams = group_by_name(("shop", f"s{n}") for n in range(100_000))
    started = time.monotonic()
    found = [resolve_stream((None, f"s{n}"), {}, streams) for n in range(100_000)]
    assert found[7] == ("shop", "s7")
    assert time.monotonic() - started < 60


def test_options_of_many_streams_are_found_quickly() -> None:
    source = _Listed([])
    options = {f"S{n}": {"cursor_field": "c"} for n in range(30_000)}
    source.options = ProgramOptions.model_validate({"table_options": options})
    started = time.monotonic()
    assert {source.find_cursor(f"s{n}", ["c"]) for n in range(100_000)} == {"c", None}
    assert time.monotonic() - started < 60


def test_a_deep_record_of_a_tap_names_its_stream() -> None:
    said: list[tuple[str, Any]] = []
    delivery: Any = SimpleNamespace(
        source="api",
        add_record=lambda key, record, is_deep: said.append((key, is_deep)),
    )
    line = f'{{"type":"RECORD","stream":"items","record":{{"id":1,"a":{_nest(200_000)}}}}}'
    SingerMessages({}, {"items": "items"}).handle_line(line.encode(), delivery)
    assert said == [("items", True)]
    assert json.loads(truncate_nesting(b'{"a":[1,"[{\\"",{"b":[[2]]}],"c":{}}', 2)) == {
        "a": [1, '[{"', None],
        "c": {},
    }
