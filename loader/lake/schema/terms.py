"""Which changes of a table's columns are followed, and which never: those of its key and cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as t

from loader.errors import TableError
from loader.lake.schema.source_schema import SourceSchema
from loader.lake.schema.widening import followed
from loader.rows.cursor import CursorType


@dataclass(frozen=True)
class Terms:
    """Which changes of a table are followed.

    Attributes:
        where: the table, in errors.
        select: its name on the command line.
        key: the primary key's columns.
        cursor: the cursor column.
        freeze: no change is followed.
        accepts_key_change: types of key and cursor may change as far as raw's columns follow.
        anew: everything is read again, so that no row stays without a new column's value.
        source: of a table that sources share, whose columns these are; each is remembered apart.
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
    """Refuses what would make rows of one key, or their order, incomparable with those in raw.

    Args:
        columns: raw's, by their names in lower case, their types bare.
        before: the source as it was.
        arriving: its columns as they are, as `columns`.

    Raises:
        TableError: names the column, its old and new type, and the way out.
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
        follows = column is None or followed(column.dataType, new.dataType) is not None
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
            else "Raw cannot follow in place: cast it back in a view of the source, or load the "
            "table anew, into another schema or under another name",
        )


def _new_key(name: str, terms: Terms) -> TableError:
    return TableError(
        f"the key column {name!r} is new: the rows in raw have no value in it",
        where=terms.where,
        remedy="Give it its old name in a view of the source; or read everything again with "
        f"`loader run --full-refresh --select {terms.select}`, for models with the new "
        "primary_key and delete_stale: true",
    )
