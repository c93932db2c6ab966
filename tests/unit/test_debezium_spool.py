"""Debezium's process: what it reads from the log, and the spool files that it writes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from loader.cdc.debezium import spool
from loader.cdc.debezium.program import Reader, ReadRequest
from loader.cdc.debezium.spool import ChangeSpool, DebeziumLog, Placeholder

TABLES = ["public.orders", "public.lines"]


def _change(key: int, op: str = "c", **more: str) -> str:
    if op == "t":
        return _text({"before": None, "after": None, "op": "t"})
    return _text({"before": None, "after": {"id": key, **more}, "op": op})


def _text(change: dict[str, Any]) -> str:
    return json.dumps(change, separators=(",", ":"))


def _reader(folder: Path) -> Reader:
    return Reader(
        ReadRequest(str(folder), TABLES, "here", 900, {"database.password": "x"}, "missing")
    )


def _transaction(reader: Reader, number: int, end: int, *changes: tuple[str, str]) -> None:
    reader.read_record(
        "s.transaction", json.dumps({"status": "BEGIN", "id": f"{number}:{end - 1}"})
    )
    for table, text in changes:
        reader.read_record(f"s.{table}", text)
    reader.read_record("s.transaction", json.dumps({"status": "END", "id": f"{number}:{end}"}))


def _marker(text: str) -> tuple[str, str]:
    content = base64.b64encode(text.encode()).decode()
    return "message", json.dumps({"op": "m", "message": {"content": content}})


def test_reading_ends_at_its_own_marker(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    _transaction(reader, 7, 100, ("public.orders", _change(1)), ("public.others", _change(9)))
    _transaction(reader, 5, 200, _marker("of another run"), ("public.lines", _change(2)))
    _transaction(reader, 8, 300, ("public.orders", _change(3)), _marker("here"))
    assert reader.finished.is_set()
    _transaction(reader, 9, 400, ("public.orders", _change(4)))
    reader.spool.close()
    found = ChangeSpool(tmp_path, TABLES, DebeziumLog())
    assert [found.read_end(n) for n in range(len(found))] == [100, 200, 300]
    assert found.end == 300
    lines = [
        line.split("\t")
        for file in found.get_folder("public.orders").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert [line[:3] for line in lines] == [["1", "0", "7"], ["3", "2", "8"]]
    assert (found.count_changes("public.orders"), found.count_changes("public.lines")) == (2, 1)


def test_reading_ends_if_it_starts_after_the_marker(tmp_path: Path) -> None:
    """The marker's transaction ends by position 900, so a later end means that it was passed."""
    reader = _reader(tmp_path)
    _transaction(reader, 7, 900, ("public.orders", _change(1)))
    assert not reader.finished.is_set()
    _transaction(reader, 8, 901, ("public.orders", _change(2)))
    assert reader.finished.is_set()
    assert reader.is_past_marker


