"""Reads the streams of a program's catalog, and maps their JSON schemas to Spark columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pyspark.sql import types as t

from loader.connectors.subprocess.json_values import make_converter
from loader.errors import TableError

REST = "_rest"
"""A connector's column: what no other column can take, as a JSON object; null if there is none."""
LONGEST_NAME = 255
"""The most characters of a column's name; what has a longer one is in :data:`REST`."""
_MOST_PARTS = 100_000
"""So many parts of a schema are read for a stream's types: references may lead to them again."""


def read_streams(
    catalog: Any, stream: TypeAdapter[Any], program: str, remedy: str, where: str
) -> list[Mapping[str, Any]]:
    """Returns the streams of a catalog as the program wrote them.

    Args:
        stream: describes a stream.
        program: the program that wrote the catalog, for messages.

    Raises:
        TableError: if a part of the catalog is of another kind.
    """
    streams = catalog.get("streams") if isinstance(catalog, dict) else None
    problem = None if isinstance(streams, list) else "it has no list of streams"
    for number, each in enumerate([] if problem else streams or [], 1):
        try:
            stream.validate_python(each)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            problem = ", ".join(filter(None, (f"stream {number}", place))) + f": {wrong['msg']}"
            break
    if problem is not None:
        raise TableError(
            f"the {program}'s catalog cannot be read: {problem}", where=where, remedy=remedy
        )
    return list(streams or [])


@dataclass(frozen=True)
class Column:
    """A top-level field of a stream's records.

    Attributes:
        name: the field's name, and the column's.
        type: its Spark type.
        convert: turns a JSON value into the spool's form; see
            :mod:`loader.connectors.subprocess.json_values`.
    """

    name: str
    type: t.DataType
    convert: Callable[[Any], Any]


def build_columns(
    schema: Mapping[str, Any],
    types: Mapping[str, t.DataType],
    skipped: Sequence[str] = (),
    where: str = "",
) -> tuple[Column, ...]:
    """Returns the columns of a stream.

    A field whose name differs from another's only in case has none: Spark cannot tell them apart.

    Args:
        schema: the stream's JSON schema.
        types: the spec's own types, by column; they may name fields that the schema lacks.
        skipped: names or wildcards of fields to leave out.
        where: the table, for messages.

    Raises:
        TableError: if the schema's references lead to too many others.
    """
    fields = schema.get("properties")
    declared = fields if isinstance(fields, dict) else {}
    found: dict[str, t.DataType] = {}
    taken: set[str] = {REST}
    budget = Counter(parts=_MOST_PARTS)
    for name in (*declared, *(name for name in types if name not in declared)):
        if is_skipped(name, skipped) or not name or _fold_case(name) in taken:
            continue
        if len(name) > LONGEST_NAME and name not in types:
            continue
        taken.add(_fold_case(name))
        found[name] = types.get(name) or spark_type(declared[name], schema, budget)
        if budget["parts"] < 0:
            raise TableError(
                f"its JSON schema's references lead to more than {_MOST_PARTS:,} parts",
                where=where,
                remedy="Leave fields out: skip_columns; or give them a type: column_types",
            )
    return tuple(Column(name, type_, make_converter(type_)) for name, type_ in found.items())


def _fold_case(name: str) -> str:
    """Folds a name's case as Spark does, one letter at a time: a dotless i is an i, too."""
    upper = (big if len(big := letter.upper()) == 1 else letter for letter in name)
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in upper)


def is_skipped(name: str, skipped: Sequence[str]) -> bool:
    """Returns whether the spec leaves a field out."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in skipped)


def spark_type(
    schema: Any, root: Mapping[str, Any], budget: Counter[str] | None = None
) -> t.DataType:
    """Returns the type for a field's JSON schema; a string holds what has no type of its own.

    Objects and arrays, fields without a type and fields of several types are kept as JSON text.

    Args:
        root: the whole stream's schema, for references.
        budget: counts down `parts`, the parts of the schema that may still be read.
    """
    limit = Counter(parts=_MOST_PARTS) if budget is None else budget
    found = {str(one): one for one in _variants(schema, root, limit)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found and all(isinstance(one, (t.LongType, t.DoubleType)) for one in found.values()):
        return t.DoubleType()
    return t.StringType()


def _variants(schema: Any, root: Mapping[str, Any], budget: Counter[str]) -> Iterator[t.DataType]:
    """Yields the types that a schema allows; each of its parts is read once."""
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
            place: Any = root
            for step in reference[2:].split("/"):
                place = place.get(step) if isinstance(place, dict) else None
            waiting.append(place)
            continue
        for name in ("oneOf", "anyOf", "allOf"):
            waiting += _list(part.get(name))
        kinds = part.get("type")
        for kind in (kinds,) if isinstance(kinds, str) else _list(kinds):
            if kind != "null":
                yield _single(kind, part)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _single(kind: Any, schema: Mapping[str, Any]) -> t.DataType:
    named = schema.get("airbyte_type")
    if kind == "string":
        return _text(schema.get("format"), named)
    if kind == "boolean":
        return t.BooleanType()
    if kind in ("integer", "number"):
        if named == "big_integer":
            return t.DecimalType(38, 0)
        if named == "big_number":
            return t.StringType()
        return t.LongType() if "integer" in (kind, named) else t.DoubleType()
    return t.StringType()


def _text(form: Any, named: Any) -> t.DataType:
    if form == "date":
        return t.DateType()
    if form == "date-time":
        zoneless = named == "timestamp_without_timezone"
        return t.TimestampNTZType() if zoneless else t.TimestampType()
    if named == "big_integer":
        return t.DecimalType(38, 0)
    return t.StringType()
