"""Reads messages of small Python programs, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loader.connectors.airbyte.messages import AirbyteMessages
from loader.connectors.subprocess.json_schema import build_columns
from loader.connectors.subprocess.message_reader import MessageReader
from loader.connectors.subprocess.program import Program
from loader.connectors.subprocess.record_spool import Limits, RecordSpool, SpooledBatch, Stream
from loader.connectors.subprocess.spool_format import RecordLayout

KEY = (None, "items")
SCHEMA = {"properties": {"id": {"type": "integer"}, "text": {"type": "string"}}}


def record_of(number: int) -> dict[str, Any]:
    """Returns a record of the stream `items`."""
    data = {"id": number, "text": "x" * 100}
    return {"type": "RECORD", "record": {"stream": "items", "data": data, "emitted_at": 1}}


def state_of(number: int) -> dict[str, Any]:
    """Returns a state of the stream `items`."""
    stream = {"stream_descriptor": {"name": "items"}, "stream_state": {"n": number}}
    return {"type": "STATE", "state": {"type": "STREAM", "stream": stream}}


def opened(
    folder: Path,
    script: str,
    limits: Limits | None,
    warned: list[str],
    key: tuple[str | None, str] = KEY,
    more: tuple[tuple[str | None, str], ...] = (),
    silence: float = 30.0,
    renew: Callable[[Any], bool] = lambda _: False,
    before: Callable[[], None] = lambda: None,
) -> tuple[MessageReader, Callable[[], SpooledBatch]]:
    """Starts a read of a Python program.

    Args:
        key: the stream that is read.
        more: other streams of the catalog.
        before: called before text of the program is shown.
    """
    layout = RecordLayout("api.items", build_columns(SCHEMA, {}), ("id",), None)
    stream = Stream("api.items", RecordSpool(folder, 0, layout, "id", limits), limits is not None)

    def start(hear: Callable[[str], None]) -> Program:
        return Program([sys.executable, "-c", script], folder, {}, 1 << 20, hear)

    found = MessageReader(
        start,
        AirbyteMessages(renew, {key, *more}),
        {key: stream},
        "airbyte",
        0,
        silence,
        lambda _table, text: warned.append(text),
        "api",
        before,
    )
    return found, lambda: found.next_batch(key, lambda: None)


def sends(*messages: dict[str, Any], then: str = "") -> str:
    """Returns a Python program that sends these messages."""
    lines = "\n".join(map(json.dumps, messages))
    return f"import sys, time\nprint({lines!r}, flush=True)\n{then}"


def log_line(level: str, text: str) -> dict[str, Any]:
    """Returns a log message of the connector."""
    return {"type": "LOG", "log": {"level": level, "message": text}}


def error_trace(text: str, **more: Any) -> dict[str, Any]:
    """Returns the protocol's message about an error."""
    return {"type": "TRACE", "trace": {"type": "ERROR", "error": {"message": text, **more}}}
