"""Converts CloudQuery's messages to Airbyte's: schemas, batches, where clauses of deletions."""

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

from .arrow_input import MalformedError, malformed_error, read_record, table_name

_ABOUT = b"cq:table_description"
_INCREMENTAL = b"cq:extension:incremental"
_KEY = b"cq:extension:primary_key"
_PARENT = b"cq:table_depends_on"
_EXTENSION = b"ARROW:extension:name"
_TRUE = b"true"
ANCESTORS = "cloudquery_ancestors"
"""In a catalog's entry, the tables that it depends on."""
_ROWS = 1_000
"""How many are Python values at once: a bit of Arrow becomes a hundred bytes."""

Condition = dict[str, Any]
"""Values by column: it means the rows that have all of them."""
_MOST = 100_000
"""Alternatives of one clause: groups multiply."""


def streams(schemas: Sequence[pa.Schema]) -> list[dict[str, Any]]:
    """Returns the catalog's entries for all tables of a plugin.

    A table whose parent is incremental is incremental, too, even if the plugin declares otherwise:
    it gets the rows that belong to the parent's new ones, and no others.
    """
    known = {table_name(schema): schema for schema in schemas}
    found = []
    for schema in schemas:
        above = _above(schema, known)
        incremental = any(_about(one).get(_INCREMENTAL) == _TRUE for one in (schema, *above))
        ancestors = [table_name(one) for one in above]
        found.append({**stream(schema, incremental), ANCESTORS: ancestors})
    return found


def _above(schema: pa.Schema, known: Mapping[str, pa.Schema]) -> list[pa.Schema]:
    """Returns the tables that a table depends on: its parent, the parent's, and so on."""
    found: list[pa.Schema] = []
    seen = {table_name(schema)}
    parent = known.get(_about(schema).get(_PARENT, b"").decode())
    while parent is not None and table_name(parent) not in seen:
        found.append(parent)
        seen.add(table_name(parent))
        parent = known.get(_about(parent).get(_PARENT, b"").decode())
    return found


def _about(schema: pa.Schema) -> Mapping[bytes, bytes]:
    return schema.metadata or {}


def stream(schema: pa.Schema, incremental: bool = False) -> dict[str, Any]:
    """Returns the catalog's entry for a table.

    Args:
        incremental: whether it goes on from a state.
    """
    about = _about(schema)
    marked = [field for field in schema if _has(field, _INCREMENTAL)]
    return {
        "name": table_name(schema),
        "json_schema": {
            "type": "object",
            "description": about.get(_ABOUT, b"").decode(),
            "properties": {field.name: _type(field) for field in schema},
        },
        "supported_sync_modes": ["full_refresh", *(["incremental"] if incremental else [])],
        "source_defined_cursor": incremental,
        "default_cursor_field": [field.name for field in marked] if len(marked) == 1 else [],
        "source_defined_primary_key": [[f.name] for f in schema if _has(f, _KEY)],
    }


def records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch as JSON values.

    Raises:
        MalformedError: if a value is none of its type, such as a time after the year 9999.
    """
    for first in range(0, batch.num_rows, _ROWS):
        try:
            rows = list(_rows(batch.slice(first, _ROWS)))
        except Exception as error:  # of Arrow, Python, or the time zone library
            raise malformed_error(error, table_name(batch.schema)) from None
        yield from rows


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            columns.append([_time(v, field.type.tz) for v in column.cast(pa.int64()).to_pylist()])
            continue
        convert = _converter(field)
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        columns.append([None if v is None else convert(v) for v in stored.to_pylist()])
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _has(field: pa.Field, name: bytes) -> bool:
    return (field.metadata or {}).get(name) == _TRUE


def _extension(field: pa.Field) -> str:
    named = (field.metadata or {}).get(_EXTENSION, b"").decode()
    return named or str(getattr(field.type, "extension_name", ""))


def _type(field: pa.Field) -> dict[str, Any]:
    """Returns a column's JSON schema."""
    kind = field.type
    if _extension(field):
        return {} if _extension(field) == "json" else {"type": "string"}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_uint64(kind):
        return {"type": "integer", "airbyte_type": "big_integer"}
    if pa.types.is_integer(kind):
        return {"type": "integer"}
    if pa.types.is_floating(kind):
        return {"type": "number"}
    if pa.types.is_decimal(kind):
        whole = kind.scale == 0
        return {"type": "number", "airbyte_type": "big_integer" if whole else "big_number"}
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


