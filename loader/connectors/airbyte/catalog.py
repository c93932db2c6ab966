"""Reads Airbyte's catalogs, and writes what a read gets: streams, and the states to resume from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import Required, TypedDict

from loader.connectors.subprocess.connector_state import (
    ConnectorState,
    find_oldest_shared,
    find_streams_behind,
)
from loader.connectors.subprocess.json_schema import read_streams
from loader.connectors.subprocess.source import Entry
from loader.sources.interface import Progress, Request

Key = tuple[str | None, str]
"""A stream's namespace and name."""
ByName = Mapping[str, set[Key]]
"""Streams by their names."""


class _Stream(TypedDict, total=False):
    """A stream of a catalog, as far as it is read here."""

    name: Required[str]
    namespace: str | None
    json_schema: dict[str, Any] | None
    supported_sync_modes: list[Any] | None
    source_defined_cursor: bool | None
    default_cursor_field: list[str] | None
    source_defined_primary_key: list[list[str]] | None


_STREAM = TypeAdapter(_Stream)


def key_of(descriptor: Mapping[str, Any]) -> Key:
    """Returns the key of a stream, a record or a stream descriptor."""
    return descriptor.get("namespace") or None, str(descriptor.get("name"))


def group_by_name(keys: Iterable[Hashable]) -> ByName:
    """Returns streams by their names."""
    found: dict[str, set[Key]] = {}
    for key in keys:
        if isinstance(key, tuple):
            found.setdefault(key[1], set()).add(key)
    return found


def find_meant_stream(key: Key, asked: ByName, streams: ByName) -> Key | None:
    """Returns the stream that a message is about; None if no stream, or several, may be meant.

    Some connectors leave a namespace out of their messages, or out of their catalog.

    Args:
        key: its key in messages.
        asked: the streams that this run reads.
        streams: all that the catalog has.
    """
    same = [known.get(key[1], set()) for known in (asked, streams)]
    if any(key in known for known in same):
        return key
    for known in same:
        alike = known if key[0] is None else known & {(None, key[1])}
        if alike:
            return next(iter(alike)) if len(alike) == 1 else None
    return None


def parse_catalog(
    catalog: Mapping[str, Any], where: str, chosen: Callable[[str, Collection[str]], str | None]
) -> list[Entry]:
    """Returns the streams of a catalog.

    Args:
        where: the source, for messages.
        chosen: returns the cursor field that the spec names for a table with some fields.

    Raises:
        TableError: if it is no catalog.
    """
    remedy = "Check that the command is a connector of the Airbyte protocol"
    streams = read_streams(catalog, _STREAM, "connector", remedy, where)
    return [_entry(stream, chosen) for stream in streams]


def _entry(
    stream: Mapping[str, Any], chosen: Callable[[str, Collection[str]], str | None]
) -> Entry:
    key = key_of(stream)
    name = ".".join(part for part in key if part)
    default = stream.get("default_cursor_field") or []
    own = bool(stream.get("source_defined_cursor"))
    cursor = default[0] if len(default) == 1 else None
    schema = stream.get("json_schema") or {}
    fields = schema.get("properties")
    asked = chosen(name, fields if isinstance(fields, dict) else ())
    incremental = "incremental" in (stream.get("supported_sync_modes") or ())
    resumes = incremental and (own or bool(default) or asked is not None)
    paths = stream.get("source_defined_primary_key") or []
    flat = [path[0] for path in paths if len(path) == 1]
    return Entry(
        key=key,
        name=name,
        schema=schema,
        progress=Progress.MARK if resumes else Progress.WHOLE,
        primary_key=tuple(flat) if len(flat) == len(paths) else (),
        cursor=cursor,
        raw=stream,
    )


def configure_catalog(requests: Sequence[Request]) -> dict[str, Any]:
    """Returns the catalog that asks for streams, in the run's order."""
    return {"streams": [_configure_stream(request) for request in requests]}


def _configure_stream(request: Request) -> dict[str, Any]:
    entry: Entry = request.table.ref.native
    stream = entry.raw
    own = bool(stream.get("source_defined_cursor"))
    default = stream.get("default_cursor_field") or []
    incremental = request.table.progress is Progress.MARK
    asked: dict[str, Any] = {
        "stream": dict(stream),
        "sync_mode": "incremental" if incremental else "full_refresh",
        "destination_sync_mode": "append",
    }
    if incremental:
        cursor = default if own or request.cursor is None else [request.cursor]
        asked["cursor_field"] = cursor or default
    keys = stream.get("source_defined_primary_key") or [[name] for name in request.key]
    if keys:
        asked["primary_key"] = keys
    return asked


def build_state_input(
    memories: Mapping[Hashable, ConnectorState | None],
    streams: Collection[Hashable],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the connector's state file; None if there is no state to resume from.

    If a stream begins from scratch, and a state of all streams cannot be divided, all do: with a
    state that covers it, the stream would miss records.

    Args:
        memories: by stream; None for one that begins from scratch.
        streams: all that the catalog has.
        warn: gets a warning if a stream cannot begin from scratch alone.
    """
    known = [memory for memory in memories.values() if memory is not None]
    shared = find_oldest_shared(known)
    if shared is None:
        parts = [{"type": "STREAM", "stream": memory.value} for memory in known]
        return parts or None
    restarted = find_streams_behind(memories, shared)
    value = _without(shared, restarted, streams) if restarted else shared.value
    if value is None:
        named = sorted(key[1] if isinstance(key, tuple) else str(key) for key in restarted)
        names = ", ".join(named)
        warn(
            f"{names} starts over, and the connector has one state for all streams: everything is "
            "read again, and what has no primary key is appended again"
        )
    elif shared.kind == "GLOBAL":
        return [{"type": "GLOBAL", "global": value}]
    return value


def _without(
    shared: ConnectorState, restarted: set[Hashable], streams: Collection[Hashable]
) -> Any | None:
    """Returns a state without some streams; None if it is not clear what is theirs."""
    value = shared.value
    if not isinstance(value, dict) or shared.protocol == "cloudquery":
        return None
    if shared.kind == "GLOBAL":
        parts = value.get("stream_states")
        if not isinstance(parts, list) or not parts:
            return None
        kept = []
        known, beginning = group_by_name(streams), group_by_name(restarted)
        for part in parts:
            key = key_of(part.get("stream_descriptor") or {})
            of = find_meant_stream(key, {}, known)
            if of is None and key[1] in beginning:
                return None
            if (of or key) not in restarted:
                kept.append(part)
        return {**value, "stream_states": kept}
    names = {key[1] for key in streams if isinstance(key, tuple)}
    if not value.keys() <= names:
        return None
    without = {key[1] for key in restarted if isinstance(key, tuple)}
    return {name: part for name, part in value.items() if name not in without}
