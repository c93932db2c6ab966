"""Keys in JSON that differ from a column only in the case of their letters.

Of `{"id": 1}` and `{"ID": 2}` Spark may make one column `id`, and the second row has null in it.
The lake's names ignore case, so the two cannot be columns of their own either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

# A quote within a text is escaped, so that no text looks like a key.
_KEY = r'"((?:[^"\\]++|\\.)*+)"\s*+:'


def other_letters(text: Column, schema: t.StructType, declared: bool) -> Column:
    """Returns a key of a line that is a name but for the case of its letters; null if none is.

    Args:
        text: the line.
        schema: the columns that are read.
        declared: whether the spec names the columns. Then what they leave out may have any names:
            a key counts only if the line has other values once the key is written as the name.
    """
    names = sorted(set(_names(schema)))
    lower = [name.lower() for name in names]
    keys = f.regexp_extract_all(text, f.lit(_KEY), f.lit(1))
    odd = f.filter(keys, lambda key: f.lower(key).isin(lower) & ~key.isin(names))
    found = f.get(odd, f.lit(0))
    if not declared:
        return found
    corrected = text
    for name in (name for name in names if lower.count(name.lower()) == 1):
        key, written = re.escape(name), name.replace("\\", "\\\\").replace("$", "\\$")
        corrected = f.regexp_replace(corrected, rf'(?iu)"{key}"(\s*:)', f'"{written}"$1')
    read, meant = (
        f.to_json(f.struct(*(f.from_json(value, shape) for shape in (schema, t.ArrayType(schema)))))
        for value in (text, corrected)
    )
    return f.when(found.isNotNull() & (read != meant), found)


def _names(data_type: t.DataType) -> Iterator[str]:
    """Yields the names of fields, those within others too."""
    if isinstance(data_type, t.ArrayType):
        yield from _names(data_type.elementType)
    elif isinstance(data_type, t.StructType):
        for field in data_type.fields:
            yield field.name
            yield from _names(field.dataType)
