"""Airbyte's catalogs: what a connector has, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from loader.errors import TableError
from loader.sources import Progress, Request
from loader.sources.programs.source import Entry

Key = tuple[str | None, str]
"""A stream's namespace and name."""


def key_of(descriptor: Mapping[str, Any]) -> Key:
    """Returns the key of a stream, a record or a stream descriptor."""
    return descriptor.get("namespace") or None, str(descriptor.get("name"))


def meant(key: Key, asked: Collection[Hashable], streams: Collection[Hashable]) -> Key | None:
    """Returns the stream that a message is about; None if no stream, or several, may be meant.

    Some connectors leave a namespace out of their messages, or out of their catalog.

    Args:
        key: what the message calls it.
        asked: what this run reads.
        streams: all that the catalog has.
    """
    if key in asked or key in streams:
        return key
    for known in (asked, streams):
        alike = [
            one
            for one in known
            if isinstance(one, tuple) and one[1] == key[1] and (key[0] is None or one[0] is None)
        ]
        if alike:
            return alike[0] if len(alike) == 1 else None
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
    streams = catalog.get("streams") if isinstance(catalog, dict) else None
    if not isinstance(streams, list) or not all(_usable(stream) for stream in streams):
        raise TableError(
            "the connector's catalog cannot be read",
            where=where,
            remedy="Check that the command is a connector of the Airbyte protocol",
        )
    return [_entry(stream, chosen) for stream in streams]


def _usable(stream: Any) -> bool:
    return isinstance(stream, dict) and isinstance(stream.get("name"), str)


def _entry(
    stream: Mapping[str, Any], chosen: Callable[[str, Collection[str]], str | None]
) -> Entry:
    key = key_of(stream)
    name = ".".join(part for part in key if part)
    schema = stream.get("json_schema")
    default = stream.get("default_cursor_field") or []
    own = bool(stream.get("source_defined_cursor"))
    cursor = default[0] if len(default) == 1 else None
    fields = schema.get("properties") if isinstance(schema, dict) else None
    asked = chosen(name, fields if isinstance(fields, dict) else ())
    incremental = "incremental" in (stream.get("supported_sync_modes") or ())
    resumes = incremental and (own or bool(default) or asked is not None)
    paths = stream.get("source_defined_primary_key") or []
    flat = [path[0] for path in paths if len(path) == 1]
    return Entry(
        key=key,
        name=name,
        schema=schema if isinstance(schema, dict) else {},
        progress=Progress.MARK if resumes else Progress.WHOLE,
        primary_key=tuple(flat) if len(flat) == len(paths) else (),
        cursor=cursor,
        raw=stream,
    )


def configured(requests: Sequence[Request]) -> dict[str, Any]:
    """Returns the catalog that asks for streams, in the run's order."""
    return {"streams": [_configured(request) for request in requests]}


def _configured(request: Request) -> dict[str, Any]:
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
