"""Finds JSON keys that differ from a column name only in case.

From `{"id": 1}` and `{"ID": 2}`, Spark may infer one column `id`, which is null in the second row.
Names in the lake are case-insensitive, so `id` and `ID` cannot be two columns.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from os.path import commonprefix
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

_PLACES = (
    "array<struct<names:array<string>,lowered:array<string>,"
    "inner:array<struct<name:string,place:int>>,each:int,listed:boolean>>"
)
_FOUND = -1
"""The value of `place` if the text is a miscased key."""


def find_miscased_key(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns a key that differs from a name in the schema only in case, or null if there is none.

    Keys are compared with the names at the same level. A key is ignored if its object also has a
    key that matches the name exactly.
    """
    key = _find_odd_key(text, schema, options)
    return key if _allows_bare_keys(options) else f.when(_suspect(text, schema), key)


def _allows_bare_keys(options: Mapping[str, str]) -> bool:
    given = {name.lower(): value for name, value in options.items()}
    return str(given.get("allowunquotedfieldnames")).lower() == "true"


def is_plain(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns whether a line is so simple that it needs no further checks.

    Such a line is one object without nested objects. It has no empty keys, no keys that may differ
    from a name only in case, and no replacement characters, which mark undecodable bytes.
    """
    if _allows_bare_keys(options):
        return f.lit(False)
    tokens = _tokens(schema, "[^\"'/{}\\x00\\uFFFD]++")
    return text.rlike(rf"(?s)\A\{{{tokens}\}}\z")


def _suspect(text: Column, schema: t.StructType) -> Column:
    """Returns whether a line may contain a miscased key (a cheap pre-check)."""
    tokens = _tokens(schema, "[^\"'/]++")
    return ~text.rlike(rf"(?s)\A{tokens}\z")


def _tokens(schema: t.StructType, between: str) -> str:
    """Returns a pattern for a sequence of quoted strings and the characters between them.

    The pattern must match from the start of the line, because a match could otherwise start at an
    escaped quote. Lines with single quotes or comments, which options may allow, do not match.
    """
    names = sorted(set(_names(schema)))
    spelt = Counter(name.lower() for name in names)
    # A name that occurs with two spellings needs the full check.
    exact = [name for name in names if name and spelt[name.lower()] == 1]
    value = r'"(?:[^"\\\x00\uFFFD]++|\\.)*+"(?!\s*+:)'
    known_key = rf'"{_any_of(exact)}(?=\s*+:)'
    other_key = rf'"(?!(?i:{_any_of(spelt)}))[ -~&&[^"\\]]++"(?=\s*+:)'
    return f"(?:{between}|{value}|{known_key}|{other_key})*+"


def _any_of(names: Collection[str]) -> str:
    """Returns a pattern (a prefix tree) that matches any of the names and the closing quote."""

    def branch(tails: list[str]) -> str:
        begin = commonprefix(tails)  # noqa: RUF071 - a prefix of characters, not of folders
        if len(tails) == 1:
            return re.escape(begin)
        rest = groupby((tail.removeprefix(begin) for tail in tails), lambda tail: tail[:1])
        return f"{re.escape(begin)}(?:{'|'.join(branch(list(same)) for _, same in rest)})"

    return branch(sorted(f'{name}"' for name in names)) if names else "(?!)"


def _find_odd_key(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns a miscased key at any level of a line, or null if there is none.

    The schema is passed as data, and a loop descends through its levels, because Spark cannot plan
    an expression that grows with the depth of the schema.
    """
    places: list[dict[str, Any]] = []
    root = t.ArrayType(schema)
    _add(root, places)
    lookup = f.from_json(f.lit(json.dumps(places)), _PLACES)

    def placed(value: Column) -> Column:
        return f.struct(f.get(lookup, value["place"]).alias("place"), value["text"].alias("text"))

    def read(value: Column) -> Column:
        place, inside, listed = value["place"], value["text"], value["place"]["listed"]
        keys = f.from_json(inside, "map<string,string>", dict(options))
        values = f.from_json(inside, "array<string>", dict(options))
        return f.struct(
            place.alias("place"),
            inside.alias("text"),
            f.when(~listed, keys).alias("keys"),
            f.when(listed, values).alias("values"),
        )

    def level(values: Column, _: Column) -> Column:
        return f.flatten(f.transform(f.transform(f.transform(values, placed), read), _next_level))

    start = f.array(_value(f.lit(0), text), _value(f.lit(1), text))
    levels = f.sequence(f.lit(1), f.lit(_levels(root)))
    end = f.aggregate(levels, start, level)
    return f.get(f.filter(end, lambda value: value["place"] == _FOUND), f.lit(0))["text"]


def _next_level(value: Column) -> Column:
    """Returns the values at the next level, and the miscased keys found so far."""
    place, keys = value["place"], value["keys"]
    present_keys = f.map_keys(keys)
    names, lowered, each = place["names"], place["lowered"], place["each"]
    odd = f.filter(
        f.array_except(present_keys, names),
        lambda key: (
            f.array_contains(lowered, f.lower(key))
            & ~f.exists(
                present_keys,
                lambda item: (f.lower(item) == f.lower(key)) & f.array_contains(names, item),
            )
        ),
    )
    values = f.coalesce(value["values"], f.map_values(keys))
    following = f.array(
        # If `place` is null, the value is a miscased key from a previous level.
        f.when(place.isNull(), f.array(_match(value["text"]))),
        f.transform(odd, _match),
        f.transform(
            place["inner"], lambda field: _value(field["place"], _last_value(keys, field["name"]))
        ),
        f.when(each.isNotNull(), f.transform(values, lambda item: _value(each, item))),
    )
    return f.flatten(f.filter(following, lambda items: items.isNotNull()))


def _value(place: Column, text: Column) -> Column:
    # Spark takes the nullability from the loop's initial value, so the text must not be null.
    return f.struct(place.alias("place"), f.coalesce(text, f.lit("")).alias("text"))


def _match(key: Column) -> Column:
    return _value(f.lit(_FOUND), key)


def _last_value(keys: Column, name: Column) -> Column:
    """Returns a key's value; for a duplicate key, the last one, which Spark's reader also uses."""
    return f.get(f.reverse(f.map_values(f.map_filter(keys, lambda key, _: key == name))), f.lit(0))


def _add(shape: t.DataType, places: list[dict[str, Any]]) -> int | None:
    """Appends a type's entries in the format of `_PLACES`. Returns the first entry's index.

    Appends nothing and returns None if the type contains no field names.
    """
    if not any(_names(shape)):
        return None
    index = len(places)
    place: dict[str, Any] = {"names": [], "lowered": [], "inner": [], "listed": False}
    places.append(place)
    if isinstance(shape, t.StructType):
        place["names"] = shape.names
        place["lowered"] = [name.lower() for name in shape.names]
        inner = ((field.name, _add(field.dataType, places)) for field in shape.fields)
        place["inner"] = [
            {"name": name, "place": child} for name, child in inner if child is not None
        ]
    else:
        [of_each] = _inner(shape)
        place["each"] = _add(of_each, places)
        place["listed"] = isinstance(shape, t.ArrayType)
    return index


def _levels(shape: t.DataType) -> int:
    inner = _inner(shape)
    return 1 + max(map(_levels, inner)) if inner else 0


def _names(shape: t.DataType) -> Iterator[str]:
    if isinstance(shape, t.StructType):
        yield from shape.names
    for inner in _inner(shape):
        yield from _names(inner)


def _inner(shape: t.DataType) -> list[t.DataType]:
    if isinstance(shape, t.StructType):
        return [field.dataType for field in shape.fields]
    if isinstance(shape, t.ArrayType):
        return [shape.elementType]
    return [shape.valueType] if isinstance(shape, t.MapType) else []
