"""Reads a database as of one moment: bounds first, then the rows, in parallel ranges."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StructField, TimestampNTZType, TimestampType

from loader.errors import TableError
from loader.rows.cursor import Cursor, CursorType
from loader.rows.exact_cast import cast_exactly
from loader.rows.version_order import quote_name
from loader.sources.contents import KEY, Contents, ReadContents
from loader.sources.interface import (
    Bounds,
    CursorField,
    Digest,
    Snapshot,
    SourceTable,
    Window,
    parse_bound,
)
from loader.sources.jdbc.checksum_sql import (
    JdbcContents,
    choose_checksum,
    list_comparable,
    read_digest,
)
from loader.sources.jdbc.column_sql import ColumnSql
from loader.sources.jdbc.connections import Connection, ConnectionPool
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.late_commits_interface import LateCommits
from loader.sources.jdbc.metadata import Layout, read_layout
from loader.sources.jdbc.mysql.late_commits_by_time import MysqlLateCommits
from loader.sources.jdbc.mysql.open_transactions import TransactionWatcher
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.partitions import PLACE, Division, Ranges
from loader.sources.jdbc.postgresql.exported_snapshot import ExportedSnapshot
from loader.sources.jdbc.postgresql.late_commits_by_xmin import PostgresLateCommits
from loader.sources.jdbc.reader import (
    MOST_ROWS,
    SAMPLE,
    build_key_predicate,
    choose_fetch_size,
    needs_row_width,
)
from loader.spark.error_translation import DatabaseError, translate_jdbc_error

_RECAST = (
    (TimestampNTZType(), TimestampType()),
    (ArrayType(TimestampType()), ArrayType(TimestampNTZType())),
)
"""Types of times as Spark reads them, and as the database means them; sessions are in UTC."""


class JdbcSnapshot(ColumnSql, Snapshot):
    """A read of a database; with PostgreSQL, in one snapshot that is exported to every reader.

    Args:
        source: the database.
        exported: PostgreSQL's snapshot, which all connections read.
    """

    def __init__(self, source: Database, exported: ExportedSnapshot | None = None) -> None:
        super().__init__(source, exported.transactions if exported is not None else None)
        blind = exported.blind if exported is not None else ""
        self.late: LateCommits = (
            MysqlLateCommits(self, TransactionWatcher(self.dialect.text))
            if isinstance(self.dialect, MySQL)
            else PostgresLateCommits(self, self.transactions, blind)
        )
        self.held = exported.held if exported is not None else frozenset()
        self.refused = exported.refused if exported is not None else {}
        self.session: tuple[str, ...] = ()
        if exported is not None:
            self.session = (
                *exported.settings,
                "set transaction isolation level repeatable read read only",
                f"set transaction snapshot {self.dialect.text(exported.name)}",
            )
        self._digests = True
        self._layouts: dict[str, Layout] = {}  # of locked tables, which keep them
        self._idle = ConnectionPool(self._connect)

    @cached_property
    def wall_offset(self) -> int:
        """How many seconds the database's wall clock is ahead of UTC; only wall clocks need it."""
        return self.source.wall_offset()

    @contextmanager
    def connect(self, table: SourceTable) -> Iterator[Connection]:
        where = f"table {self.source.name}.{table.ref.name}"
        if table.ref.name in self.refused:
            error = self.refused[table.ref.name]
            raise DatabaseError(error.what, where=where, remedy=error.remedy)
        with (self._idle.lend if self.session else self.source.lend_connection)(
            where
        ) as connection:
            yield connection

    @contextmanager
    def _connect(self, where: str) -> Iterator[Connection]:
        with self.source.lend_connection(where) as connection, connection.transaction():
            connection.prepare(self.session)
            yield connection

    def close(self) -> None:
        """Closes the connections that its tables have used."""
        self._idle.close()

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        relation = self.source.relation(table.ref.native)
        with self.connect(table) as connection:
            if window.cursor is None:
                unusual = self._list_unusual_counts(table)
                [(rows, *found)] = connection.rows(
                    f"select {', '.join(['count(*)', *unusual])} from {relation}"
                )
                notes = self._warn_of_losses(connection, table, found, "")
                return Bounds(int(rows or 0), notes=notes)
            cursor, type_ = window.cursor, window.cursor.type
            column = self.column(table, cursor.name)
            self.late.find_late(connection, table, window)
            reach = self.late.reach(table, window)
            # Read before the rows: those that commit in between lie beyond it. In a snapshot there
            # are none, and one question is enough.
            together = type_.is_time and self.is_steady(table)
            now = self.read_clock(connection) if type_.is_time and not together else None
            ends = self.ends(table, cursor)
            counted = f"count({self.dialect.time(column) if type_.is_time else column})"
            counts = self._digests and self.is_steady(table) and not cursor.collated
            known = window.stored_cursor if counts else None
            wanted = ["count(*)", counted, *ends]
            wanted += [self._count_up_to(column, known)] if known else []
            wanted += self._list_unusual_counts(table, cursor)
            wanted += [self.dialect.utc_clock.removeprefix("select ")] if together else []
            where = self.where(table, window)
            [(rows, dated, low, high, *others)] = connection.rows(
                f"select {', '.join(wanted)} from {relation}{where}"
            )
            before = None
            if known:
                before = int(others.pop(0) or 0)
            clock = self._convert_clock(_parse_utc(others.pop()) if together else now, type_)
            bottom, top = (parse_bound(text, type_, table, window) for text in (low, high))
            if bottom is not None and self.late.condition(table, window) is not None:
                reach = bottom  # nothing lies below
                if window.is_exhaustive:
                    [(rows, dated)] = connection.rows(
                        f"select count(*), {counted} from {relation}"
                        f"{self.where(table, window, Bounds(None, reach=reach))}"
                    )
            future = 0
            if clock is not None and top is not None and top.order > clock.order:
                [(count,)] = connection.rows(
                    f"select count(*) from {relation} "
                    f"where {column} > {self.dialect.literal(clock)}"
                )
                future = int(count or 0)
            return Bounds(
                rows=int(rows or 0),
                nulls=int(rows or 0) - int(dated or 0),
                rows_up_to_cursor=before,
                low=bottom,
                high=top,
                clock=clock,
                future=future,
                reach=reach,
                mark=self.late.mark(connection, table, window),
                must_store_mark=self.late.is_settled(table, window),
                is_rewound=self.late.rewound(table, window),
                is_finer=Cursor.is_finer(high, type_),
                notes=(
                    *self.late.notes(table, window),
                    *self._warn_of_losses(connection, table, others, where, cursor),
                ),
            )

    def _warn_of_losses(
        self,
        connection: Connection,
        table: SourceTable,
        counts: Sequence[str | None],
        where: str,
        cursor: CursorField | None = None,
    ) -> tuple[str, ...]:
        """Returns the warnings about doubtful values of a window, whose unusual ones are counted.

        Raises:
            TableError: if some are refused.
        """
        if not any(int(count or 0) for count in counts):
            return ()
        doubted = ", ".join(self._list_lossy_counts(table, cursor))
        relation = self.source.relation(table.ref.native)
        [exact] = connection.rows(f"select {doubted} from {relation}{where}")
        return self._list_warnings(table, exact, cursor)

    def refuse_lossy_values(self, table: SourceTable, where: str = "") -> None:
        """Refuses rows that hold values which the lake cannot; all by default.

        Raises:
            TableError: there are some.
        """
        unusual = self._list_unusual_counts(table)
        if unusual:
            relation = self.source.relation(table.ref.native)
            with self.connect(table) as connection:
                [found] = connection.rows(f"select {', '.join(unusual)} from {relation}{where}")
                self._warn_of_losses(connection, table, found, where)

    def _count_up_to(self, column: str, cursor: Cursor) -> str:
        """Returns SQL that counts the rows at or below a cursor."""
        return f"sum(case when {column} <= {self.dialect.literal(cursor)} then 1 else 0 end)"

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        division = Ranges(self, table, window, bounds).divide(spark)
        where = self.where(table, window, bounds)
        size = self._fetch_size(table, bounds.rows, whole=window.low is None)
        return self._select_rows(spark, table, where, size, division, window.cursor)

    def read_part(self, spark: SparkSession, table: SourceTable, condition: str) -> DataFrame:
        """Reads the rows that a condition holds for, in SQL of the table's own columns, lazily."""
        return self._select_rows(spark, table, f" where {condition}", self._fetch_size(table))

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int:
        held = " or ".join(f"{self.column(table, name)} is not null" for name in columns)
        where = _add_condition(self.where(table, window, bounds), f"({held})")
        with self.connect(table) as connection:
            [(rows,)] = connection.rows(
                f"select count(*) from {self.source.relation(table.ref.native)}{where}"
            )
        return int(rows or 0)

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        if not self._digests or not self.is_steady(table) or window.cursor is None:
            return None
        columns = [self._expression(table.ref.native, i) for i in range(len(table.schema.names))]
        indexed = window.cursor.name in table.indexed
        where = self.where(table, window)
        if until is not None:
            column = self.column(table, window.cursor.name)
            where = _add_condition(where, f"{column} <= {self.dialect.literal(until)}")
        try:
            with self.connect(table) as connection:
                relation = self.source.relation(table.ref.native)
                return read_digest(
                    connection, self.dialect, relation, columns, where, rows, indexed
                )
        except DatabaseError as error:  # no md5 here, say: the rows are read instead
            if error.is_locked_out:
                raise
            self._digests = False
            return None

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        if not self.is_steady(table):
            return None
        wide = self._list_sizes(table)
        fixed = 16 * len(table.schema.fields) * (bounds.rows or 0)
        if not wide:
            return fixed
        with self.connect(table) as connection:
            [(found,)] = connection.rows(
                f"select sum({' + '.join(wide)}) from {self.source.relation(table.ref.native)}"
                f"{self.where(table, window, bounds)}"
            )
        return fixed + int(found or 0)

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        with self.connect(table) as connection:
            return self.dialect.list_unmet_requirements(
                connection, self.source.relation(table.ref.native)
            )

    def check_unaltered(self, table: SourceTable) -> None:
        where = f"table {self.source.name}.{table.ref.name}"
        now = self._layouts.get(table.ref.name)
        if now is None:
            with self.source.lend_connection(where) as connection:
                now = read_layout(connection, table.ref.native)
        if now != table.ref.native.layout:
            raise TableError(
                "its columns were changed while the run began or read it",
                where=where,
                remedy="Nothing was published, and the cursor has not moved; run again",
            )

    def is_steady(self, table: SourceTable) -> bool:
        # A foreign table's rows come from another database, which has its own snapshots.
        # Once a materialized view is refreshed, older snapshots see its new rows, too.
        return bool(self.session) and bool(table.ref.native.stored)

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        fresh = copy(self)
        fresh.session = ()  # no snapshot: reads what is committed now
        names, native = table.schema.names, table.ref.native
        columns = {name: self.column(table, name) for name in keys.columns}
        chosen = {names[i] for i in native.as_texts} & set(columns)
        # A value of a type that the spec chooses cannot be compared with the database's.
        where = "" if chosen else build_key_predicate(self.dialect, columns, keys)
        return fresh._select_rows(spark, table, where, fresh._fetch_size(table))

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        expressions = choose_checksum(self.dialect)
        if expressions is not None and unique:
            with self.connect(table) as connection:
                parts, left_out = list_comparable(expressions, connection, table)
            known = {part.name: part for part in parts}
            chosen = {table.schema.names[i] for i in table.ref.native.as_texts}
            # What the database has no sum of is left out, but not where the spec chose the type.
            if set(key) | chosen <= set(known):
                return JdbcContents(
                    expressions,
                    self.source.relation(table.ref.native),
                    self.where(table, window).removeprefix(" where "),
                    dict(zip(table.schema.names, self._list_sums(table), strict=True)),
                    [known[name] for name in key],
                    parts,
                    left_out,
                    lambda sql: self._read(spark, table, f"({sql}) strandline"),
                    lambda where, hashed: self._select_rows(
                        spark, table, where, self._fetch_size(table), key=hashed
                    ),
                    lambda where: self.refuse_lossy_values(table, where),
                )

        def read(wanted: Window) -> DataFrame:
            if wanted.cursor is not None:
                return self.read(spark, table, wanted, self.bounds(table, wanted))
            # All rows: those that the spec does not ask for are read, too, and go nowhere.
            self.refuse_lossy_values(table, self.where(table, window))
            with self.connect(table) as connection:
                relation = self.source.relation(table.ref.native)
                [(rows,)] = connection.rows(f"select count(*) from {relation}")
            return self.read(spark, table, wanted, Bounds(int(rows or 0)))

        return ReadContents(read, table.schema, key, window, unique)

    def _fetch_size(
        self, table: SourceTable, rows: int | None = None, *, whole: bool = False
    ) -> int:
        """Returns a reader's fetch size, by the width of rows that the database reports."""
        configured = self.source.stream_fetch_size or self.source.options.fetch_size
        if configured is not None or not needs_row_width(table.schema, rows):
            return choose_fetch_size(table.schema, rows)
        native, sampled = table.ref.native, None
        with self.connect(table) as connection:
            extent = self.dialect.extent(connection, (native.catalog, native.schema, native.table))
            if self.is_steady(table):
                [(sampled,)] = connection.rows(
                    f"select avg({' + '.join(self._list_sizes(table))})::bigint "
                    f"from (select * from {self.source.relation(native)} limit {SAMPLE}) as sampled"
                )
        return choose_fetch_size(table.schema, rows, extent, int(sampled or 0), whole=whole)

    def _select_rows(
        self,
        spark: SparkSession,
        table: SourceTable,
        where: str,
        fetch_size: int,
        division: Division = Division(),  # noqa: B008 - it is frozen
        cursor: CursorField | None = None,
        key: str = "",
    ) -> DataFrame:
        source, native = self.source, table.ref.native
        columns = ", ".join(
            f"{shown} as {self.alias(native, i)}"
            for i, shown in enumerate(self._list_expressions(table, cursor))
        )
        columns += f", {key} as {self.dialect.quote(KEY)}" if key else ""
        columns += f", {division.column}" if division.column else ""
        types = {self._alias_name(native, native.columns.index(n)): k for n, k in native.types}
        instants = self._instants(table)
        relation = f"(select {columns} from {source.relation(native)}{where}) strandline"
        try:
            frame = self._read(
                spark, table, relation, division.conditions, types, fetch_size, instants
            )
        except Py4JJavaError as error:
            raise translate_jdbc_error(error, f"table {source.name}.{table.ref.name}") from error
        hashed = [KEY] if key else []
        if division.column:
            frame = frame.drop(PLACE)
        arrived = frame.schema.fields
        names = [field.name for field in arrived]
        if len({name.lower() for name in names}) < len(names):  # Spark finds none of them by name
            names = [*table.schema.names, *hashed]
            frame = frame.toDF(*names)

        def made(i: int, column: StructField) -> Column:
            value = f.col(quote_name(names[i]))
            if i in native.as_texts:
                return cast_exactly(value, column.dataType, column.name)
            recast = (arrived[i].dataType, column.dataType) in _RECAST
            return value.cast(column.dataType) if recast else value

        return frame.select(
            *(made(i, column).alias(column.name) for i, column in enumerate(table.schema.fields)),
            *hashed,
        )

    def _read(
        self,
        spark: SparkSession,
        table: SourceTable,
        relation: str,
        conditions: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        fetch_size: int = MOST_ROWS,
        instants: Sequence[str] = (),
    ) -> DataFrame:
        with self.connect(table) as connection:
            frame = self.source.reader(
                spark, connection, relation, conditions, self.session, types, fetch_size, instants
            )
            if table.ref.name in self.held and table.ref.name not in self._layouts and self.session:
                # Not after the read: this connection has just locked the table. Another one would
                # wait behind an ALTER that itself waits until the run ends.
                self._layouts[table.ref.name] = read_layout(connection, table.ref.native)
        return frame

    def where(self, table: SourceTable, window: Window, bounds: Bounds | None = None) -> str:
        """Returns a WHERE clause for the rows of a window, limited by its bounds once known."""
        if window.cursor is None:
            return ""
        if window.above is not None:
            column = self.column(table, window.cursor.name)
            above = f"{column} > {self.dialect.literal(window.above)}"
            return _add_condition(self.where(table, replace(window, above=None), bounds), above)
        column = self.column(table, window.cursor.name)
        absent = self.dialect.absent(column, window.cursor.type)
        limits = []
        if window.low is not None:
            limits.append(f"{column} >= {self.dialect.literal(window.low)}")
        end = window.high if bounds is None else window.end(bounds)
        finer = window.whole_microsecond or (bounds is not None and bounds.is_finer)
        if end is not None:
            beyond = end.next_microsecond if finer else None
            limits.append(
                f"{column} <= {self.dialect.literal(end)}"
                if beyond is None
                else f"{column} < {self.dialect.literal(beyond)}"
            )
        if not limits:
            return "" if window.nulls else f" where not {absent}"
        text = " and ".join(limits)
        late = self.late.condition(table, window, bounds.reach if bounds else None)
        if late is not None and table.ref.native.writers:
            text = late  # all transactions before had ended, and raw has their rows
        elif late is not None:
            text = f"({text}) or ({late})"
        if window.nulls:
            return f" where ({text}) or {absent}"
        return f" where ({text}) and not {absent}"

    def _convert_clock(self, now: dt.datetime | None, type_: CursorType) -> Cursor | None:
        """Returns the database's clock as a cursor of a type."""
        if now is None:
            return None
        if type_ is not CursorType.TIMESTAMPTZ:
            now += dt.timedelta(seconds=self.wall_offset)
        return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)

    def read_clock(self, connection: Connection) -> dt.datetime:
        """Reads the database's clock, in UTC."""
        [(text,)] = connection.rows(self.dialect.utc_clock)
        return _parse_utc(text)


def _parse_utc(text: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(Cursor.parse(text or "", CursorType.TIMESTAMPTZ).text)


def _add_condition(where: str, condition: str) -> str:
    """Adds a condition to a WHERE clause."""
    before = where.removeprefix(" where ")
    return f" where ({before}) and {condition}" if before else f" where {condition}"
