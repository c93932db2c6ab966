"""Parses the messages of a Singer tap, and builds the state from which the tap resumes.

A tap's state covers all earlier records in all streams.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from loader.connectors.subprocess.connector_state import (
    ConnectorState,
    find_oldest_shared,
    find_streams_behind,
)
from loader.connectors.subprocess.json_values import decode
from loader.connectors.subprocess.log_relay import (
    is_broken_message,
    is_untyped_record,
    truncate_nesting,
)
from loader.connectors.subprocess.message_reader import MessageReader
from loader.errors import TableError
from loader.spec.redaction import excerpt

_KNOWN = {"bookmarks", "currently_syncing"}


class SingerMessages:
    """Parses the messages of a tap during a read.

    Args:
        keys: maps each stream to the primary key of its table.
        aliases: maps each name that messages may use for a stream to the stream in the catalog.
    """

    def __init__(
        self,
        keys: Mapping[Hashable, tuple[str, ...]],
        aliases: Mapping[str, str],
    ) -> None:
        self._aliases = aliases
        self._keys = keys

    def handle_line(self, line: bytes, reader: MessageReader) -> None:
        is_deep = False
        try:
            try:
                message = decode(line.decode())
            except RecursionError:
                is_deep, message = True, decode(truncate_nesting(line).decode())
        except (ValueError, RecursionError):
            if is_broken_message(line):
                raise _build_broken_error(line, reader) from None
            message = None
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "RECORD":
            self._handle_record(message, line, reader, is_deep)
        elif is_deep and kind != "STATE":
            raise _build_broken_error(line, reader)
        elif kind == "STATE":
            if "value" not in message:
                raise _build_broken_error(line, reader)
            reader.add_state("STATE", None, message["value"], is_deep)
        elif kind == "SCHEMA":
            self._check_schema(message, reader)
        elif kind == "BATCH":
            raise TableError(
                "the tap sends its records in files (BATCH messages), which are not supported",
                where=f"source {reader.source}",
                remedy="Remove `batch_config` from the tap's configuration",
            )
        elif is_untyped_record(message, line):
            raise _build_broken_error(line, reader)
        elif kind is None and line.strip():
            reader.log.relay("INFO", line.decode("utf-8", "replace").strip())

    def _handle_record(
        self, message: Mapping[str, Any], line: bytes, reader: MessageReader, is_deep: bool
    ) -> None:
        name, record = message.get("stream"), message.get("record")
        if not isinstance(name, str) or not isinstance(record, dict):
            raise _build_broken_error(line, reader)
        key = self._aliases.get(name)
        if key is None:
            raise TableError(
                f"the tap sent a record of {excerpt(name, 80)!r}, which matches no "
                "stream or several streams of its catalog: its state would cover a record that no "
                "table receives",
                where=f"source {reader.source}",
                remedy="Add the stream to the tap's catalog (option `catalog`), or exclude it in "
                "the tap's `config`",
            )
        reader.add_record(key, record, is_deep)

    def _check_schema(self, message: Mapping[str, Any], reader: MessageReader) -> None:
        name, keys = message.get("stream"), message.get("key_properties") or []
        planned = self._keys.get(self._aliases.get(name) if isinstance(name, str) else None)
        if planned is not None and keys and set(keys) != set(planned):
            reader.log.warn_once(
                f"the tap's records have the key {', '.join(keys)}, but its catalog declares "
                f"{', '.join(planned) or 'none'}: set table_options.{name}.primary_key"
            )


def _build_broken_error(line: bytes, reader: MessageReader) -> TableError:
    return TableError(
        f"the program sent a message that cannot be read: {reader.quote_line(line)}",
        where=f"source {reader.source}",
        remedy="The records before the last state are appended; run again. If the error remains, "
        "report it to the tap's authors",
    )


def build_state_input(
    states: Mapping[Hashable, ConnectorState | None],
    aliases: Mapping[str, str],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the content of the tap's state file, or None if all streams start over.

    The state of most taps contains a bookmark for each stream. A stream starts over if its bookmark
    is removed. If a bookmark cannot be removed, all streams start over, because the tap would
    otherwise skip the stream's records that the state covers.

    Args:
        states: maps a stream to its stored state, or to None if the stream starts over.
        aliases: maps each name that the tap may use for a stream to the stream in the catalog.
        warn: called with a warning if one stream makes all streams start over.
    """
    oldest = find_oldest_shared([state for state in states.values() if state is not None])
    if oldest is None:
        return None
    restarted = find_streams_behind(states, oldest)
    if not restarted:
        return oldest.value
    value = _remove_streams(oldest.value, restarted, aliases)
    if value is None:
        names = ", ".join(sorted(map(str, restarted)))
        warn(
            f"{names} starts over, but the tap has one state for all streams: all records are read "
            "again, and records without a primary key are appended again"
        )
    return value


def _remove_streams(value: Any, restarted: set[Hashable], aliases: Mapping[str, str]) -> Any | None:
    """Removes streams' bookmarks from a state. Returns None if this is impossible."""
    marks = value.get("bookmarks") if isinstance(value, dict) else None
    if (
        not isinstance(marks, dict)
        or not value.keys() <= _KNOWN
        or not marks.keys() <= aliases.keys()
    ):
        return None
    remaining = {name: mark for name, mark in marks.items() if aliases[name] not in restarted}
    # Omits `currently_syncing`, because a tap may start with the stream that it names, and skip the
    # streams before it.
    return {"bookmarks": remaining}
