"""Reads Airbyte's catalogs: the streams of a connector, and the configured ones of a read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import Required, TypedDict

from loader.sources import Progress, Request
from loader.sources.programs.catalog import read_streams
from loader.sources.programs.source import Entry

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


def by_name(keys: Iterable[Hashable]) -> ByName:
    """Returns streams by their names."""
    found: dict[str, set[Key]] = {}
    for key in keys:
        if isinstance(key, tuple):
            found.setdefault(key[1], set()).add(key)
    return found


def meant(key: Key, asked: ByName, streams: ByName) -> Key | None:
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


def entries(
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
