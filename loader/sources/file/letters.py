"""Keys in JSON that differ from a column only in the case of their letters.

Of `{"id": 1}` and `{"ID": 2}` Spark may make one column `id`, and the second row has null in it.
The lake's names ignore case, so the two cannot be columns of their own either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

# Texts one after the other, so that none begins at a quote within another; a key's is the group.
_KEYS = r'(?s)"(?:([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:|(?:[^"\\]++|\\.)*+")'
_DEPTH = 30
"""Objects within objects that are looked into; Spark cannot plan for many more."""
_OTHER_KEY = r"'[^'\\]*+'\s*+:"


def other_letters(text: Column, schema: t.StructType, options: Mapping[str, str]) -> Column:
    """Returns a key of a line that is a name but for the case of its letters; null if none is.

    A key counts where the name would stand, and if that does not stand beside it.

    Args:
        text: the line: an object, or an array of them.
        schema: the columns that are read.
        options: the reader's, for one value.
    """
    rows = t.ArrayType(schema)
    found = f.coalesce(*(_odd(text, shape, options) for shape in (schema, rows)))
    names = sorted(set(_names(schema)))
    spelt = Counter(name.lower() for name in names)
    several = [name for name in names if spelt[name.lower()] > 1]  # at different places
    keys = f.regexp_extract_all(text, f.lit(_KEYS), f.lit(1))
    suspect = f.exists(
        keys, lambda key: key.contains("\\") | _other(key, names) | key.isin(several)
    )
    bare = {name.lower(): value for name, value in options.items()}.get("allowunquotedfieldnames")
    if str(bare).lower() == "true":
        return found
    return f.when(suspect | text.rlike(_OTHER_KEY), found)


def _odd(
    text: Column, shape: t.DataType, options: Mapping[str, str], depth: int = _DEPTH
) -> Column:
    """Returns the first such key of a value, and of those within it; null if there is none."""
    if depth and isinstance(shape, t.StructType):
        read = f.from_json(text, "map<string,string>", dict(options))
        keys, names = f.map_keys(read), shape.names
        odd = f.filter(
            keys,
            lambda key: (
                _other(key, names)
                & ~f.exists(keys, lambda one: one.isin(names) & (f.lower(one) == f.lower(key)))
            ),
        )
        within = [
            _odd(_value(read, field.name), field.dataType, options, depth - 1)
            for field in shape.fields
            if any(_names(field.dataType))
        ]
        return f.coalesce(f.get(odd, f.lit(0)), *within)
    if isinstance(shape, t.ArrayType):
        values, of_each = f.from_json(text, "array<string>", dict(options)), shape.elementType
    elif isinstance(shape, t.MapType):
        read = f.from_json(text, "map<string,string>", dict(options))
        values, of_each = f.map_values(read), shape.valueType
    else:
        return f.lit(None).cast("string")
    found = f.transform(values, lambda value: _odd(value, of_each, options, depth))
    return f.get(f.filter(found, lambda key: key.isNotNull()), f.lit(0))


def _value(read: Column, name: str) -> Column:
    """Returns the first value of a key; a map with a key twice has no other way to it."""
    return f.get(f.map_values(f.map_filter(read, lambda key, _: key == name)), f.lit(0))


def _other(key: Column, names: list[str]) -> Column:
    return f.lower(key).isin([name.lower() for name in names]) & ~key.isin(names)


def _names(shape: t.DataType) -> Iterator[str]:
    """Yields the names of fields, those within others too."""
    if isinstance(shape, t.ArrayType):
        yield from _names(shape.elementType)
    elif isinstance(shape, t.MapType):
        yield from _names(shape.valueType)
    elif isinstance(shape, t.StructType):
        for field in shape.fields:
            yield field.name
            yield from _names(field.dataType)
