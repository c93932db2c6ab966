"""Reads the catalog of a Singer tap, and selects the streams and fields for a read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import NotRequired, TypedDict

from loader.connectors.subprocess.json_schema import read_streams
from loader.connectors.subprocess.source import CatalogEntry
from loader.sources.interface import Progress, Request

_About = TypedDict(
    "_About",
    {
        "schema-name": str | None,
        "table-key-properties": list[str] | None,
        "view-key-properties": list[str] | None,
        "valid-replication-keys": list[str] | None,
        "replication-key": str | None,
        "forced-replication-method": str | None,
        "inclusion": str | None,
    },
    total=False,
)


class _Part(TypedDict):
    breadcrumb: NotRequired[list[str] | None]
    metadata: NotRequired[_About]


class _Stream(TypedDict, total=False):
    """A stream in a catalog, with only the fields that the loader reads."""

    stream: str | None
    tap_stream_id: str | None
    schema: dict[str, Any] | None
    metadata: list[_Part] | None
    key_properties: list[str] | None
    replication_key: str | None
    replication_method: str | None


def _refuse_nameless(stream: _Stream) -> _Stream:
    if not (stream.get("stream") or stream.get("tap_stream_id")):
        raise ValueError("the stream has no name")
    return stream


_STREAM: TypeAdapter[Any] = TypeAdapter(Annotated[_Stream, AfterValidator(_refuse_nameless)])


def parse_catalog(
    catalog: Any, where: str, find_cursor: Callable[[str, Collection[str]], str | None]
) -> list[CatalogEntry]:
    """Returns the streams in a catalog.

    Args:
        find_cursor: returns the spec's cursor field for a table with this name and these fields.

    Raises:
        TableError: if the catalog is malformed.
    """
    streams = read_streams(catalog, _STREAM, "tap", "Check that the command is a Singer tap", where)
    return [_parse_stream(stream, find_cursor) for stream in streams]


def _message_name(stream: Mapping[str, Any]) -> str:
    return str(stream.get("stream") or stream.get("tap_stream_id"))


def _state_key(stream: Mapping[str, Any]) -> str:
    """Returns a stream's key in the tap's state. This is its id, which may differ from its name."""
    return str(stream.get("tap_stream_id") or stream.get("stream"))


def map_aliases(catalog: Mapping[str, Any]) -> dict[str, str]:
    """Maps each name that messages may use for a stream to the stream's key.

    Omits names that match several streams.
    """
    keys_by_alias: dict[str, set[str]] = {}
    for stream in catalog["streams"]:
        name, schema = _message_name(stream), _metadata_of(stream).get("schema-name")
        with_schema = (f"{schema}-{name}", f"{schema}_{name}") if schema else ()
        for alias in (_state_key(stream), name, *with_schema):
            keys_by_alias.setdefault(str(alias), set()).add(_state_key(stream))
    return {alias: next(iter(keys)) for alias, keys in keys_by_alias.items() if len(keys) == 1}


def _parse_stream(
    stream: Mapping[str, Any], find_cursor: Callable[[str, Collection[str]], str | None]
) -> CatalogEntry:
    name = _message_name(stream)
    metadata = _metadata_of(stream)
    schema = stream.get("schema") or {}
    fields = schema.get("properties")
    spec_cursor = find_cursor(name, fields if isinstance(fields, dict) else ())
    valid = metadata.get("valid-replication-keys") or []
    cursor = stream.get("replication_key") or metadata.get("replication-key")
    cursor = cursor or (valid[0] if len(valid) == 1 else None)
    method = metadata.get("forced-replication-method") or stream.get("replication_method")
    is_full_table = method == "FULL_TABLE" or (method is None and not (cursor or spec_cursor))
    keys = (
        metadata.get("table-key-properties")
        or stream.get("key_properties")
        or metadata.get("view-key-properties")
        or []
    )
    return CatalogEntry(
        key=_state_key(stream),
        name=name,
        schema=schema,
        progress=Progress.WHOLE if is_full_table else Progress.MARK,
        primary_key=tuple(keys),
        cursor=cursor,
        raw=stream,
    )


def _metadata_of(stream: Mapping[str, Any]) -> dict[str, Any]:
    for part in stream.get("metadata") or ():
        if not part.get("breadcrumb"):
            return dict(part.get("metadata") or {})
    return {}


def configure_catalog(catalog: Mapping[str, Any], requests: Sequence[Request]) -> dict[str, Any]:
    """Returns a catalog that selects only the run's streams, in the run's order."""
    wanted = {request.table.ref.native.key: request for request in requests}
    order = {key: number for number, key in enumerate(wanted)}
    streams = [
        _select_stream(stream, wanted.get(_state_key(stream))) for stream in catalog["streams"]
    ]
    streams.sort(key=lambda stream: order.get(_state_key(stream), len(order)))
    return {**catalog, "streams": streams}


def _select_stream(stream: Mapping[str, Any], request: Request | None) -> dict[str, Any]:
    selected = copy.deepcopy(dict(stream))
    parts = selected.get("metadata") or []
    stream_part = next((p for p in parts if not p.get("breadcrumb")), None)
    if stream_part is None:
        stream_part = {"breadcrumb": [], "metadata": {}}
        parts.append(stream_part)
    metadata = stream_part.setdefault("metadata", {})
    metadata["selected"] = request is not None
    selected["selected"] = request is not None  # older taps read this field
    selected["metadata"] = parts
    if request is None:
        return selected
    is_full_table = request.table.progress is Progress.WHOLE
    method = metadata.get("forced-replication-method") or selected.get("replication_method")
    method = "FULL_TABLE" if is_full_table else method or "INCREMENTAL"
    metadata["replication-method"] = selected["replication_method"] = method
    if request.cursor is not None and method == "INCREMENTAL":
        metadata["replication-key"] = selected["replication_key"] = request.cursor
    native = request.table.ref.native
    _select_fields(
        parts,
        selected.get("schema"),
        {column.name for column in native.columns},
        native.selection is not None,
    )
    return selected


def _select_fields(
    parts: list[dict[str, Any]], schema: Any, columns: set[str], deselects: bool
) -> None:
    """Selects the fields of a stream, because most taps send only selected fields.

    Args:
        parts: the stream's metadata. Fields without metadata get an entry.
        deselects: whether to deselect fields that are not in `columns`; true if the spec excludes
            fields.
    """
    fields = schema.get("properties") if isinstance(schema, dict) else None
    parts_by_field = {}
    for part in parts:
        crumb = part.get("breadcrumb") or []
        if len(crumb) == 2 and crumb[0] == "properties":
            parts_by_field[crumb[1]] = part
        elif len(crumb) > 2 and crumb[1] in columns:
            metadata = part.setdefault("metadata", {})
            metadata["selected"] = metadata.get("inclusion") != "unsupported"
    for field in {**(fields if isinstance(fields, dict) else {}), **parts_by_field}:
        if field not in parts_by_field:
            parts_by_field[field] = {"breadcrumb": ["properties", field], "metadata": {}}
            parts.append(parts_by_field[field])
        metadata = parts_by_field[field].setdefault("metadata", {})
        if metadata.get("inclusion") == "unsupported":
            continue
        if field in columns:
            metadata["selected"] = True
        elif metadata.get("inclusion") != "automatic" and deselects:
            metadata["selected"] = False
