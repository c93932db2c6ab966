"""Reads a table's metadata from its database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from loader.errors import TableError
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.lossy_values import LossyValue
from loader.spark.error_translation import DatabaseError

_PLACED = ("TABLE_SCHEM", "TABLE_NAME", "COLUMN_NAME")
_OF_COLUMNS = (
    *_PLACED,
    "REMARKS",
    *("DATA_TYPE", "SOURCE_DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS"),
)
_OF_LAYOUT = ("TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS")
ColumnDescriptions = Mapping[str, Mapping[str, "str | None"]]
"""The database's description of each column (``DatabaseMetaData.getColumns``)."""
ColumnLayout = tuple[tuple["str | None", ...], ...]
"""The names and types of a table's columns; see :func:`build_layout`."""


@dataclass(frozen=True)
class NativeColumns:
    """A table in its database, and instructions for reading its columns.

    Attributes:
        catalog, schema, table: the exact names in the database.
        stored: whether the database stores the rows; false for views and foreign tables.
        has_xmin: whether the last column is PostgreSQL's system column `xmin`.
        shown: pairs of a column's position and SQL that converts the column (``{}``).
        layout: the names and types of the columns when they were described (:func:`build_layout`).
        types: the types of the columns for which the loader overrides Spark's choice.
        as_texts: the positions of columns that the database sends as strings because the spec sets
            their types.
        where: a condition that selects the rows to load; empty selects all rows.
        query: a SELECT whose result is loaded as the table; empty if the table is in the database.
    """

    catalog: str | None
    schema: str | None
    table: str
    stored: bool = True
    columns: tuple[str, ...] = ()
    has_xmin: bool = False
    comment: str = ""
    lossy_values: tuple[LossyValue, ...] = ()
    shown: tuple[tuple[int, str], ...] = ()
    layout: ColumnLayout = ()
    types: tuple[tuple[str, str], ...] = ()
    as_texts: tuple[int, ...] = ()
    where: str = ""
    query: str = ""

    @property
    def selection(self) -> str:
        """A hash of the filter or query; empty for a whole table."""
        kind, sql = ("query", self.query) if self.query else ("where", self.where)
        return hashlib.sha256(f"{kind} {sql.strip()}".encode()).hexdigest() if sql else ""


def read_native_columns(
    connection: Connection, native: NativeColumns, labels: tuple[str, ...] = _OF_COLUMNS
) -> ColumnDescriptions:
    """Reads the description of each column.

    Args:
        labels: the properties to read, which must include the names of the table and the schema.
            For a query, all properties are read.
    """
    if native.query:
        return _read_query_columns(connection, native.query)
    place = (native.catalog, native.schema, native.table)
    rows = connection.metadata("getColumns", *place, "%", labels=labels)
    # JDBC treats names as patterns, so `a_b` also matches `axb`.
    return {
        row["COLUMN_NAME"] or "": row
        for row in rows
        if row["TABLE_NAME"] == native.table and native.schema in (None, row["TABLE_SCHEM"])
    }


@contextmanager
def add_remedy(remedy: str) -> Iterator[None]:
    """Adds a remedy to database errors that have none, such as syntax errors."""
    try:
        yield
    except DatabaseError as error:
        error.remedy = error.remedy or remedy
        raise


def _read_query_columns(connection: Connection, query: str) -> ColumnDescriptions:
    """Reads the description of each column of a query. Rejects duplicate names."""
    # Thanks to the line breaks, the database's errors quote the query as it is in the spec.
    with add_remedy("Correct the SELECT; test it in a client of the database"):
        listed = connection.describe(f"select * from (\n{query}\n) strandline_rows where 1 = 0")
    described = {row["COLUMN_NAME"] or "": row for row in listed}
    if len(described) < len(listed):
        names = [row["COLUMN_NAME"] or "" for row in listed]
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(
            f"the query returns two columns {twice!r}",
            where=connection.where,
            remedy="List the columns instead of *, and rename one of the two: "
            f"{twice} as other_{twice}",
        )
    return described


def build_layout(described: ColumnDescriptions) -> ColumnLayout:
    """Returns the names and types of the columns, which change only if the table is altered."""
    return tuple((name, *(row[label] for label in _OF_LAYOUT)) for name, row in described.items())


def read_layout(connection: Connection, native: NativeColumns) -> ColumnLayout:
    """Reads the current names and types of a table's columns.

    If a column has a default, PostgreSQL requests a read lock on the table, so this call may have
    to wait for a session that is altering the table or waiting to alter it.

    Raises:
        DatabaseError: if another session keeps the table locked for longer than `lock_timeout`.
    """
    return build_layout(read_native_columns(connection, native, (*_PLACED, *_OF_LAYOUT)))
