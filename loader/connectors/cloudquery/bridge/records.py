"""Converts CloudQuery's schemas, rows and deletions to Airbyte messages."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from .arrow_input import MalformedError, build_malformed_error, read_record, read_table_name

_DESCRIPTION = b"cq:table_description"
_INCREMENTAL = b"cq:extension:incremental"
_KEY = b"cq:extension:primary_key"
_PARENT = b"cq:table_depends_on"
_EXTENSION = b"ARROW:extension:name"
_TRUE = b"true"
ANCESTORS = "cloudquery_ancestors"
"""The key in a catalog entry that lists the table's ancestors."""
_ROWS_PER_SLICE = 1_000
"""The number of rows to convert at once. One bit in Arrow can become 100 bytes in Python."""

Condition = dict[str, Any]
"""Maps columns to values. Matches the rows that have all of these values."""
_MAX_CONDITIONS = 100_000
"""The maximum number of conditions in a where clause. Each OR group multiplies this number."""


def build_streams(schemas: Sequence[pa.Schema]) -> list[dict[str, Any]]:
    """Returns the catalog entries for all of a plugin's tables.

    A table is incremental if one of its ancestors is, even if the plugin declares otherwise: the
    plugin then sends only rows that depend on new rows of the ancestor.
    """
    schemas_by_name = {read_table_name(schema): schema for schema in schemas}
    result = []
    for schema in schemas:
        ancestor_schemas = _list_ancestors(schema, schemas_by_name)
        incremental = any(
            _metadata_of(item).get(_INCREMENTAL) == _TRUE for item in (schema, *ancestor_schemas)
        )
        ancestors = [read_table_name(item) for item in ancestor_schemas]
        result.append({**build_stream(schema, incremental), ANCESTORS: ancestors})
    return result


def _list_ancestors(schema: pa.Schema, schemas_by_name: Mapping[str, pa.Schema]) -> list[pa.Schema]:
    result: list[pa.Schema] = []
    seen = {read_table_name(schema)}
    parent = schemas_by_name.get(_metadata_of(schema).get(_PARENT, b"").decode())
    while parent is not None and read_table_name(parent) not in seen:
        result.append(parent)
        seen.add(read_table_name(parent))
        parent = schemas_by_name.get(_metadata_of(parent).get(_PARENT, b"").decode())
    return result


def _metadata_of(schema: pa.Schema) -> Mapping[bytes, bytes]:
    return schema.metadata or {}


def build_stream(schema: pa.Schema, incremental: bool = False) -> dict[str, Any]:
    """Returns the catalog entry for a table.

    Args:
        incremental: whether the table resumes from a state.
    """
    metadata = _metadata_of(schema)
    marked = [field for field in schema if _is_true(field, _INCREMENTAL)]
    return {
        "name": read_table_name(schema),
        "json_schema": {
            "type": "object",
            "description": metadata.get(_DESCRIPTION, b"").decode(),
            "properties": {field.name: _json_schema_of(field) for field in schema},
        },
        "supported_sync_modes": ["full_refresh", *(["incremental"] if incremental else [])],
        "source_defined_cursor": incremental,
        "default_cursor_field": [field.name for field in marked] if len(marked) == 1 else [],
        "source_defined_primary_key": [[f.name] for f in schema if _is_true(f, _KEY)],
    }


