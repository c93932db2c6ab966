"""Reads the streams in a catalog, and maps their JSON schemas to Spark columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pyspark.sql import types as t

from loader.connectors.subprocess.json_values import make_converter
from loader.errors import TableError
from loader.sources.interface import REST_COLUMN
from loader.spec.options import ColumnSelection

LONGEST_NAME = 255
"""The maximum length of a column name. Fields with longer names go to :data:`REST_COLUMN`."""
_MOST_PARTS = 100_000
"""The maximum number of schema parts to read per stream. Each reference to a part counts."""


def read_streams(
    catalog: Any, stream: TypeAdapter[Any], program: str, remedy: str, where: str
) -> list[Mapping[str, Any]]:
    """Validates a catalog, and returns its streams unchanged.

    Args:
        stream: the pydantic type of a stream.
        program: the kind of program that wrote the catalog, as named in messages.

    Raises:
        TableError: if any part of the catalog has an unexpected type.
    """
    streams = catalog.get("streams") if isinstance(catalog, dict) else None
    problem = None if isinstance(streams, list) else "there is no list of streams"
    for number, each in enumerate([] if problem else streams or [], 1):
        try:
            stream.validate_python(each)
        except ValidationError as error:
            first_error = error.errors(include_url=False, include_input=False)[0]
            path = ".".join(map(str, first_error["loc"]))
            problem = (
                ", ".join(filter(None, (f"stream {number}", path))) + f": {first_error['msg']}"
            )
            break
    if problem is not None:
        raise TableError(
            f"the {program}'s catalog cannot be read: {problem}", where=where, remedy=remedy
        )
    return list(streams or [])


@dataclass(frozen=True)
class Column:
    """A top-level field in a stream's records.

    Attributes:
        convert: converts a JSON value to the format of the spool
            (:mod:`loader.connectors.subprocess.json_values`).
    """

    name: str
    type: t.DataType
    convert: Callable[[Any], Any]


def build_columns(
    schema: Mapping[str, Any],
    types: Mapping[str, t.DataType],
    selection: ColumnSelection | None = None,
    where: str = "",
) -> tuple[Column, ...]:
    """Returns the columns of a stream.

    If field names differ only in case, only the first field gets a column, because Spark treats the
    names as equal.

    Args:
        types: maps columns to their types in the spec. May include fields that the schema lacks.
        selection: the fields that the spec selects; None for all fields.

    Raises:
        TableError: if the schema has too many parts after its references are expanded.
    """
    fields = schema.get("properties")
    declared = fields if isinstance(fields, dict) else {}
    spark_types: dict[str, t.DataType] = {}
    used_names: set[str] = {REST_COLUMN}
    budget = Counter(parts=_MOST_PARTS)
    for name in (*declared, *(name for name in types if name not in declared)):
        if is_skipped(name, selection) or not name or _fold_case(name) in used_names:
            continue
        if len(name) > LONGEST_NAME and name not in types:
            continue
        used_names.add(_fold_case(name))
        spark_types[name] = types.get(name) or parse_type(declared[name], schema, budget)
        if budget["parts"] < 0:
            raise TableError(
                f"the JSON schema's references lead to more than {_MOST_PARTS:,} parts",
                where=where,
                remedy="Exclude fields with the `columns` option, or set their column_types",
            )
    return tuple(Column(name, type_, make_converter(type_)) for name, type_ in spark_types.items())


def _fold_case(name: str) -> str:
    """Folds the case of a name letter by letter, as Spark does. A dotless i becomes an i."""
    upper = (big if len(big := letter.upper()) == 1 else letter for letter in name)
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in upper)


def is_skipped(name: str, selection: ColumnSelection | None) -> bool:
    """Returns whether the spec excludes a field."""
    return selection is not None and not selection.selects(name)


def parse_type(
    schema: Any, root: Mapping[str, Any], budget: Counter[str] | None = None
) -> t.DataType:
    """Returns the Spark type for a field's JSON schema.

    Objects, arrays, and fields that have no type or several types become JSON strings.

    Args:
        root: the schema of the stream, in which references are resolved.
        budget: its `parts` entry is the number of schema parts that may still be read.
    """
    limit = Counter(parts=_MOST_PARTS) if budget is None else budget
    types = {str(each): each for each in _list_types(schema, root, limit)}
    if len(types) == 1:
        return next(iter(types.values()))
    if types and all(isinstance(each, (t.LongType, t.DoubleType)) for each in types.values()):
        return t.DoubleType()
    return t.StringType()


def _list_types(schema: Any, root: Mapping[str, Any], budget: Counter[str]) -> Iterator[t.DataType]:
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        budget["parts"] -= 1
        if budget["parts"] < 0:
            return
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Any = root
            for step in reference[2:].split("/"):
                target = target.get(step) if isinstance(target, dict) else None
            waiting.append(target)
            continue
        for name in ("oneOf", "anyOf", "allOf"):
            waiting += _as_list(part.get(name))
        kinds = part.get("type")
        for kind in (kinds,) if isinstance(kinds, str) else _as_list(kinds):
            if kind != "null":
                yield _type_of(kind, part)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(kind: Any, schema: Mapping[str, Any]) -> t.DataType:
    airbyte_type = schema.get("airbyte_type")
    if kind == "string":
        return _string_type(schema.get("format"), airbyte_type)
    if kind == "boolean":
        return t.BooleanType()
    if kind in ("integer", "number"):
        if airbyte_type == "big_integer":
            return t.DecimalType(38, 0)
        if airbyte_type == "big_number":
            return t.StringType()
        return t.LongType() if "integer" in (kind, airbyte_type) else t.DoubleType()
    return t.StringType()


def _string_type(format_: Any, airbyte_type: Any) -> t.DataType:
    if format_ == "date":
        return t.DateType()
    if format_ == "date-time":
        zoneless = airbyte_type == "timestamp_without_timezone"
        return t.TimestampNTZType() if zoneless else t.TimestampType()
    if airbyte_type == "big_integer":
        return t.DecimalType(38, 0)
    return t.StringType()
