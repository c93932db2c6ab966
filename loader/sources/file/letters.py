"""Keys in JSON that differ from a column only in the case of their letters.

Of `{"id": 1}` and `{"ID": 2}` Spark may make one column `id`, and the second row has null in it.
The lake's names ignore case, so the two cannot be columns of their own either.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

_TEXT = r'"(?:[^"\\]++|\\.)*+(?:"|\\?+\z)'
# Texts one after the other, so that none begins at a quote within another. The group is a key, or
# the begin of what only options allow: a text in single quotes, a comment.
_KEYS = rf"(?s){_TEXT}(?!\s*+:)|({_TEXT}|['/])"

_PLACES = (
    "array<struct<names:array<string>,letters:array<string>,"
    "inner:array<struct<name:string,place:int>>,each:int,listed:boolean>>"
)
_FOUND = -1
"""In place of a place: the text is a key that was found."""


def other_letters(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns a key of a line that is a name but for the case of its letters; null if none is.

    A key counts where the name would stand, and if that does not stand beside it.

    Args:
        text: the line: an object, or an array of them.
        schema: the columns that are read.
        options: the reader's, for one value.
    """
    found = _odd(text, schema, options)
    bare = {name.lower(): value for name, value in options.items()}.get("allowunquotedfieldnames")
    if str(bare).lower() == "true":
        return found
    return f.when(_suspect(text, sorted(set(_names(schema)))), found)


def _suspect(text: Column, names: list[str]) -> Column:
    """Returns whether such a key may be in a line: asked of all lines, so it is quick."""
    spelt = Counter(name.lower() for name in names)
    several = [f'"{name}"' for name in names if spelt[name.lower()] > 1]  # at different places
    exact, lowered = ([f'"{name}"' for name in own] for own in (names, spelt))
    return f.exists(
        f.regexp_extract_all(text, f.lit(_KEYS), f.lit(1)),
        lambda key: (
            key.contains("\\")
            | (f.lower(key).isin(lowered) & ~key.isin(exact))
            | key.isin("'", "/", *several)
        ),
    )


def _odd(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns such a key, wherever in a line it stands; null if there is none.

    The schema is data, and a loop goes down its levels: Spark cannot plan for an expression that
    grows with a schema's depth.
    """
    places: list[dict[str, Any]] = []
    whole = t.ArrayType(schema)
    _add(whole, places)
    known = f.from_json(f.lit(json.dumps(places)), _PLACES)

    def placed(value: Column) -> Column:
        return f.struct(f.get(known, value["place"]).alias("place"), value["text"].alias("text"))

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
        return f.flatten(f.transform(f.transform(f.transform(values, placed), read), _within))

    start = f.array(_value(f.lit(0), text), _value(f.lit(1), text))
    levels = f.sequence(f.lit(1), f.lit(_levels(whole)))
    end = f.aggregate(levels, start, level)
    return f.get(f.filter(end, lambda value: value["place"] == _FOUND), f.lit(0))["text"]


def _within(value: Column) -> Column:
    """Returns what is to be looked into on the next level, and the keys that were found."""
    place, keys = value["place"], value["keys"]
    here = f.map_keys(keys)
    names, letters, each = place["names"], place["letters"], place["each"]
    odd = f.filter(
        f.array_except(here, names),
        lambda key: (
            f.array_contains(letters, f.lower(key))
            & ~f.exists(
                here,
                lambda one: (f.lower(one) == f.lower(key)) & f.array_contains(names, one),
            )
        ),
    )
    values = f.coalesce(value["values"], f.map_values(keys))
    following = f.array(
        f.when(place.isNull(), f.array(_found(value["text"]))),  # on an earlier level
        f.transform(odd, _found),
        f.transform(
            place["inner"], lambda field: _value(field["place"], _last(keys, field["name"]))
        ),
        f.when(each.isNotNull(), f.transform(values, lambda one: _value(each, one))),
    )
    return f.flatten(f.filter(following, lambda ones: ones.isNotNull()))


def _value(place: Column, text: Column) -> Column:
    # Never null: Spark would go on with the types of the loop's start, in which nothing is null.
    return f.struct(place.alias("place"), f.coalesce(text, f.lit("")).alias("text"))


def _found(key: Column) -> Column:
    return _value(f.lit(_FOUND), key)


def _last(keys: Column, name: Column) -> Column:
    """Returns the value that Spark reads if a key is there twice."""
    return f.get(f.reverse(f.map_values(f.map_filter(keys, lambda key, _: key == name))), f.lit(0))


def _add(shape: t.DataType, places: list[dict[str, Any]]) -> int | None:
    """Adds the places of a type and of those within it, as _PLACES has them.

    Returns:
        The type's own place; None if it has no names in it.
    """
    if not any(_names(shape)):
        return None
    own = len(places)
    place: dict[str, Any] = {"names": [], "letters": [], "inner": [], "listed": False}
    places.append(place)
    if isinstance(shape, t.StructType):
        place["names"] = shape.names
        place["letters"] = [name.lower() for name in shape.names]
        inner = ((field.name, _add(field.dataType, places)) for field in shape.fields)
        place["inner"] = [{"name": name, "place": of} for name, of in inner if of is not None]
    else:
        [of_each] = _inner(shape)
        place["each"] = _add(of_each, places)
        place["listed"] = isinstance(shape, t.ArrayType)
    return own


def _levels(shape: t.DataType) -> int:
    inner = _inner(shape)
    return 1 + max(map(_levels, inner)) if inner else 0


def _names(shape: t.DataType) -> Iterator[str]:
    """Yields the names of fields, those within others too."""
    if isinstance(shape, t.StructType):
        yield from shape.names
    for inner in _inner(shape):
        yield from _names(inner)


def _inner(shape: t.DataType) -> list[t.DataType]:
    """Returns the types of the values that are directly within one of a type."""
    if isinstance(shape, t.StructType):
        return [field.dataType for field in shape.fields]
    if isinstance(shape, t.ArrayType):
        return [shape.elementType]
    return [shape.valueType] if isinstance(shape, t.MapType) else []