def _converter(field: pa.Field) -> Callable[[Any], Any]:
    """Returns a function from a column's Python values to JSON."""
    named = _extension(field)
    if named == "json":
        return _parse_json
    if named == "uuid":
        return lambda value: str(value if isinstance(value, uuid.UUID) else uuid.UUID(bytes=value))
    if named == "mac":
        return lambda value: value.hex(":")
    kind = field.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _or_none(kind.value_field)
        return lambda value: [inner(one) for one in value]
    if pa.types.is_struct(kind):
        parts = {part.name: _or_none(part) for part in kind.fields}
        return lambda value: {name: parts[name](one) for name, one in value.items()}
    if pa.types.is_map(kind):
        of_key, of_item = _or_none(kind.key_field), _or_none(kind.item_field)
        return lambda value: [[of_key(key), of_item(item)] for key, item in value]
    return plain


def _or_none(field: pa.Field) -> Callable[[Any], Any]:
    convert = _converter(field)
    return lambda value: None if value is None else convert(value)


def _parse_json(value: Any) -> Any:
    """Returns JSON; as text if a float cannot hold one of its numbers."""
    rounded = False

    def number(text: str) -> float:
        nonlocal rounded
        found = float(text)
        rounded = rounded or not (
            repr(found) == text or (math.isfinite(found) and Decimal(repr(found)) == Decimal(text))
        )
        return found

    try:
        found = json.loads(value, parse_float=number)
    except (ValueError, InvalidOperation, RecursionError):
        return plain(value)
    if not rounded:
        return found
    return value.decode() if isinstance(value, bytes) else value


def plain(value: Any) -> Any:
    """Returns a Python value as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value)


def _time(nanos: int | None, zone: str | None) -> str | None:
    """Returns a time in UTC, with all its digits, which Python's times do not have."""
    if nanos is None:
        return None
    micros, rest = divmod(nanos, 1000)
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    digits = f"{rest:03}" if rest else ""
    return moment.isoformat(timespec="microseconds") + digits + ("+00:00" if zone else "")


def deletion(message: Any) -> dict[str, Any]:
    """Returns a `DeleteRecord` as a message to the loader.

    Dependent tables have a message of their own: their rows cannot be found by these columns.

    Raises:
        MalformedError: if its where clause is damaged or too large.
    """
    try:
        return {"stream": message.table_name, "where": conditions(message.where_clause)}
    except MalformedError as error:
        raise MalformedError(error.what, message.table_name) from None


def dependents(message: Any) -> list[str]:
    """Returns the tables whose rows go with those that are deleted."""
    return [relation.table_name for relation in message.table_relations]


def conditions(groups: Any) -> list[Condition]:
    """Returns the alternatives of a where clause; one without columns means all rows.

    All groups must hold, and of each group all predicates or any, as it says.
    """
    found: list[Condition] = [{}]
    for group in groups:
        if not group.predicates:
            continue
        each = [{p.column: _value(p)} for p in group.predicates]
        if group.grouping_type == group.AND:
            options: list[Condition] = [{}]
            for one in each:
                options = list(_both(options, [one]))
        else:
            options = [one for one in each if None not in one.values()]
        if len(found) * len(options) > _MOST:
            raise MalformedError(f"its where clause has more than {_MOST:,} alternatives")
        found = list(_both(found, options))
    return found


def _both(left: list[Condition], right: list[Condition]) -> Iterator[Condition]:
    """Yields what meets one condition of each side; nothing equals null, as in SQL."""
    for one in left:
        for other in right:
            agree = all(json.dumps(one.get(k, v)) == json.dumps(v) for k, v in other.items())
            if agree and None not in other.values():
                yield {**one, **other}


def _value(predicate: Any) -> Any:
    batch = read_record(predicate.record)
    if batch.num_rows != 1 or batch.num_columns != 1:
        raise MalformedError("a predicate has not exactly one value")
    [row] = records(batch)
    return next(iter(row.values()))
