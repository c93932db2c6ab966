"""Reads the catalog of an Airbyte connector, and builds the streams and the state for a read."""

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
from loader.connectors.subprocess.source import CatalogEntry
from loader.sources.interface import Progress, Request

Key = tuple[str | None, str]
"""A stream's namespace and name."""
KeysByName = Mapping[str, set[Key]]
"""Maps a stream's name without its namespace to the keys of all streams with this name."""


class _Stream(TypedDict, total=False):
    """A stream in a catalog, with only the fields that the loader reads."""

    name: Required[str]
    namespace: str | None
    json_schema: dict[str, Any] | None
    supported_sync_modes: list[Any] | None
    source_defined_cursor: bool | None
    default_cursor_field: list[str] | None
    source_defined_primary_key: list[list[str]] | None


_STREAM = TypeAdapter(_Stream)


def key_of(descriptor: Mapping[str, Any]) -> Key:
    return descriptor.get("namespace") or None, str(descriptor.get("name"))


def group_by_name(keys: Iterable[Hashable]) -> KeysByName:
    """Groups the keys of streams by name, without the namespace."""
    keys_by_name: dict[str, set[Key]] = {}
    for key in keys:
        if isinstance(key, tuple):
            keys_by_name.setdefault(key[1], set()).add(key)
    return keys_by_name


def resolve_stream(key: Key, requested: KeysByName, streams: KeysByName) -> Key | None:
    """Returns the stream that a message belongs to, or None if no stream or several streams match.

    Some connectors omit the namespace in their messages or in their catalog.

    Args:
        requested: the run's streams.
        streams: all streams in the catalog.
    """
    namesakes = [known.get(key[1], set()) for known in (requested, streams)]
    if any(key in keys for keys in namesakes):
        return key
    for keys in namesakes:
        matches = keys if key[0] is None else keys & {(None, key[1])}
        if matches:
            return next(iter(matches)) if len(matches) == 1 else None
    return None


def parse_catalog(
    catalog: Mapping[str, Any],
    where: str,
    find_cursor: Callable[[str, Collection[str]], str | None],
) -> list[CatalogEntry]:
    """Returns the streams in a catalog.

    Args:
        find_cursor: returns the spec's cursor field for a table with this name and these fields.

    Raises:
        TableError: if the catalog is malformed.
    """
    remedy = "Check that the command is a connector of the Airbyte protocol"
    streams = read_streams(catalog, _STREAM, "connector", remedy, where)
    return [_parse_stream(stream, find_cursor) for stream in streams]


def _parse_stream(
    stream: Mapping[str, Any], find_cursor: Callable[[str, Collection[str]], str | None]
) -> CatalogEntry:
    key = key_of(stream)
    name = ".".join(part for part in key if part)
    default = stream.get("default_cursor_field") or []
    has_own_cursor = bool(stream.get("source_defined_cursor"))
    cursor = default[0] if len(default) == 1 else None
    schema = stream.get("json_schema") or {}
    fields = schema.get("properties")
    requested = find_cursor(name, fields if isinstance(fields, dict) else ())
    incremental = "incremental" in (stream.get("supported_sync_modes") or ())
    resumes = incremental and (has_own_cursor or bool(default) or requested is not None)
    paths = stream.get("source_defined_primary_key") or []
    flat = [path[0] for path in paths if len(path) == 1]
    return CatalogEntry(
        key=key,
        name=name,
        schema=schema,
        progress=Progress.MARK if resumes else Progress.WHOLE,
        primary_key=tuple(flat) if len(flat) == len(paths) else (),
        cursor=cursor,
        raw=stream,
    )


def configure_catalog(requests: Sequence[Request]) -> dict[str, Any]:
    """Returns the configured catalog for a read, with the streams in the requested order."""
    return {"streams": [_configure_stream(request) for request in requests]}


def _configure_stream(request: Request) -> dict[str, Any]:
    entry: CatalogEntry = request.table.ref.native
    stream = entry.raw
    has_own_cursor = bool(stream.get("source_defined_cursor"))
    default = stream.get("default_cursor_field") or []
    incremental = request.table.progress is Progress.MARK
    requested: dict[str, Any] = {
        "stream": dict(stream),
        "sync_mode": "incremental" if incremental else "full_refresh",
        "destination_sync_mode": "append",
    }
    if incremental:
        cursor = default if has_own_cursor or request.cursor is None else [request.cursor]
        requested["cursor_field"] = cursor or default
    keys = stream.get("source_defined_primary_key") or [[name] for name in request.key]
    if keys:
        requested["primary_key"] = keys
    return requested


def build_state_input(
    states: Mapping[Hashable, ConnectorState | None],
    streams: Collection[Hashable],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the content of the connector's state file, or None if all streams start over.

    If one stream starts over, it is removed from the state that all streams share. If it cannot be
    removed, all streams start over, because the connector would otherwise skip the stream's records
    that the state covers.

    Args:
        states: maps a stream to its stored state, or to None if the stream starts over.
        warn: called with a warning if one stream makes all streams start over.
    """
    stored = [state for state in states.values() if state is not None]
    shared = find_oldest_shared(stored)
    if shared is None:
        parts = [{"type": "STREAM", "stream": state.value} for state in stored]
        return parts or None
    restarted = find_streams_behind(states, shared)
    value = _remove_streams(shared, restarted, streams) if restarted else shared.value
    if value is None:
        restarted_names = sorted(
            key[1] if isinstance(key, tuple) else str(key) for key in restarted
        )
        names = ", ".join(restarted_names)
        warn(
            f"{names} starts over, but the connector has one state for all streams: all records "
            "are read again, and records without a primary key are appended again"
        )
    elif shared.kind == "GLOBAL":
        return [{"type": "GLOBAL", "global": value}]
    return value


def _remove_streams(
    shared: ConnectorState, restarted: set[Hashable], streams: Collection[Hashable]
) -> Any | None:
    """Removes streams from a shared state. Returns None if this is impossible."""
    value = shared.value
    if not isinstance(value, dict) or shared.protocol == "cloudquery":
        return None
    if shared.kind == "GLOBAL":
        parts = value.get("stream_states")
        if not isinstance(parts, list) or not parts:
            return None
        remaining = []
        known, restarted_by_name = group_by_name(streams), group_by_name(restarted)
        for part in parts:
            key = key_of(part.get("stream_descriptor") or {})
            stream = resolve_stream(key, {}, known)
            if stream is None and key[1] in restarted_by_name:
                return None
            if (stream or key) not in restarted:
                remaining.append(part)
        return {**value, "stream_states": remaining}
    names = {key[1] for key in streams if isinstance(key, tuple)}
    if not value.keys() <= names:
        return None
    without = {key[1] for key in restarted if isinstance(key, tuple)}
    return {name: part for name, part in value.items() if name not in without}
