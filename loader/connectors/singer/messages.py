"""Understands the messages of a Singer tap, and gives it back the state that it sent.

A state covers all records before it, of all streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from loader.connectors.subprocess.connector_state import (
    ConnectorState,
    find_oldest_shared,
    find_streams_behind,
)
from loader.connectors.subprocess.json_values import decode, encode
from loader.connectors.subprocess.log_relay import flatten, is_broken, is_misnamed
from loader.connectors.subprocess.message_reader import Delivery
from loader.errors import TableError
from loader.spec.redaction import excerpt

_KNOWN = {"bookmarks", "currently_syncing"}


class SingerMessages:
    """Understands a tap's messages while it reads.

    Args:
        keys: by stream, the primary key that the run's plan has.
        aliases: the streams of the catalog, by what the messages may call them.
    """

    def __init__(
        self,
        keys: Mapping[Hashable, tuple[str, ...]],
        aliases: Mapping[str, str],
    ) -> None:
        self._aliases = aliases
        self._keys = keys

    def hear(self, line: bytes, delivery: Delivery) -> None:
        deep = False
        try:
            try:
                message = decode(line.decode())
            except RecursionError:
                deep, message = True, decode(flatten(line).decode())
        except (ValueError, RecursionError):
            if is_broken(line):
                raise _broken(line, delivery.source) from None
            message = None
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "RECORD":
            self._record(message, line, delivery, deep)
        elif deep and kind != "STATE":
            raise _broken(line, delivery.source)
        elif kind == "STATE":
            if "value" not in message:
                raise _broken(line, delivery.source)
            try:
                text = None if deep else encode(message["value"])
            except RecursionError:
                text = None
            if text is None:
                delivery.refuse_deep_state(None)
            else:
                delivery.add_state("STATE", None, text)
        elif kind == "SCHEMA":
            self._schema(message, delivery)
        elif kind == "BATCH":
            raise TableError(
                "the tap sends its records in files (BATCH messages), which are not supported",
                where=f"source {delivery.source}",
                remedy="Remove `batch_config` from the tap's configuration",
            )
        elif is_misnamed(message, line):
            raise _broken(line, delivery.source)
        elif kind is None and line.strip():
            delivery.log.relay("INFO", line.decode("utf-8", "replace").strip())

    def _record(
        self, message: Mapping[str, Any], line: bytes, delivery: Delivery, deep: bool
    ) -> None:
        name, record = message.get("stream"), message.get("record")
        if not isinstance(name, str) or not isinstance(record, dict):
            raise _broken(line, delivery.source)
        key = self._aliases.get(name)
        if key is None:
            raise TableError(
                f"the tap sent a record of {excerpt(name, 80)!r}, and its catalog has no such "
                "stream, or several: its state would cover a record that no table gets",
                where=f"source {delivery.source}",
                remedy="Add the stream to the tap's catalog (`catalog` names a file), or leave it "
                "out in the tap's configuration",
            )
        if deep:
            delivery.refuse_depth(key)
        else:
            delivery.add_record(key, record)

    def _schema(self, message: Mapping[str, Any], delivery: Delivery) -> None:
        """A schema only confirms the catalog's: fields that are new are kept in `_rest`."""
        name, keys = message.get("stream"), message.get("key_properties") or []
        planned = self._keys.get(self._aliases.get(name) if isinstance(name, str) else None)
        if planned is not None and keys and set(keys) != set(planned):
            delivery.log.warn_once(
                f"its records have the key {', '.join(keys)}, and its catalog said "
                f"{', '.join(planned) or 'nothing'}: set table_options.{name}.primary_key"
            )


def _broken(line: bytes, source: str) -> TableError:
    begins = excerpt(line.decode("utf-8", "replace"), 120)
    return TableError(
        f"the program sent a message that cannot be read: {begins!r}",
        where=f"source {source}",
        remedy="Rows up to its last state are appended; run again. If it stays, report it to the "
        "tap's authors",
    )


def build_state_input(
    memories: Mapping[Hashable, ConnectorState | None],
    aliases: Mapping[str, str],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the tap's state file; None if there is no state to resume from.

    Most taps keep a stream's bookmark under its id, so a stream can begin from scratch alone. If
    this one does not, all do: with a state that covers it, the stream would miss records.

    Args:
        memories: by stream; None for one that begins from scratch.
        aliases: the streams of the catalog, by the tap's possible names for them.
        warn: gets a warning if a stream cannot begin from scratch alone.
    """
    known = find_oldest_shared([memory for memory in memories.values() if memory is not None])
    if known is None:
        return None
    restarted = find_streams_behind(memories, known)
    if not restarted:
        return known.value
    value = _without(known.value, restarted, aliases)
    if value is None:
        names = ", ".join(sorted(map(str, restarted)))
        warn(
            f"{names} starts over, and the tap has one state for all streams: everything is read "
            "again, and what has no primary key is appended again"
        )
    return value


def _without(value: Any, restarted: set[Hashable], aliases: Mapping[str, str]) -> Any | None:
    """Returns a state without some streams' bookmarks; None if it is not clear which they are."""
    marks = value.get("bookmarks") if isinstance(value, dict) else None
    if (
        not isinstance(marks, dict)
        or not value.keys() <= _KNOWN
        or not marks.keys() <= aliases.keys()
    ):
        return None
    kept = {name: mark for name, mark in marks.items() if aliases[name] not in restarted}
    return {"bookmarks": kept}  # a tap may leave out all streams before `currently_syncing`
