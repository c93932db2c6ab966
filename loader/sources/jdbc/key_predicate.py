"""SQL that selects rows by the values of their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.dialect import Dialect

_NAMED = 2_000  # keys in an SQL list; for more, all rows are read
_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?")


def build_key_predicate(dialect: Dialect, columns: Mapping[str, str], keys: DataFrame) -> str:
    """Returns a where clause that selects at least the rows with these keys; empty selects all.

    A value is compared only if the database and Spark write it as the same text: whole numbers,
    and printable ASCII without blanks at its ends. Any other value may have changed on the way to
    Spark: a date in October 1582, a fraction cut off, bytes in an unknown encoding.

    Args:
        columns: SQL for the key's columns, by their names.
        keys: the keys, in columns of these names.
    """
    types = {name: keys.schema[name].dataType for name in columns}
    if not all(map(_askable, types.values())):
        return ""
    rows = keys.select(*(keys[f"`{name.replace('`', '``')}`"] for name in columns))
    found = rows.distinct().limit(_NAMED + 1).collect()
    if not found or len(found) > _NAMED:
        return ""
    conditions = []
    for row in found:
        literals = [_literal(dialect, value) for value in row]
        if None in literals:
            return ""
        pairs = zip(columns.values(), literals, strict=True)
        conditions.append(" and ".join(f"{column} = {literal}" for column, literal in pairs))
    if len(columns) == 1:
        [column] = columns.values()
        values = ", ".join(one.removeprefix(f"{column} = ") for one in conditions)
        return f" where {column} in ({values})"
    return f" where ({') or ('.join(conditions)})"


def _askable(data_type: t.DataType) -> bool:
    if isinstance(data_type, t.DecimalType):
        return data_type.scale == 0
    return isinstance(data_type, (t.IntegralType, t.StringType))


def _literal(dialect: Dialect, value: object) -> str | None:
    """Returns a value as an SQL literal; None if it cannot be compared in SQL."""
    if isinstance(value, str):
        return dialect.text(value) if _PLAIN.fullmatch(value) else None
    if value is None:
        return None
    return dialect.literal(Cursor.parse(str(value), CursorType.DECIMAL))
