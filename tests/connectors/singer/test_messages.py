"""A record of a Singer tap is matched to its stream by any of its names, or fails the read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.singer.messages import SingerMessages
from loader.connectors.subprocess.json_schema import build_columns
from loader.connectors.subprocess.message_reader import MessageReader
from loader.connectors.subprocess.program import Program
from loader.connectors.subprocess.record_spool import Limits, RecordSpool, Stream
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.errors import TableError
from tests.connectors.subprocess.program_reads import (
    SCHEMA,
    sends,
)


def test_a_failed_full_read_warns_that_the_shared_state_advances(
    tmp_path: Path,
) -> None:
    """The tap may send a stream's records only once, and the state of the other stream advances."""
    records = [{"type": "RECORD", "stream": name, "record": {"id": 1}} for name in ("a", "b")]
    warned: list[str] = []
    delivery = _start_tap(tmp_path, sends(*records, {"type": "STATE", "value": {}}), warned)
    assert delivery.next_batch("a", lambda: None).is_last
    assert delivery.next_batch("b", lambda: None).is_last
    delivery.abandon("a")
    assert warned == []
    delivery.abandon("b")
    assert "the state of the other tables advances without it" in warned[0]
    delivery.close()


def test_records_of_a_tap_find_their_stream(tmp_path: Path) -> None:
    """The read fails if no stream matches: the next state would cover the lost record."""

    def record(name: str, number: int) -> dict[str, Any]:
        return {"type": "RECORD", "stream": name, "record": {"id": number}}

    state = {"type": "STATE", "value": {}}
    warned: list[str] = []
    sent = [record("a", 1), record("public-a", 2), record("c", 9), state]
    delivery = _start_tap(tmp_path, sends(*sent, record("new", 3), state), warned)
    piece = delivery.next_batch("a", lambda: None)
    assert (piece.counts.rows, piece.is_last) == (2, False)
    with pytest.raises(TableError, match="a record of 'new', which matches no stream"):
        delivery.next_batch("a", lambda: None)
    delivery.close()
    assert warned == ["records of c, which this run did not request, are ignored"]


def _start_tap(folder: Path, script: str, warned: list[str]) -> MessageReader:
    """Starts a tap with the streams `a`, which has a state, and `b`, which is read whole."""
    streams = {}
    for number, name in enumerate("ab"):
        layout = RecordLayout(f"tap.{name}", build_columns(SCHEMA, {}), ("id",), None)
        limits = None if number else Limits(100)
        streams[name] = Stream(
            f"tap.{name}", RecordSpool(folder, number, layout, "id", limits), not number
        )
    return MessageReader(
        lambda hear: Program([sys.executable, "-c", script], folder, {}, 1 << 20, hear),
        SingerMessages({}, {"a": "a", "b": "b", "public-a": "a", "c": "c"}),
        dict(streams),
        "singer",
        0,
        30.0,
        lambda _table, text: warned.append(text),
        "tap",
        lambda: None,
    )
