"""Holds a table's place in its database, and the metadata that the connector reads it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.lossy_values import LossyValue

_PLACED = ("TABLE_SCHEM", "TABLE_NAME", "COLUMN_NAME")
_OF_COLUMNS = (
    *_PLACED,
    "REMARKS",
    *("DATA_TYPE", "SOURCE_DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS"),
)
_OF_LAYOUT = ("TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS")
Described = Mapping[str, Mapping[str, "str | None"]]
"""The database's description of each column."""
Layout = tuple[tuple["str | None", ...], ...]
"""A table's columns and their types; see :func:`build_layout`."""


@dataclass(frozen=True)
class NativeColumns:
    """A table's catalog, schema and name, exactly as the database has them.

    Attributes:
        stored: its rows are stored in this database: it is not a view or a foreign table.
        columns: the columns' names.
        writers: whether the last column is PostgreSQL's system column `xmin`.
        comment: the database's comment on the table.
        doubts: columns with values that the lake may be unable to hold.
        shown: columns that are not loaded as they are: positions, and SQL in which ``{}`` stands
            for the column.
        layout: its columns and their types as described (:func:`build_layout`).
        types: columns, and the types to read them as instead of those that Spark would choose.
        as_texts: positions of the columns to which the spec gives a type: they come as texts.
    """

    catalog: str | None
    schema: str | None
    table: str
    stored: bool = True
    columns: tuple[str, ...] = ()
    writers: bool = False
    comment: str = ""
    doubts: tuple[LossyValue, ...] = ()
    shown: tuple[tuple[int, str], ...] = ()
    layout: Layout = ()
    types: tuple[tuple[str, str], ...] = ()
    as_texts: tuple[int, ...] = ()


def read_native_columns(
    connection: Connection, native: NativeColumns, labels: tuple[str, ...] = _OF_COLUMNS
) -> Described:
    """Returns the database's description of each column: its own type name, its comment.

    Args:
        labels: the properties to ask of each column, with the names of the table and its schema.
    """
    place = (native.catalog, native.schema, native.table)
    rows = connection.metadata("getColumns", *place, "%", labels=labels)
    # The metadata treats names as patterns: `a_b` finds `axb`, too.
    return {
        row["COLUMN_NAME"] or "": row
        for row in rows
        if row["TABLE_NAME"] == native.table and native.schema in (None, row["TABLE_SCHEM"])
    }


def build_layout(described: Described) -> Layout:
    """Returns names and types of the described columns: the same until the table is altered."""
    return tuple((name, *(row[label] for label in _OF_LAYOUT)) for name, row in described.items())


def read_layout(connection: Connection, native: NativeColumns) -> Layout:
    """Asks for a table's layout.

    PostgreSQL locks the table as readers do if one of its columns has a default, so this may wait
    for a session that alters it, or is waiting to.

    Raises:
        DatabaseError: if the table is not free within `lock_timeout`.
    """
    return build_layout(read_native_columns(connection, native, (*_PLACED, *_OF_LAYOUT)))
