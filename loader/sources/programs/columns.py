"""A stream's columns: JSON schema to Spark types, and what the columns cannot take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pyspark.sql import types as t

from loader.sources.programs.values import converter

REST = "_rest"
"""A connector's column: what no other column can take, as a JSON object; null if there is none."""

_DEEPEST = 20


@dataclass(frozen=True)
class Column:
    """A top-level field of a stream's records.

    Attributes:
        name: the field's name, and the column's.
        type: its Spark type.
        convert: turns a JSON value into what the spool holds; see
            :mod:`loader.sources.programs.values`.
    """

    name: str
    type: t.DataType
    convert: Callable[[Any], Any]


def columns(
    schema: Mapping[str, Any], types: Mapping[str, t.DataType], skipped: Sequence[str] = ()
) -> tuple[Column, ...]:
    """Returns the columns of a stream.

    A field whose name differs from another's only in case has none: Spark cannot tell them apart.

    Args:
        schema: the stream's JSON schema.
        types: the spec's own types, by column; they may name fields that the schema lacks.
        skipped: names or wildcards of fields to leave out.
    """
    fields = schema.get("properties")
    declared = fields if isinstance(fields, dict) else {}
    found: dict[str, t.DataType] = {}
    taken: set[str] = {REST}
    for name in (*declared, *(name for name in types if name not in declared)):
        if is_skipped(name, skipped) or not name or _folded(name) in taken:
            continue
        taken.add(_folded(name))
        found[name] = types.get(name) or spark_type(declared[name], schema)
    return tuple(Column(name, type_, converter(type_)) for name, type_ in found.items())


def _folded(name: str) -> str:
    """Returns what Spark compares names by, a letter at a time: a dotless i is an i, too."""
    upper = (big if len(big := letter.upper()) == 1 else letter for letter in name)
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in upper)


def is_skipped(name: str, skipped: Sequence[str]) -> bool:
    """Whether the spec leaves a field out."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in skipped)


def spark_type(schema: Any, root: Mapping[str, Any]) -> t.DataType:
    """Returns the type for a field's JSON schema; a string holds what has no type of its own.

    Objects and arrays, fields without a type and fields of several types are kept as JSON text.

    Args:
        root: the whole stream's schema, for references.
    """
    found = {str(one): one for one in _variants(schema, root, 0)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found and all(isinstance(one, (t.LongType, t.DoubleType)) for one in found.values()):
        return t.DoubleType()
    return t.StringType()


def _variants(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[t.DataType]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        place: Any = root
        for part in reference[2:].split("/"):
            place = place.get(part) if isinstance(place, dict) else None
        yield from _variants(place, root, depth + 1)
        return
    for name in ("oneOf", "anyOf", "allOf"):
        for option in schema.get(name) or ():
            yield from _variants(option, root, depth + 1)
    kinds = schema.get("type") or ()
    for kind in (kinds,) if isinstance(kinds, str) else kinds:
        if kind != "null":
            yield _single(kind, schema)


def _single(kind: str, schema: Mapping[str, Any]) -> t.DataType:
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
