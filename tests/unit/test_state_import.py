"""`loader state import` reads the lines of an export, and names the number of an invalid line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from loader.errors import LoaderError
from loader.state.export import read_export

LINE: dict[str, Any] = {"key": "shop.orders", "value": '{"batch": 1}', "version": 7}


def file(content: bytes) -> io.TextIOWrapper:
    raw = io.BytesIO(content)
    raw.name = "state.jsonl"
    return io.TextIOWrapper(raw, encoding="utf-8-sig")


def refused(content: bytes | dict[str, Any]) -> str:
    given = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(LoaderError) as raised:
        read_export(file(given))
    return str(raised.value)


def test_an_export_is_read_with_or_without_a_byte_order_mark() -> None:
    line = json.dumps(LINE).encode()
    for content in (line, b"\xef\xbb\xbf" + line):
        assert [row.version for row in read_export(file(content))["shop.orders"]] == [7]


@pytest.mark.parametrize(
    "content", [bytes(range(256)), "état".encode("utf-16"), json.dumps(LINE).encode() + b"\n\xff"]
)
def test_a_file_that_is_not_utf_8_is_refused(content: bytes) -> None:
    assert refused(content) == (
        "state.jsonl: not UTF-8 text. Choose a file that `loader state export` wrote"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"[1, 2]",
        b"\0" * 100,
        b'{"key": "shop.orders", "value": "{}", "version": Infinity}',
        b'{"key": "shop.orders", "value": "{}", "version": NaN}',
        {**LINE, "version": 2**70},
        {**LINE, "version": -5},
        {**LINE, "version": 1.5},
        {**LINE, "version": True},
        {**LINE, "key": 3},
    ],
)
def test_an_invalid_line_is_refused_by_number(content: bytes | dict[str, Any]) -> None:
    assert refused(content).startswith(
        "state.jsonl, line 1: this line was not written by `loader state export`. Write each "
        "line as {"
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"batch": 10**30}), "its batch has 31 digits"),
        (json.dumps({"batch": 1, "generation": 10**30}), "its generation has 31 digits"),
    ],
)
def test_a_value_that_is_not_a_state_is_refused(value: str, why: str) -> None:
    reported = refused({**LINE, "value": value})
    assert reported.startswith("state.jsonl, line 1: the stored state ")
    assert why in reported
    assert reported.endswith("Delete the line")
