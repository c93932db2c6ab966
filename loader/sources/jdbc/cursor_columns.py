"""Checks whether a table's cursor is usable, and how the database orders it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StringType, StructType

from loader.errors import TableError
from loader.sources.interface import TableRef
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.lossy_values import BIT, TIMES
from loader.sources.jdbc.metadata import ColumnDescriptions, NativeColumns
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.postgresql.continuity import XMIN


def has_writer_cursor(source: Database, ref: TableRef, described: ColumnDescriptions) -> bool:
    """Returns whether the cursor is the system column xmin, the id of the writing transaction.

    Raises:
        TableError: if the spec sets this cursor, but the table does not support it.
    """
    options = source.read_options(ref)
    candidates = [name.lower() for name in options.cursor_field or ()]
    first = (options.choose_cursor([*described, XMIN]) or "").lower()
    if first != XMIN or XMIN in described or not source.dialect.shares_snapshots:
        return False
    if len(candidates) > 1 and not ref.native.stored:
        return False  # the list of cursors may be meant for other tables
    where = f"table {source.name}.{ref.name}, cursor_field"
    if not ref.native.stored:
        raise TableError(
            "views and foreign tables do not record which transaction wrote a row",
            where=where,
            remedy="Choose a column, or read its underlying tables",
        )
    if options.lookback is not None:
        raise TableError(
            "the cursor xmin finds late rows without a lookback",
            where=where,
            remedy="Remove the lookback",
        )
    return True


def refuse_unordered_cursor(
    source: Database, ref: TableRef, described: ColumnDescriptions, cursor: str
) -> None:
    """Raises a TableError if the cursor's values have no usable order.

    Args:
        cursor: the cursor's name in lower case.
    """
    for name, row in described.items():
        reason = _explain_disorder(source.dialect, row)
        if name.lower() == cursor and reason:
            cast = ", or read the table through a view that casts it to an integer"
            raise TableError(
                f"{name} is a {reason}",
                where=f"table {source.name}.{ref.name}, cursor_field",
                remedy=f"Choose another column{'' if row['DATA_TYPE'] in TIMES else cast}",
            )


def _explain_disorder(dialect: Dialect, row: Mapping[str, str | None]) -> str:
    """Returns the reason why a column cannot be a cursor, or an empty string."""
    type_name, size = row["TYPE_NAME"] or "", row["COLUMN_SIZE"]
    if row["DATA_TYPE"] == BIT and int(size or 1) > 1:
        return f"{type_name}({size}), which has no order"  # compared as a number, sorted as text
    if isinstance(dialect, MySQL) and type_name.upper() in ("ENUM", "SET"):
        return f"{type_name}, which compares by text but sorts by position"
    if row["DATA_TYPE"] in TIMES:
        return f"{type_name}, a time of day, which repeats every day"
    return ""


def find_collated_cursor(
    source: Database, ref: TableRef, schema: StructType, cursor: str
) -> frozenset[str]:
    """Returns the cursor if it is a string that is not ordered by bytes; otherwise an empty set.

    Args:
        schema: the columns, with their names in the database.
        cursor: the cursor's name in lower case.
    """
    native: NativeColumns = ref.native
    place = (native.catalog, native.schema, native.table)
    collated = set()
    for column in schema.fields:
        if column.name.lower() != cursor or not isinstance(column.dataType, StringType):
            continue
        if native.query:
            collated.add(source.dialect.lake_name(column.name))
            continue
        with source.lend_catalog_connection(f"table {source.name}.{ref.name}") as connection:
            if not source.dialect.is_ordered_by_bytes(connection, place, column.name):
                collated.add(source.dialect.lake_name(column.name))
    return frozenset(collated)
