"""Opens the two tables of an audit: the source's table, and its copy in a database."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from loader.audit.copied_table import CopiedTable, CopyRows, Open
from loader.errors import SpecError, did_you_mean
from loader.names import is_wildcard
from loader.rows.cursor import CursorType
from loader.rows.window import Window
from loader.sources.candidates import UPDATE_COLUMN, suggest_cursors
from loader.sources.interface import Source, SourceTable, TableRef


def find_table(source: Source, name: str, where: str) -> TableRef:
    """Finds a source's table or view by name. Case matters only if two names differ only in case.

    Raises a SpecError, which names the argument `where`, if there is no such table.
    """
    refs = source.tables()
    for form in (str, str.lower):
        matches = [ref for ref in refs if form(name) in (form(ref.name), form(ref.origin))]
        if len(matches) == 1:
            return matches[0]
    names = [ref.name for ref in refs]
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    raise SpecError(
        f"the database has no table {name!r}",
        where=where,
        remedy=f"{did_you_mean(name, names)} It has: "
        f"{shown or 'no tables that this user can see'}".strip(),
    )


def choose_key(
    table: SourceTable, copy: CopiedTable, chosen: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the columns in `--key`, or else the primary key, spelled as in the source.

    Raises a SpecError if there is no such column or no key, or if the copy lacks a column.
    """
    key = tuple(find_column(table, name, "--key") for name in chosen) or table.primary_key
    if not key:
        raise SpecError(
            f"table {table.ref.name} has no primary key by which rows could be compared",
            where="--key",
            remedy="Set the columns that identify a row: --key COLUMN, several times if necessary",
        )
    for name in key:
        _require_column(copy, name, "--key")
    return key


def choose_cursor(table: SourceTable, copy: CopiedTable, chosen: str | None) -> str | None:
    """Returns the column that dates rows, or None if no column is suitable.

    Without `--cursor`, prefers a column whose name suggests an update time. Raises a SpecError if
    the table lacks the chosen column, or if its values have no order in time.
    """
    if chosen is not None:
        name = find_column(table, chosen, "--cursor")
        if CursorType.of(table.schema[name].dataType) is None:
            raise SpecError(
                f"{name} has the type {table.schema[name].dataType.simpleString()}, which has "
                "no chronological order",
                where="--cursor",
                remedy="Choose a column with a time, a date or an increasing number",
            )
        _require_column(copy, name, "--cursor")
        return name
    times = [
        name
        for name in suggest_cursors(table)
        if name in copy.columns
        and (type_ := CursorType.of(table.schema[name].dataType))
        and type_.is_time
    ]
    return next((name for name in times if UPDATE_COLUMN.search(name)), next(iter(times), None))


def _require_column(copy: CopiedTable, name: str, option: str) -> None:
    if name not in copy.columns:
        reason = copy.not_compared.get(name, "it is ignored")
        raise SpecError(
            f"{name} cannot be compared with {copy.name}: {reason}",
            where=option,
            remedy=f"Choose another column. The copy's columns: {', '.join(copy.schema.names)}",
        )


def find_column(table: SourceTable, name: str, option: str) -> str:
    """Returns a column spelled as in the source. Raises a SpecError if there is none."""
    for column in table.schema.names:
        if column.lower() == name.lower():
            return column
    names = table.schema.names
    raise SpecError(
        f"table {table.ref.name} has no column {name!r}",
        where=option,
        remedy=f"{did_you_mean(name, names)} Its columns: {', '.join(names)}".strip(),
    )


def select_columns(
    reopen: Callable[[dict[str, object]], Source],
    ref: TableRef,
    columns: Sequence[str],
    key: Sequence[str],
) -> tuple[Source, SourceTable]:
    """Returns a source that reads only some columns of a table, and the table."""
    include = [glob.escape(name) if is_wildcard(name) else name for name in columns]
    source = reopen({"columns": include, "primary_key": list(key)})
    return source, source.describe(ref)


def open_database_copy(spark: SparkSession, source: Source, table: SourceTable) -> Open:
    """Returns a function that opens a copy in a database."""

    @contextmanager
    def open_rows() -> Iterator[CopyRows]:
        window = Window()
        with source.snapshot([table]) as snapshot:

            def read() -> DataFrame:
                return snapshot.read(spark, table, window, snapshot.bounds(table, window))

            yield CopyRows(
                table.schema,
                read,
                # `unique` means one checksum for each row, and keys may repeat.
                lambda key: snapshot.contents(spark, table, key, window, unique=True),
            )

    return open_rows
