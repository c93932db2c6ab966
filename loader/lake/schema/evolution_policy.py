"""Decides which schema changes raw follows; changes of key and cursor are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.schema.source_schema import SourceSchema
from loader.lake.schema.widening import find_wider_type
from loader.rows.cursor import CursorType


@dataclass(frozen=True)
class Terms:
    """The policy of one table: which schema changes raw follows.

    Attributes:
        where: the table, in errors.
        select: its name on the command line.
        key: the primary key's columns.
        cursor: the cursor column.
        freeze: refuses every change.
        accepts_key_change: key and cursor columns may change their type if raw can follow.
        anew: everything is read again, so every row gets a value in a new column.
        source: whose columns these are, if sources share the table; each has its own property.
    """

    where: str
    select: str = ""
    key: Sequence[str] = ()
    cursor: str | None = None
    freeze: bool = False
    accepts_key_change: bool = False
    anew: bool = False
    source: str = ""


def check_key_and_cursor(
    columns: Mapping[str, t.StructField],
    before: SourceSchema,
    arriving: Mapping[str, t.StructField],
    terms: Terms,
) -> None:
    """Refuses changes after which new rows' keys or order cannot be compared with those in raw.

    Args:
        columns: raw's columns by name in lower case, with bare types.
        before: the source as it was.
        arriving: the source's columns as they are, in the same form as `columns`.

    Raises:
        TableError: if there is one; names the column, its old and new type, and the way out.
    """
    cursor = terms.cursor.lower() if terms.cursor else None
    key = {name.lower() for name in terms.key}
    for name in [*sorted(key), *({cursor} - key if cursor else ())]:
        column, old, new = columns.get(name), before.columns.get(name), arriving[name]
        if name in key and old is None and not terms.anew:
            raise _new_key(new.name, terms)
        was = old or column
        if was is None:
            continue
        follows = column is None or find_wider_type(column.dataType, new.dataType) is not None
        if name == cursor:
            follows &= CursorType.of(was.dataType) is CursorType.of(new.dataType)
        changed = old is not None and old.dataType != new.dataType
        if follows and (terms.accepts_key_change or not changed):
            continue
        shown = was if changed or column is None else column
        role = "key" if name in key else "cursor"
        raise TableError(
            f"the {role} column {new.name!r} changed its type from "
            f"{shown.dataType.simpleString()} to {new.dataType.simpleString()}",
            where=terms.where,
            remedy=f"Accept it with `loader run --accept-key-change --select {terms.select}`: "
            "raw can follow in place"
            if follows
            else "Raw cannot follow in place: take it back in column_types or by a view of the "
            "source, or load the table again, into another schema or under another name",
        )


def _new_key(name: str, terms: Terms) -> TableError:
    return TableError(
        f"the key column {name!r} is new: the rows in raw have no value for it",
        where=terms.where,
        remedy="If it was renamed, give it its old name in a view of the source. Else read "
        f"everything again with `loader run --full-refresh --select {terms.select}`, and give the "
        "models the new primary_key and delete_stale: true",
    )
