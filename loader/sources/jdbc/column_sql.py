"""Builds SQL for the columns of a table and the rows of a window."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, BinaryType, StringType, TimestampType

from loader.errors import TableError, one_error
from loader.rows.cursor import Cursor, CursorType
from loader.sources.interface import Bounds, CursorField, SourceTable, Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.lossy_values import LossyValue
from loader.sources.jdbc.metadata import NativeColumns
from loader.sources.jdbc.postgresql.continuity import TransactionMark

_NEEDS_TEXT = (CursorType.DATE, CursorType.STRING)
"""Cursor types whose strings differ between the database and the driver."""


class ColumnSql:
    """The base class of snapshots. It builds SQL for a table's columns.

    Args:
        transactions: the PostgreSQL snapshot's transaction state; None for other databases.
    """

    def __init__(self, source: Database, transactions: TransactionMark | None) -> None:
        self.source = source
        self.dialect: Dialect = source.dialect
        self.transactions = transactions

    def alias(self, native: NativeColumns, index: int) -> str:
        """Returns the quoted name of a column in the subquery that Spark reads.

        Replaces a name that contains quotes, because Spark does not escape them.
        """
        return self.dialect.quote(self._alias_name(native, index))

    def _alias_name(self, native: NativeColumns, index: int) -> str:
        name = native.columns[index]
        return f"strandline_{index}" if self.dialect.quote_character in name else name

    def _instants(self, table: SourceTable) -> list[str]:
        """Returns the subquery's columns that are instants.

        Without this list, Spark would read instants as times without a time zone and convert each
        value twice. Returns none if names differ only in case, because Spark cannot then address
        the columns by name.
        """
        native = table.ref.native
        names = [self._alias_name(native, i) for i in range(len(native.columns))]
        if len({name.lower() for name in names}) < len(names):
            return []
        return [
            names[i]
            for i, field in enumerate(table.schema.fields)
            if isinstance(field.dataType, TimestampType) and i not in native.as_texts
        ]

    def _list_expressions(self, table: SourceTable, cursor: CursorField | None = None) -> list[str]:
        """Returns SQL for the loaded value of each column.

        A check that does not apply to cursor columns (``LossyValue.cursors``) leaves the cursor as
        it is.
        """
        native = table.ref.native
        columns = [self._expression(native, i) for i in range(len(native.columns))]
        if cursor is not None and cursor.type is CursorType.DOUBLE and self.dialect.rounds_floats:
            index = table.schema.names.index(cursor.name)
            columns[index] = self.dialect.double(columns[index])
        for index, sql in native.shown:
            columns[index] = sql.replace("{}", columns[index])
        for check in self._list_lossy_values(table, cursor):
            if check.loaded:
                columns[check.index] = check.loaded.replace("{}", columns[check.index])
        return columns

    def _list_sums(self, table: SourceTable) -> list[str]:
        """Returns SQL for the values to hash: stored ones if Spark casts them, else loaded ones."""
        columns, native = self._list_expressions(table), table.ref.native
        for index in native.as_texts:
            if not isinstance(table.schema.fields[index].dataType, StringType):
                columns[index] = self._expression(native, index)
        return columns

    def ends(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """Returns SQL for the lowest and the highest cursor, with all digits."""
        column = self.column(table, cursor.name)
        ends = [f"min({column})", f"max({column})"]
        if cursor.type is CursorType.DOUBLE:
            return [self.dialect.double(end) for end in ends]
        if cursor.type.is_time:
            return [self.dialect.time(end) for end in ends]
        if cursor.type is CursorType.STRING:  # removes char(n) padding
            index = table.schema.names.index(cursor.name)
            shown = dict(table.ref.native.shown).get(index, "{}")
            return [shown.replace("{}", end) for end in ends]
        return ends

    def read_ends(
        self, connection: Connection, cursor: CursorField, sql: str
    ) -> list[tuple[str | None, ...]]:
        """Runs a query that selects :meth:`ends` and possibly other numbers and timestamps."""
        is_fast = self.dialect.shares_snapshots and cursor.type not in _NEEDS_TEXT
        return connection.text_rows(sql) if is_fast else connection.rows(sql)

    def column(self, table: SourceTable, name: str) -> str:
        return self._expression(table.ref.native, table.schema.names.index(name))

    def _count_up_to(self, column: str, cursor: Cursor) -> str:
        return f"sum(case when {column} <= {self.dialect.literal(cursor)} then 1 else 0 end)"

    def _list_sizes(self, table: SourceTable) -> list[str]:
        return [
            f"coalesce(octet_length(cast({column} as text)), 0)"
            for column, field in zip(
                self._list_expressions(table), table.schema.fields, strict=True
            )
            if isinstance(field.dataType, (StringType, BinaryType, ArrayType))
        ]

    def _expression(self, native: NativeColumns, index: int) -> str:
        if native.has_xmin and index == len(native.columns) - 1 and self.transactions is not None:
            return self.transactions.select_writer()
        return self.dialect.quote(native.columns[index])

    def _list_lossy_values(
        self, table: SourceTable, cursor: CursorField | None
    ) -> list[LossyValue]:
        """Returns the checks for the columns. The cursor has only checks that apply to cursors."""
        names = table.schema.names
        cursor_index = names.index(cursor.name) if cursor else None
        return [
            check
            for check in table.ref.native.lossy_values
            if check.cursors or check.index != cursor_index
        ]

    def _list_lossy_counts(
        self, table: SourceTable, cursor: CursorField | None = None
    ) -> list[str]:
        return [
            _count(check.condition(self._expression(table.ref.native, check.index)))
            for check in self._list_lossy_values(table, cursor)
        ]

    def _list_unusual_counts(
        self, table: SourceTable, cursor: CursorField | None = None
    ) -> list[str]:
        """Returns SQL for counts of unusual values. If all counts are 0, no value matches a check.

        Each count takes as long as reading the rows. A time column has four checks, which rarely
        match, so one count of unusual values replaces the four.
        """
        counts = []
        for check in self._list_lossy_values(table, cursor):
            column = self._expression(table.ref.native, check.index)
            usual = check.ordinary.replace("{}", column)
            counts.append(_count(f"not {usual}" if usual else check.condition(column)))
        return [*dict.fromkeys(counts)]

    def _list_warnings(
        self,
        table: SourceTable,
        counts: Sequence[str | None],
        cursor: CursorField | None = None,
    ) -> tuple[str, ...]:
        """Returns warnings about the counted values.

        Raises:
            TableError: if errors were found. The message lists all of them.
        """
        notes, errors = [], []
        where = f"table {self.source.name}.{table.ref.name}"
        for check, count in zip(self._list_lossy_values(table, cursor), counts, strict=True):
            if not int(count or 0):
                continue
            try:
                notes.append(
                    check.describe_loss(int(count or 0), where, table.schema.names[check.index])
                )
            except TableError as error:
                errors.append(error)
        if errors:
            raise one_error(errors, where)
        return tuple(notes)


def _count(condition: str) -> str:
    return f"sum(case when {condition} then 1 else 0 end)"


def build_where(
    dialect: Dialect,
    column: str,
    window: Window,
    bounds: Bounds | None,
    *,
    late: str | None = None,
    only: str | None = None,
) -> str:
    """Returns a WHERE clause for the rows of a window that has a cursor.

    Args:
        bounds: the window's bounds; None if they have not been read yet.
        late: a condition that selects additional rows below the window.
        only: a condition that replaces the window's limits.
    """
    assert window.cursor is not None
    limits = []
    if window.low is not None:
        limits.append(f"{column} >= {dialect.literal(window.low)}")
    end = window.high if bounds is None else window.end(bounds)
    is_finer = window.whole_microsecond or (bounds is not None and bounds.is_finer)
    if end is not None:
        after_end = end.next_microsecond if is_finer else None
        limits.append(
            f"{column} <= {dialect.literal(end)}"
            if after_end is None
            else f"{column} < {dialect.literal(after_end)}"
        )
    is_null = dialect.match_null(column, window.cursor.type)
    if limits:
        text = only or " and ".join(limits)
        text = f"({text}) or ({late})" if late else text
        where = (
            f" where ({text}) or {is_null}"
            if window.nulls
            else f" where ({text}) and not {is_null}"
        )
    else:
        where = "" if window.nulls else f" where not {is_null}"
    if window.above is not None:
        where = add_condition(where, f"{column} > {dialect.literal(window.above)}")
    return where


def add_condition(where: str, condition: str) -> str:
    first = where.removeprefix(" where ")
    return f" where ({first}) and {condition}" if first else f" where {condition}"
