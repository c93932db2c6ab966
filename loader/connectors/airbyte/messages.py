"""Understands the messages of the Airbyte protocol.

Lines of text are log lines, as the protocol says; but a record or state that arrives broken would
be a gap, so it is an error. Some log messages report that records are missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from loader.connectors.airbyte.catalog import ByName, Key, find_meant_stream, group_by_name, key_of
from loader.connectors.subprocess.json_values import decode, encode
from loader.connectors.subprocess.log_relay import (
    flatten,
    is_broken,
    is_error,
    is_fatal,
    is_misnamed,
    strip_trace,
)
from loader.connectors.subprocess.message_reader import Delivery
from loader.errors import TableError
from loader.spec.redaction import excerpt

LEFT_OUT = (
    "Cannot decode/parse line ",  # JsonLineParser: a record
    "Response cannot be parsed from XML: ",  # XmlDecoder: a page, and all behind it
    "older than the last time it was synced. This is unexpected. Skipping the file.",
    "Unable to fetch permissions. stream=",  # PermissionsFileBasedStream: a record
)
"""Warnings of `airbyte-cdk` that it leaves something out without being asked to."""

_EMPTY = re.compile(r"parse line b'(?:\s|\\[rnt])*' as JSON|response\.text='', ")
"""The text of these warnings about a blank line or an empty answer: nothing is missing."""

_VITAL = ("RECORD", "STATE", "DELETE", "TRACE")


def is_gap_report(level: str, text: str) -> bool:
    """Returns whether a log message of a connector means that its streams may lack records."""
    left_out = any(part in text for part in LEFT_OUT) and not _EMPTY.search(text)
    return is_error(level) or left_out


class AirbyteMessages:
    """Understands a connector's messages while it reads.

    Args:
        renew: keeps what a control message renews; returns whether it could.
        streams: all that the connector's catalog has.
        strict: whether a stream lacks something if the connector's log says so, and it goes on.
    """

    def __init__(
        self,
        renew: Callable[[Mapping[str, Any]], bool],
        streams: Collection[Hashable],
        strict: bool = True,
    ) -> None:
        self._renew = renew
        self._strict = strict
        self._streams = group_by_name(streams)
        self._asked: ByName | None = None
        self._meant: dict[Key, Key] = {}

    def hear(self, line: bytes, delivery: Delivery) -> None:
        message = parse_line(line, delivery.source, delivery.log.before)
        if message is None:
            text = line.decode("utf-8", "replace").strip()
            if text:
                delivery.log.relay("INFO", text)
            return
        kind = message.get("type")
        if kind == "RECORD":
            record = message["record"]
            key = (record.get("namespace") or None, record["stream"])
            if key not in delivery.streams:
                key = self._find_stream(key, delivery)
            if message["is_deep"]:
                delivery.refuse_depth(key)
            else:
                delivery.add_record(key, record["data"])
        elif kind == "STATE":
            self._state(message["state"], delivery, message["is_deep"])
        elif kind == "DELETE":  # not Airbyte's: CloudQuery's bridge sends it
            delivery.add_deletion((None, message["delete"]["stream"]), message["delete"]["where"])
        elif kind == "TRACE":
            self._trace(message["trace"], delivery)
        elif kind == "LOG":
            log = message.get("log")
            said = log if isinstance(log, dict) else {"message": log}
            level, text = str(said.get("level")), str(said.get("message"))
            delivery.log.relay(level, text)
            if is_fatal(level):
                delivery.note_fatal(strip_trace(text))
            if self._strict and is_gap_report(level, text):
                delivery.note_doubt(strip_trace(text))
        elif kind == "CONTROL" and not self._renew(_object(message, "control")):
            delivery.log.warn_once(
                "it has renewed its configuration, and needs the new one at its next run (it may "
                "be a token): name a file where the loader can keep it, `renewed_config`"
            )

    def _find_stream(self, key: Key, delivery: Delivery) -> Key:
        """Returns the stream of a record.

        Raises:
            TableError: if it is not clear which: a state would cover a record that no table gets.
        """
        if key not in self._meant:
            found = self._find(key, delivery)
            if found is None:
                name = excerpt(".".join(filter(None, key)), 80)
                raise TableError(
                    f"the connector sent a record of {name!r}, and its catalog has no such stream, "
                    "or several: a state would cover a record that no table gets",
                    where=f"source {delivery.source}",
                    remedy="Correct the catalog (`catalog` names a file), or report it to the "
                    "connector's authors",
                )
            self._meant[key] = found
        return self._meant[key]

    def _key(self, message: Mapping[str, Any], delivery: Delivery) -> Key:
        key = key_of(_object(message, "stream_descriptor"))
        return self._find(key, delivery) or key

    def _find(self, key: Key, delivery: Delivery) -> Key | None:
        if self._asked is None:
            self._asked = group_by_name(delivery.streams)
        return find_meant_stream(key, self._asked, self._streams)

    def _state(self, state: Mapping[str, Any], delivery: Delivery, is_deep: bool) -> None:
        kind = state.get("type") or "LEGACY"
        count = _object(state, "sourceStats").get("recordCount")
        if isinstance(count, bool) or not isinstance(count, int | float):
            count = None
        part = {"STREAM": "stream", "GLOBAL": "global"}.get(kind, "data")
        key = self._key(state["stream"], delivery) if kind == "STREAM" else None
        try:
            text = None if is_deep else encode(state.get(part))
        except RecursionError:
            text = None
        if text is None:
            delivery.refuse_deep_state(key)
        else:
            delivery.add_state("LEGACY" if part == "data" else kind, key, text, count)

    def _trace(self, trace: Mapping[str, Any], delivery: Delivery) -> None:
        if trace.get("type") == "STREAM_STATUS":
            status = _object(trace, "stream_status")
            key = self._key(status, delivery)
            if status.get("status") == "COMPLETE":
                delivery.note_complete(key)
            elif status.get("status") == "INCOMPLETE":
                delivery.note_incomplete(key)
            elif status.get("status") in ("STARTED", "RUNNING"):
                delivery.note_begin(key)
        elif trace.get("type") == "ERROR":
            error = _object(trace, "error")
            named = error.get("stream_descriptor")
            delivery.note_failure(
                describe_error(error), self._key(error, delivery) if named else None
            )


def parse_line(line: bytes, source: str, before: Callable[[], None]) -> dict[str, Any] | None:
    """Returns a line's message; None if it is a log line.

    Of one that is nested too deeply to be read, the outer part is there; `is_deep` says so.

    Args:
        before: called before the line is shown.

    Raises:
        TableError: if it is a broken message.
    """
    message, broken = _read(line)
    if broken:
        before()
        raise TableError(
            "the program sent a message that cannot be read: "
            f"{excerpt(line.decode('utf-8', 'replace'), 120)!r}",
            where=f"source {source}",
            remedy="Rows up to its last state are appended; run again. If it stays, report it to "
            "the connector's authors",
        )
    return message


def _read(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Returns a line's message, and whether it is a broken one."""
    is_deep = False
    try:
        try:
            message = decode(line.decode())
        except RecursionError:
            is_deep, message = True, decode(flatten(line).decode())
    except (ValueError, RecursionError):
        return None, is_broken(line)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        return None, is_misnamed(message, line)
    kind = message["type"]
    body = message.get(kind.lower())
    message["is_deep"] = is_deep
    if kind == "RECORD":
        broken = not (
            isinstance(body, dict)
            and isinstance(body.get("stream"), str)
            and isinstance(body.get("data"), dict)
            and isinstance(body.get("namespace"), str | None)
        )
    elif is_deep and kind not in (*_VITAL, "LOG"):
        broken = is_broken(line)
    else:
        broken = is_misnamed(message, line) or (kind in _VITAL and not isinstance(body, dict))
    return message, broken or (kind == "STATE" and not _is_state(message["state"]))


def _is_state(state: Mapping[str, Any]) -> bool:
    kind = state.get("type")
    if kind == "STREAM":
        stream = _object(state, "stream")
        return isinstance(_object(stream, "stream_descriptor").get("name"), str)
    return kind != "GLOBAL" or isinstance(state.get("global"), dict)


def _object(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns an object of a message; an empty one if it has none."""
    found = message.get(name)
    return found if isinstance(found, dict) else {}


def describe_error(error: Mapping[str, Any]) -> str:
    """Returns the error text from a trace message."""
    message = str(error.get("message") or "").strip()
    inner = str(error.get("internal_message") or "").strip()
    if not inner or inner in message:
        return message or "it does not say why"
    return f"{message.rstrip('.')} ({inner})" if message else inner