def convert_records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch as JSON values.

    Raises:
        MalformedError: if a value is outside the range of its type, such as the year 10000.
    """
    for first in range(0, batch.num_rows, _ROWS_PER_SLICE):
        try:
            rows = list(_convert_rows(batch.slice(first, _ROWS_PER_SLICE)))
        # Arrow, Python and the time zone library raise various exceptions.
        except Exception as error:
            raise build_malformed_error(error, read_table_name(batch.schema)) from None
        yield from rows


def _convert_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            columns.append(
                [_format_time(v, field.type.tz) for v in column.cast(pa.int64()).to_pylist()]
            )
            continue
        convert = _make_converter(field)
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        columns.append([None if v is None else convert(v) for v in stored.to_pylist()])
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _is_true(field: pa.Field, name: bytes) -> bool:
    return (field.metadata or {}).get(name) == _TRUE


def _extension_of(field: pa.Field) -> str:
    extension = (field.metadata or {}).get(_EXTENSION, b"").decode()
    return extension or str(getattr(field.type, "extension_name", ""))


def _json_schema_of(field: pa.Field) -> dict[str, Any]:
    kind = field.type
    if _extension_of(field):
        return {} if _extension_of(field) == "json" else {"type": "string"}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_uint64(kind):
        return {"type": "integer", "airbyte_type": "big_integer"}
    if pa.types.is_integer(kind):
        return {"type": "integer"}
    if pa.types.is_floating(kind):
        return {"type": "number"}
    if pa.types.is_decimal(kind):
        is_integer = kind.scale == 0
        return {"type": "number", "airbyte_type": "big_integer" if is_integer else "big_number"}
    if pa.types.is_date(kind):
        return {"type": "string", "format": "date"}
    if pa.types.is_timestamp(kind):
        zone = "with" if kind.tz else "without"
        return {
            "type": "string",
            "format": "date-time",
            "airbyte_type": f"timestamp_{zone}_timezone",
        }
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"type": "string"}
    return {}


def _make_converter(field: pa.Field) -> Callable[[Any], Any]:
    extension = _extension_of(field)
    if extension == "json":
        return _parse_json
    if extension == "uuid":
        return lambda value: str(value if isinstance(value, uuid.UUID) else uuid.UUID(bytes=value))
    if extension == "mac":
        return lambda value: value.hex(":")
    kind = field.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _nullable_converter(kind.value_field)
        return lambda value: [inner(item) for item in value]
    if pa.types.is_struct(kind):
        parts = {part.name: _nullable_converter(part) for part in kind.fields}
        return lambda value: {name: parts[name](item) for name, item in value.items()}
    if pa.types.is_map(kind):
        of_key, of_item = _nullable_converter(kind.key_field), _nullable_converter(kind.item_field)
        return lambda value: [[of_key(key), of_item(item)] for key, item in value]
    return to_json_value


def _nullable_converter(field: pa.Field) -> Callable[[Any], Any]:
    convert = _make_converter(field)
    return lambda value: None if value is None else convert(value)


def _parse_json(value: Any) -> Any:
    """Parses JSON. Returns the string unparsed if a float would round one of its numbers."""
    rounded = False

    def number(text: str) -> float:
        nonlocal rounded
        result = float(text)
        rounded = rounded or not (
            repr(result) == text
            or (math.isfinite(result) and Decimal(repr(result)) == Decimal(text))
        )
        return result

    try:
        result = json.loads(value, parse_float=number)
    except (ValueError, InvalidOperation, RecursionError):
        return to_json_value(value)
    if not rounded:
        return result
    return value.decode() if isinstance(value, bytes) else value


def to_json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    return str(value)


def _format_time(nanos: int | None, zone: str | None) -> str | None:
    """Formats a UTC time with nanoseconds, which Python's own times cannot represent."""
    if nanos is None:
        return None
    micros, rest = divmod(nanos, 1000)
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    digits = f"{rest:03}" if rest else ""
    return moment.isoformat(timespec="microseconds") + digits + ("+00:00" if zone else "")


def build_deletion(message: Any) -> dict[str, Any]:
    """Converts a `DeleteRecord` to a message for the loader. Ignores its dependent tables.

    Raises:
        MalformedError: if the where clause is damaged or too large.
    """
    try:
        return {"stream": message.table_name, "where": parse_where_clause(message.where_clause)}
    except MalformedError as error:
        raise MalformedError(error.what, message.table_name) from None


def list_dependents(message: Any) -> list[str]:
    """Returns the dependent tables from which a `DeleteRecord` also deletes rows."""
    return [relation.table_name for relation in message.table_relations]


def parse_where_clause(groups: Any) -> list[Condition]:
    """Converts a where clause to alternative conditions. An empty condition matches all rows.

    A where clause consists of groups of predicates. A row must match all groups. It matches a group
    if it matches all of the group's predicates (AND) or at least one of them (OR).
    """
    conditions: list[Condition] = [{}]
    for group in groups:
        if not group.predicates:
            continue
        each = [{p.column: _read_value(p)} for p in group.predicates]
        if group.grouping_type == group.AND:
            options: list[Condition] = [{}]
            for condition in each:
                options = list(_combine(options, [condition]))
        else:
            options = [condition for condition in each if None not in condition.values()]
        if len(conditions) * len(options) > _MAX_CONDITIONS:
            raise MalformedError(f"its where clause has more than {_MAX_CONDITIONS:,} alternatives")
        conditions = list(_combine(conditions, options))
    return conditions


def _combine(left: list[Condition], right: list[Condition]) -> Iterator[Condition]:
    """Yields the conjunction of each pair of conditions. As in SQL, null equals no value."""
    for first in left:
        for second in right:
            agree = all(json.dumps(first.get(k, v)) == json.dumps(v) for k, v in second.items())
            if agree and None not in second.values():
                yield {**first, **second}


def _read_value(predicate: Any) -> Any:
    batch = read_record(predicate.record)
    if batch.num_rows != 1 or batch.num_columns != 1:
        raise MalformedError("a predicate does not have exactly one value")
    [row] = convert_records(batch)
    return next(iter(row.values()))