def test_transactions_are_found_by_their_end_positions(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    for number, end in enumerate((100, 200, 300)):
        _transaction(reader, number, end, ("public.orders", _change(number)))
    reader.spool.close()
    found = ChangeSpool(tmp_path, TABLES, DebeziumLog())
    assert [found.find_first_after(p) for p in (0, 99, 100, 101, 300, 400)] == [0, 0, 1, 1, 3, 3]


def test_truncates_and_omitted_values_are_counted(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    hidden = Placeholder("missing")
    _transaction(
        reader,
        1,
        100,
        ("public.orders", _change(0, "t")),
        ("public.orders", _change(1, note="missing")),
        ("public.orders", _change(1, raw=hidden.binary)),
        ("public.orders", _text({"after": {"id": 2, "note": '{"op":"t"}', "op": "t"}, "op": "u"})),
        ("public.lines", _change(1)),
    )
    reader.spool.close()
    found = ChangeSpool(tmp_path, TABLES, DebeziumLog())
    assert [found.count_truncates(table) for table in TABLES] == [1, 0]
    assert [found.count_omitted(table) for table in TABLES] == [2, 0]


def test_tables_with_one_topic_are_distinguished_by_their_changes(tmp_path: Path) -> None:
    tables = ["public.a b", "public.a_b"]
    reader = Reader(ReadRequest(str(tmp_path), tables, "here", 900, {}, "missing", has_source=True))
    changes = [
        _text({"source": {"schema": "public", "table": name}, "after": {}, "op": op})
        for name, op in (("a b", "c"), ("a_b", "c"), ("a b", "t"))
    ]
    _transaction(reader, 1, 100, *(("public.a_b", change) for change in changes))
    reader.spool.close()
    found = ChangeSpool(tmp_path, tables, DebeziumLog())
    assert [found.count_changes(table) for table in tables] == [2, 1]
    assert [found.count_truncates(table) for table in tables] == [1, 0]


def test_files_are_split_and_only_the_user_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES", 100)
    reader = _reader(tmp_path)
    for number in range(1, 6):
        _transaction(reader, number, number * 10, ("public.orders", _change(number, s="\u2028\r")))
    reader.spool.close()
    found = ChangeSpool(tmp_path, TABLES, DebeziumLog())
    files = sorted(found.get_folder("public.orders").iterdir())
    assert len(files) > 1
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    lines = [line for file in files for line in file.read_bytes().split(b"\n") if line]
    assert [int(line.split(b"\t")[0]) for line in lines] == [1, 2, 3, 4, 5]


def test_a_request_is_one_line() -> None:
    order = ReadRequest("/tmp/x", TABLES, "here", 900, {"a": "line\nbreak"}, "missing")
    assert order.to_line().count("\n") == 1
    assert ReadRequest.from_line(order.to_line()) == order


def test_changes_of_tables_with_masks_are_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "BLOCK_BYTES", 100)
    blocks: list[bytes] = []

    def encrypt(block: bytes) -> bytes:
        blocks.append(block)
        return block[::-1]

    writer = spool.SpoolWriter(tmp_path, TABLES, "missing", ["public.orders"], encrypt)
    for number in range(9):
        for table in TABLES:
            writer.write_change(table, 7, _change(number, note="missing"))
    writer.end_transaction(100)
    writer.close()
    found = ChangeSpool(tmp_path, TABLES, DebeziumLog())
    [encrypted], [plain] = ([*found.get_folder(table).iterdir()] for table in TABLES)
    read = [base64.b64decode(line)[::-1] for line in encrypted.read_bytes().splitlines()]
    assert read == blocks
    assert len(blocks) > 2
    changes = [line.split(b"\t")[3] for line in b"".join(read).splitlines()]
    assert changes == [line.split(b"\t")[3] for line in plain.read_bytes().splitlines()]
    assert {found.count_omitted(table) for table in TABLES} == {9}


def test_replaced_values_are_known_from_debeziums_warnings() -> None:
    log = DebeziumLog()
    text = (
        "WARN TableSchemaBuilder: No converter found for column public.a.b c of type _xml. The "
        "column will not be part of change events for that table.\n"
        "WARN TableSchemaBuilder: Failed to properly convert data value for 'public.t.mood' of "
        "type _mood\n\tat io.debezium\n"
        "WARN PostgresValueConverter: Unexpected value for JDBC type -5 and column n int8(19, 0) "
        "DEFAULT VALUE NULL: class=Long[]\n"
        "WARN PostgresValueConverter: Unexpected JDBC BINARY value for field raw-element with "
        "schema Schema{BYTES}: class=class [[B, value=[[0, -1], null]\n"
        "WARN PostgresValueConverter: Failed to convert value '[1, from column 'x' from column "
        "'at-element timestamp(29, 6) DEFAULT VALUE NULL' to 'Field{name=at-element}'\n"
    )
    for line in text.splitlines():
        log.add_line(line)
    found = log
    assert found.has_replaced_values("public.a", "b c")
    assert found.has_replaced_values("public.t", "mood")
    assert found.has_replaced_values("any.table", "n")
    assert not found.has_replaced_values("public.a", "mood")
    assert not any(
        found.has_replaced_values("public.t", name) for name in ("raw", "at", "moo", "x")
    )
    assert found.has_replaced_elements("raw")
    assert found.has_replaced_elements("at")
    assert not found.has_replaced_elements("n")
    assert not DebeziumLog().has_replaced_values("public.t", "n")
