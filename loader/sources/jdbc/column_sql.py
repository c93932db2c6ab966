"""SQL for a table's columns: as the database has them, and as they are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, BinaryType, StringType, TimestampType

from loader.error_report import one_error
from loader.errors import TableError
from loader.rows.cursor import CursorType
from loader.sources.interface import CursorField, SourceTable
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.lossy_values import LossyValue
from loader.sources.jdbc.metadata import NativeColumns
from loader.sources.jdbc.postgresql.continuity import TransactionMark


class ColumnSql:
    """The columns of a database's tables; the base of a snapshot.

    Args:
        source: the database.
        transactions: those of PostgreSQL's snapshot; None for other databases.
    """

    def __init__(self, source: Database, transactions: TransactionMark | None) -> None:
        self.source = source
        self.dialect: Dialect = source.dialect
        self.transactions = transactions

    def alias(self, native: NativeColumns, index: int) -> str:
        """Returns a column's name in the subquery that Spark reads.

        Replaces a name that contains quotes: Spark does not double them when it quotes a name.
        """
        return self.dialect.quote(self._alias_name(native, index))

    def _alias_name(self, native: NativeColumns, index: int) -> str:
        name = native.columns[index]
        return f"strandline_{index}" if self.dialect.quote_character in name else name

    def _instants(self, table: SourceTable) -> list[str]:
        """Returns the columns of the subquery that are points in time; none where names clash.

        Spark would read them as times without a zone, and convert each twice.
        """
        native = table.ref.native
        names = [self._alias_name(native, i) for i in range(len(native.columns))]
        if len({name.lower() for name in names}) < len(names):
            return []  # Spark has no way to name one of them
        return [
            names[i]
            for i, field in enumerate(table.schema.fields)
            if isinstance(field.dataType, TimestampType) and i not in native.as_texts
        ]

    def _list_expressions(self, table: SourceTable, cursor: CursorField | None = None) -> list[str]:
        """Returns SQL for each column as it is loaded; a cursor stays as its index has it."""
        native = table.ref.native
        columns = [self._expression(native, i) for i in range(len(native.columns))]
        if cursor is not None and cursor.type is CursorType.DOUBLE and self.dialect.rounds_floats:
            index = table.schema.names.index(cursor.name)
            columns[index] = self.dialect.double(columns[index])
        for index, sql in native.shown:
            columns[index] = sql.replace("{}", columns[index])
        for doubt in self._list_lossy_values(table, cursor):
            if doubt.loaded:
                columns[doubt.index] = doubt.loaded.replace("{}", columns[doubt.index])
        return columns

    def _list_sums(self, table: SourceTable) -> list[str]:
        """Returns SQL for each column as the database sums it up: as it is loaded.

        A number or time that comes as a text, and has the type that the spec says, is itself.
        """
        columns, native = self._list_expressions(table), table.ref.native
        for index in native.as_texts:
            if not isinstance(table.schema.fields[index].dataType, StringType):
                columns[index] = self._expression(native, index)
        return columns

    def ends(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """Returns SQL for the lowest and the highest cursor; their text has all digits."""
        column = self.column(table, cursor.name)
        ends = [f"min({column})", f"max({column})"]
        if cursor.type is CursorType.DOUBLE:
            return [self.dialect.double(end) for end in ends]
        if cursor.type.is_time:
            return [self.dialect.time(end) for end in ends]
        if cursor.type is CursorType.STRING:  # a char(n) without its padding, as raw has it
            index = table.schema.names.index(cursor.name)
            shown = dict(table.ref.native.shown).get(index, "{}")
            return [shown.replace("{}", end) for end in ends]
        return ends

    def column(self, table: SourceTable, name: str) -> str:
        """Returns SQL for a column, as the database has it."""
        return self._expression(table.ref.native, table.schema.names.index(name))

    def _list_sizes(self, table: SourceTable) -> list[str]:
        """Returns SQL for the bytes of each column whose values may be long, as PostgreSQL's."""
        return [
            f"coalesce(octet_length(cast({column} as text)), 0)"
            for column, field in zip(
                self._list_expressions(table), table.schema.fields, strict=True
            )
            if isinstance(field.dataType, (StringType, BinaryType, ArrayType))
        ]

    def _expression(self, native: NativeColumns, index: int) -> str:
        if native.writers and index == len(native.columns) - 1 and self.transactions is not None:
            return self.transactions.select_writer()
        return self.dialect.quote(native.columns[index])

    def _list_lossy_values(
        self, table: SourceTable, cursor: CursorField | None
    ) -> list[LossyValue]:
        """Returns the columns that may hold values that the lake cannot."""
        names = table.schema.names
        own = names.index(cursor.name) if cursor else None
        return [d for d in table.ref.native.doubts if d.cursors or d.index != own]

    def _list_lossy_counts(
        self, table: SourceTable, cursor: CursorField | None = None
    ) -> list[str]:
        """Returns SQL for how many values of each doubt there are."""
        return [
            _count(doubt.condition(self._expression(table.ref.native, doubt.index)))
            for doubt in self._list_lossy_values(table, cursor)
        ]

    def _list_unusual_counts(
        self, table: SourceTable, cursor: CursorField | None = None
    ) -> list[str]:
        """Returns SQL for fewer counts: if they are zero, those of all doubts are.

        A count costs as much as reading the row. A time has four doubts, and hardly ever a value of
        any of them.
        """
        found = []
        for doubt in self._list_lossy_values(table, cursor):
            column = self._expression(table.ref.native, doubt.index)
            usual = doubt.ordinary.replace("{}", column)
            found.append(_count(f"not {usual}" if usual else doubt.condition(column)))
        return [*dict.fromkeys(found)]

    def _list_warnings(
        self,
        table: SourceTable,
        counts: Sequence[str | None],
        cursor: CursorField | None = None,
    ) -> tuple[str, ...]:
        """Returns the warnings about the values that were found.

        Raises:
            TableError: if some are refused; names all of them.
        """
        notes, errors = [], []
        where = f"table {self.source.name}.{table.ref.name}"
        for doubt, count in zip(self._list_lossy_values(table, cursor), counts, strict=True):
            if not int(count or 0):
                continue
            try:
                notes.append(
                    doubt.describe_loss(int(count or 0), where, table.schema.names[doubt.index])
                )
            except TableError as error:
                errors.append(error)
        if errors:
            raise one_error(errors, where)
        return tuple(notes)


def _count(condition: str) -> str:
    return f"sum(case when {condition} then 1 else 0 end)"
