"""Parses the messages of the Airbyte protocol.

Lines that are not JSON are treated as log lines. However, a line that looks like a damaged message
is an error, because it may contain a record. Some log messages report that records are missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from loader.connectors.airbyte.catalog import Key, KeysByName, group_by_name, key_of, resolve_stream
from loader.connectors.subprocess.json_values import decode
from loader.connectors.subprocess.log_relay import (
    is_broken_message,
    is_error,
    is_fatal,
    is_untyped_record,
    strip_trace,
    truncate_nesting,
)
from loader.connectors.subprocess.message_reader import MessageReader
from loader.errors import TableError
from loader.spec.redaction import excerpt

GAP_REPORTS = (
    "Cannot decode/parse line ",  # JsonLineParser skips a record
    "Response cannot be parsed from XML: ",  # XmlDecoder skips a page and all later pages
    "older than the last time it was synced. This is unexpected. Skipping the file.",
    "Unable to fetch permissions. stream=",  # PermissionsFileBasedStream skips a record
)
"""Warnings of `airbyte-cdk` about data that it skips without being configured to do so."""

_EMPTY = re.compile(r"parse line b'(?:\s|\\[rnt])*' as JSON|response\.text='', ")
"""Matches warnings that concern only blank lines or empty responses, so nothing is lost."""

_DATA_TYPES = ("RECORD", "STATE", "DELETE", "TRACE")


def is_gap_report(level: str, text: str) -> bool:
    skips_data = any(part in text for part in GAP_REPORTS) and not _EMPTY.search(text)
    return is_error(level) or skips_data


class AirbyteMessages:
    """Parses the messages of a connector during a read.

    Args:
        store_update: stores the configuration in a control message. Returns False if the spec sets
            no file for it.
        is_strict: whether streams fail if a log message reports that records may be missing.
    """

    def __init__(
        self,
        store_update: Callable[[Mapping[str, Any]], bool],
        streams: Collection[Hashable],
        is_strict: bool = True,
    ) -> None:
        self._store_update = store_update
        self._is_strict = is_strict
        self._streams = group_by_name(streams)
        self._requested: KeysByName | None = None
        self._resolved: dict[Key, Key] = {}

    def handle_line(self, line: bytes, reader: MessageReader) -> None:
        message = parse_line(line, reader.source, reader.log.before_output, reader.quote_line)
        if message is None:
            text = line.decode("utf-8", "replace").strip()
            if text:
                reader.log.relay("INFO", text)
            return
        kind = message.get("type")
        if kind == "RECORD":
            record = message["record"]
            key = (record.get("namespace") or None, record["stream"])
            if key not in reader.streams:
                key = self._find_stream(key, reader)
            reader.add_record(key, record["data"], message["is_deep"])
        elif kind == "STATE":
            self._handle_state(message["state"], reader, message["is_deep"])
        elif kind == "DELETE":  # an extension of the protocol; only CloudQuery's bridge sends it
            reader.add_deletion((None, message["delete"]["stream"]), message["delete"]["where"])
        elif kind == "TRACE":
            self._handle_trace(message["trace"], reader)
        elif kind == "LOG":
            log = message.get("log")
            entry = log if isinstance(log, dict) else {"message": log}
            level, text = str(entry.get("level")), str(entry.get("message"))
            reader.log.relay(level, text)
            if is_fatal(level):
                reader.note_fatal(strip_trace(text))
            if self._is_strict and is_gap_report(level, text):
                reader.note_possible_gap(strip_trace(text))
        elif kind == "CONTROL" and not self._store_update(_get_object(message, "control")):
            reader.log.warn_once(
                "the connector has refreshed its configuration (perhaps a token), and needs the "
                "new values in the next run: set `renewed_config`, a file in which the loader "
                "stores them"
            )

    def _find_stream(self, key: Key, reader: MessageReader) -> Key:
        """Returns the stream that a record belongs to.

        Raises:
            TableError: if no stream or several streams match. Otherwise a state could cover a
                record that no table receives.
        """
        if key not in self._resolved:
            match = self._resolve(key, reader)
            if match is None:
                name = excerpt(".".join(filter(None, key)), 80)
                raise TableError(
                    f"the connector sent a record of {name!r}, which matches no stream or several "
                    "streams of its catalog: a state would cover a record that no table receives",
                    where=f"source {reader.source}",
                    remedy="Correct the catalog (option `catalog`), or report the problem to the "
                    "connector's authors",
                )
            self._resolved[key] = match
        return self._resolved[key]

    def _resolve_key(self, message: Mapping[str, Any], reader: MessageReader) -> Key:
        key = key_of(_get_object(message, "stream_descriptor"))
        return self._resolve(key, reader) or key

    def _resolve(self, key: Key, reader: MessageReader) -> Key | None:
        if self._requested is None:
            self._requested = group_by_name(reader.streams)
        return resolve_stream(key, self._requested, self._streams)

    def _handle_state(self, state: Mapping[str, Any], reader: MessageReader, is_deep: bool) -> None:
        kind = state.get("type") or "LEGACY"
        count = _get_object(state, "sourceStats").get("recordCount")
        if isinstance(count, bool) or not isinstance(count, int | float):
            count = None
        part = {"STREAM": "stream", "GLOBAL": "global"}.get(kind, "data")
        key = self._resolve_key(state["stream"], reader) if kind == "STREAM" else None
        kind = "LEGACY" if part == "data" else kind
        reader.add_state(kind, key, state.get(part), is_deep, count)

    def _handle_trace(self, trace: Mapping[str, Any], reader: MessageReader) -> None:
        if trace.get("type") == "STREAM_STATUS":
            status = _get_object(trace, "stream_status")
            key = self._resolve_key(status, reader)
            if status.get("status") == "COMPLETE":
                reader.note_complete(key)
            elif status.get("status") == "INCOMPLETE":
                reader.note_incomplete(key)
            elif status.get("status") in ("STARTED", "RUNNING"):
                reader.note_begin(key)
        elif trace.get("type") == "ERROR":
            error = _get_object(trace, "error")
            descriptor = error.get("stream_descriptor")
            reader.note_failure(
                describe_error(error), self._resolve_key(error, reader) if descriptor else None
            )


def _quote(line: bytes) -> str:
    return repr(excerpt(line.decode("utf-8", "replace"), 120))


def parse_line(
    line: bytes,
    source: str,
    before_output: Callable[[], None],
    quote: Callable[[bytes], str] = _quote,
) -> dict[str, Any] | None:
    """Returns the message in a line, or None if it is a log line.

    If the message is nested too deeply to be parsed, returns only its outer levels, with `is_deep`
    set to true.

    Args:
        before_output: called before an error quotes the line.
        quote: returns the start of a damaged message, for the error.

    Raises:
        TableError: if the line is a damaged message.
    """
    message, is_broken = _parse(line)
    if is_broken:
        before_output()
        raise TableError(
            f"the program sent a message that cannot be read: {quote(line)}",
            where=f"source {source}",
            remedy="The records before the last state are appended; run again. If the error "
            "remains, report it to the connector's authors",
        )
    return message


def _parse(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Returns the message in a line, if any, and whether the line is a damaged message."""
    is_deep = False
    try:
        try:
            message = decode(line.decode())
        except RecursionError:
            is_deep, message = True, decode(truncate_nesting(line).decode())
    except (ValueError, RecursionError):
        return None, is_broken_message(line)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        return None, is_untyped_record(message, line)
    kind = message["type"]
    body = message.get(kind.lower())
    message["is_deep"] = is_deep
    if kind == "RECORD":
        is_broken = not (
            isinstance(body, dict)
            and isinstance(body.get("stream"), str)
            and isinstance(body.get("data"), dict)
            and isinstance(body.get("namespace"), str | None)
        )
    elif is_deep and kind not in (*_DATA_TYPES, "LOG"):
        is_broken = is_broken_message(line)
    else:
        is_broken = is_untyped_record(message, line) or (
            kind in _DATA_TYPES and not isinstance(body, dict)
        )
    return message, is_broken or (kind == "STATE" and not _is_valid_state(message["state"]))


def _is_valid_state(state: Mapping[str, Any]) -> bool:
    kind = state.get("type")
    if kind == "STREAM":
        stream = _get_object(state, "stream")
        return isinstance(_get_object(stream, "stream_descriptor").get("name"), str)
    return kind != "GLOBAL" or isinstance(state.get("global"), dict)


def _get_object(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = message.get(name)
    return value if isinstance(value, dict) else {}


def describe_error(error: Mapping[str, Any]) -> str:
    message = str(error.get("message") or "").strip()
    inner = str(error.get("internal_message") or "").strip()
    if not inner or inner in message:
        return message or "the connector gave no reason"
    return f"{message.rstrip('.')} ({inner})" if message else inner
