"""Keys in JSON that differ from a column only in the case of their letters.

Of `{"id": 1}` and `{"ID": 2}` Spark may make one column `id`, and the second row has null in it.
The lake's names ignore case, so the two cannot be columns of their own either.
"""

from __future__ import annotations

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
        declared: whether the spec names the columns. Then what they leave out may have any names,
            and only keys of the outermost object are judged.
    """
    names = sorted(set(schema.names if declared else _names(schema)))
    lower = sorted({name.lower() for name in names})

    def odd(keys: Column) -> Column:
        alike = f.filter(keys, lambda key: f.lower(key).isin(lower) & ~key.isin(names))
        return f.get(alike, f.lit(0))

    anywhere = odd(f.regexp_extract_all(text, f.lit(_KEY), f.lit(1)))
    # Parsing the line takes twice as long.
    return f.when(anywhere.isNotNull(), odd(f.json_object_keys(text))) if declared else anywhere


def _names(data_type: t.DataType) -> Iterator[str]:
    """Yields the names of fields, those within others too."""
    if isinstance(data_type, t.ArrayType):
        yield from _names(data_type.elementType)
    elif isinstance(data_type, t.StructType):
        for field in data_type.fields:
            yield field.name
            yield from _names(field.dataType)
