"""Reads the bounds and rows of a database's tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from loader.errors import TableError
from loader.rows.clock_slack import describe_times, lower_window
from loader.rows.cursor import Cursor, CursorType
from loader.rows.version_order import quote_name
from loader.sources.contents import Contents
from loader.sources.interface import (
    Bounds,
    CursorField,
    Digest,
    Snapshot,
    SourceTable,
    Window,
    parse_bound,
)
from loader.sources.jdbc.checksum_sql import choose_checksum, read_digest
from loader.sources.jdbc.column_sql import ColumnSql, add_condition, build_where
from loader.sources.jdbc.connections import Connection, ConnectionPool
from loader.sources.jdbc.contents import JdbcContents, list_comparable
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.late_commits_interface import LateCommits
from loader.sources.jdbc.metadata import ColumnLayout, read_layout
from loader.sources.jdbc.mysql.late_commits_by_time import MysqlLateCommits
from loader.sources.jdbc.mysql.open_transactions import OpenWork, TransactionWatcher
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.partitions import ROW_POSITION, Ranges, RangeSplit
from loader.sources.jdbc.postgresql.exported_snapshot import (
    ExportedSnapshot,
    open_exported_snapshot,
)
from loader.sources.jdbc.postgresql.late_commits_by_xmin import PostgresLateCommits
from loader.sources.jdbc.reader import (
    MOST_ROWS,
    SAMPLE,
    build_key_predicate,
    choose_fetch_size,
    needs_row_width,
    restore_columns,
)
from loader.spark.error_translation import DatabaseError, translate_jdbc_error


class JdbcSnapshot(ColumnSql, Snapshot):
    """Reads a database's tables. In PostgreSQL, all connections read the same snapshot.

    Args:
        exported: the exported PostgreSQL snapshot; None for other databases.
    """

    def __init__(self, source: Database, exported: ExportedSnapshot | None = None) -> None:
        super().__init__(source, exported.transactions if exported is not None else None)
        self.late: LateCommits = (
            MysqlLateCommits(self, TransactionWatcher(self.dialect.text))
            if isinstance(self.dialect, MySQL)
            else PostgresLateCommits(self, self.transactions)
        )
        self.held = exported.held if exported is not None else frozenset()
        self.refused = exported.refused if exported is not None else {}
        self.session: tuple[str, ...] = ()
        self.shares_snapshot = exported is not None and bool(exported.name)
        if exported is not None:
            self.session = (
                *exported.settings,
                "set transaction isolation level repeatable read read only",
            )
            if self.shares_snapshot:
                self.session += (f"set transaction snapshot {self.dialect.text(exported.name)}",)
            elif exported.check:
                self.session += (exported.check,)
        self._digests = True
        # The columns of locked tables, which cannot change while the tables are locked.
        self._layouts: dict[str, ColumnLayout] = {}
        self._idle = ConnectionPool(self._connect)

    @cached_property
    def wall_offset(self) -> int:
        """The UTC offset in seconds of times that have no time zone."""
        return self.source.wall_offset()

    @contextmanager
    def connect(self, table: SourceTable) -> Iterator[Connection]:
        where = f"table {self.source.name}.{table.ref.name}"
        if table.ref.name in self.refused:
            error = self.refused[table.ref.name]
            raise DatabaseError(error.what, where=where, remedy=error.remedy)
        lend = self._idle.lend if self.session else self.source.lend_connection
        with lend(where) as connection:
            yield connection

    @contextmanager
    def _connect(self, where: str) -> Iterator[Connection]:
        with self.source.lend_connection(where) as connection, connection.transaction():
            connection.prepare(self.session)
            yield connection

    def close(self) -> None:
        self._idle.close()

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        relation = self.source.rows(table.ref.native)
        with self.connect(table) as connection:
            if window.cursor is None:
                unusual = self._list_unusual_counts(table)
                [(rows, *counts)] = connection.rows(
                    f"select {', '.join(['count(*)', *unusual])} from {relation}"
                )
                notes = self._warn_of_losses(connection, table, counts, "")
                complete_until = self._find_complete_until(table, window)
                return Bounds(int(rows or 0), notes=notes, complete_until=complete_until)
            cursor, type_ = window.cursor, window.cursor.type
            column = self.column(table, cursor.name)
            self.late.find_late(connection, table, window)
            reach = self.late.reach(table, window)
            # Without a snapshot, the clock must be read before the rows, so that rows committed in
            # between have a cursor that is later than the clock.
            with_clock = type_.is_time and self.is_steady(table)
            now = self.read_clock(connection) if type_.is_time and not with_clock else None
            ends = self.ends(table, cursor)
            count_dated = f"count({self.dialect.time(column) if type_.is_time else column})"
            can_count = self._digests and self.is_steady(table) and not cursor.collated
            stored_cursor = window.stored_cursor if can_count else None
            selected = ["count(*)", count_dated, *ends]
            selected += [self._count_up_to(column, stored_cursor)] if stored_cursor else []
            selected += self._list_unusual_counts(table, cursor)
            selected += [self.dialect.utc_clock.removeprefix("select ")] if with_clock else []
            where = self.where(table, window)
            [(rows, dated, low, high, *others)] = self.read_ends(
                connection, cursor, f"select {', '.join(selected)} from {relation}{where}"
            )
            before = int(others.pop(0) or 0) if stored_cursor else None
            clock = self._convert_clock(_parse_utc(others.pop()) if with_clock else now, type_)
            bottom, top = (parse_bound(text, type_, table, window) for text in (low, high))
            if bottom is not None and self.late.condition(table, window) is not None:
                reach = bottom  # no row in the window has a lower cursor
                if window.is_exhaustive:
                    [(rows, dated)] = connection.rows(
                        f"select count(*), {count_dated} from {relation}"
                        f"{self.where(table, window, Bounds(None, reach=reach))}"
                    )
            mark = self.late.mark(connection, table, replace(window, high=top))
            if type_.is_time and self.finds_late_rows_by_time(table):
                mark = {**(mark or {}), **describe_times(window, bottom, top)}
            future = 0
            if clock is not None and top is not None and top.order > clock.order:
                is_future = f"{column} > {self.dialect.literal(clock)}"
                [(count,)] = connection.rows(f"select count(*) from {relation} where {is_future}")
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
                mark=mark,
                must_store_mark=self.late.is_settled(table, window),
                complete_until=self._find_complete_until(table, window),
                deletions=self.late.find_excluded(table)[0],
                is_rewound=self.late.may_reuse_numbers(table, window),
                is_finer=Cursor.is_finer(high, type_),
                notes=(
                    *self.late.list_warnings(table, window),
                    *self._warn_of_losses(connection, table, others, where, cursor),
                ),
            )

    def _find_complete_until(self, table: SourceTable, window: Window) -> dt.datetime | None:
        if window.high is not None or not self.is_steady(table):
            return None
        return self.late.find_complete_until(table, window)

    def _warn_of_losses(
        self,
        connection: Connection,
        table: SourceTable,
        counts: Sequence[str | None],
        where: str,
        cursor: CursorField | None = None,
    ) -> tuple[str, ...]:
        """Returns warnings about lossy values. Raises a TableError if some must not be loaded."""
        if not any(int(count or 0) for count in counts):
            return ()
        lossy_counts = ", ".join(self._list_lossy_counts(table, cursor))
        relation = self.source.rows(table.ref.native)
        [exact] = connection.rows(f"select {lossy_counts} from {relation}{where}")
        return self._list_warnings(table, exact, cursor)

    def refuse_lossy_values(self, table: SourceTable, where: str = "") -> None:
        """Raises a TableError if the lake cannot store a value in the selected rows."""
        unusual = self._list_unusual_counts(table)
        if unusual:
            relation = self.source.rows(table.ref.native)
            with self.connect(table) as connection:
                [counts] = connection.rows(f"select {', '.join(unusual)} from {relation}{where}")
                self._warn_of_losses(connection, table, counts, where)

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        division = Ranges(self, table, window, bounds).divide(spark)
        where = self.where(table, window, bounds)
        size = self._fetch_size(table, bounds.rows, whole=window.low is None)
        return self._select_rows(spark, table, where, size, division, window.cursor)

    def read_first(
        self, spark: SparkSession, table: SourceTable, window: Window, limit: int
    ) -> DataFrame:
        where = self.where(table, window, Bounds(limit)) + self.dialect.limit(limit)
        size = self._fetch_size(table, limit)
        rows = self._select_rows(spark, table, where, size, cursor=window.cursor)
        return rows.limit(limit)

    def read_part(self, spark: SparkSession, table: SourceTable, condition: str) -> DataFrame:
        return self._select_rows(spark, table, f" where {condition}", self._fetch_size(table))

    def deletions(self, spark: SparkSession, table: SourceTable) -> Sequence[DataFrame]:
        count, condition = self.late.find_excluded(table)
        if not count:
            return ()
        ref = replace(table.ref, native=replace(table.ref.native, where=""))
        rows = self.read_part(spark, replace(table, ref=ref), condition)
        return [rows.select(*map(quote_name, table.primary_key))]

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int:
        has_value = " or ".join(f"{self.column(table, name)} is not null" for name in columns)
        where = add_condition(self.where(table, window, bounds), f"({has_value})")
        with self.connect(table) as connection:
            [(rows,)] = connection.rows(
                f"select count(*) from {self.source.rows(table.ref.native)}{where}"
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
            where = add_condition(where, f"{column} <= {self.dialect.literal(until)}")
        try:
            with self.connect(table) as connection:
                native = table.ref.native
                name, source = self.source.relation(native), self.source.rows(native)
                return read_digest(
                    connection, self.dialect, name, source, columns, where, rows, indexed
                )
        except DatabaseError as error:  # for example, md5 is disabled
            if error.is_locked_out:
                raise
            self._digests = False
            return None

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        if not self.is_steady(table):
            return None
        sizes = self._list_sizes(table)
        fixed = 16 * len(table.schema.fields) * (bounds.rows or 0)
        if not sizes:
            return fixed
        with self.connect(table) as connection:
            [(variable,)] = connection.rows(
                f"select sum({' + '.join(sizes)}) from {self.source.rows(table.ref.native)}"
                f"{self.where(table, window, bounds)}"
            )
        return fixed + int(variable or 0)

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        if table.ref.native.query:
            return []
        relation = self.source.relation(table.ref.native)
        with self.connect(table) as connection:
            return self.dialect.list_unmet_requirements(connection, relation)

    def list_option_notes(self, table: SourceTable, cursor: CursorField) -> list[str]:
        options = self.source.read_options(table.ref)
        if table.ref.native.has_xmin:
            return []
        if self.finds_late_rows_by_time(table):
            if options.sweep in ("auto", "never"):
                return []
            return [
                "the `sweep` option has no effect: views, foreign tables and queries cannot be "
                "swept, because their rows do not show the transaction that wrote them"
            ]
        if options.sweep != "never" or options.rotation is not None:
            return []
        return [
            "with sweep: never, rows below the cursor are missed if an application's clock, an "
            f"import of old dates or an update without a new {cursor.name} writes them: the "
            "option reconcile finds them"
        ]

    def check_unaltered(self, table: SourceTable) -> None:
        where = f"table {self.source.name}.{table.ref.name}"
        now = self._layouts.get(table.ref.name)
        if now is None:
            with self.source.lend_connection(where) as connection:
                now = read_layout(connection, table.ref.native)
        if now != table.ref.native.layout:
            raise TableError(
                "its columns were changed while the run started or read it",
                where=where,
                remedy="Nothing was published, and the cursor has not moved; run again",
            )

    def lower_window(self, table: SourceTable, window: Window) -> Window:
        if not self.finds_late_rows_by_time(table) or OpenWork.from_mark(window.mark):
            return window  # the open transactions provide a lower bound for late rows
        return lower_window(window)

    def finds_late_rows_by_time(self, table: SourceTable) -> bool:
        return self.transactions is None or not table.ref.native.stored

    def is_steady(self, table: SourceTable) -> bool:
        # Foreign tables are not part of the snapshot. After a materialized view is refreshed, even
        # older snapshots see the new rows. A replica's sessions have different snapshots.
        return bool(self.session) and self.shares_snapshot and bool(table.ref.native.stored)

    @contextmanager
    def open_later(self, table: SourceTable) -> Iterator[Snapshot]:
        if not self.session:  # each call reads the current rows
            yield self
            return
        # This snapshot's sessions would read the old version of the rows again.
        with (
            open_exported_snapshot(self.source, [table]) as exported,
            closing(JdbcSnapshot(self.source, exported)) as later,
        ):
            yield later

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        current = copy(self)
        current.session = ()  # no snapshot: reads the latest committed rows
        names, native = table.schema.names, table.ref.native
        columns = {name: self.column(table, name) for name in keys.columns}
        # The database cannot compare keys whose type the spec overrides.
        is_converted = {names[i] for i in native.as_texts} & set(columns)
        where = "" if is_converted else build_key_predicate(self.dialect, columns, keys)
        return current._select_rows(spark, table, where, current._fetch_size(table))

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        with self.connect(table) as connection:
            checksum = choose_checksum(self.dialect, connection)
            if checksum is not None:
                parts, left_out = list_comparable(checksum, connection, table)
        if checksum is not None and unique:
            by_name = {part.name: part for part in parts}
            converted = {table.schema.names[i] for i in table.ref.native.as_texts}
            # The database's checksums must include the key and all columns whose types the spec
            # overrides.
            if set(key) | converted <= set(by_name):
                return JdbcContents(
                    tuple(by_name[name] for name in key),
                    tuple(parts),
                    tuple(left_out),
                    checksum,
                    self.source.rows(table.ref.native),
                    self.where(table, window).removeprefix(" where "),
                    dict(zip(table.schema.names, self._list_sums(table), strict=True)),
                    lambda sql: self._read(spark, table, f"({sql}) strandline"),
                    lambda where, added: self._select_rows(
                        spark, table, where, self._fetch_size(table), added=added
                    ),
                    lambda where: self.refuse_lossy_values(table, where),
                )
        return super().contents(spark, table, key, window, unique)

    def _find_contents_bounds(self, table: SourceTable, part: Window, window: Window) -> Bounds:
        if part.cursor is not None:
            return self.bounds(table, part)
        # All rows are read, but only rows that the spec selects are checked.
        self.refuse_lossy_values(table, self.where(table, window))
        with self.connect(table) as connection:
            relation = self.source.rows(table.ref.native)
            [(rows,)] = connection.rows(f"select count(*) from {relation}")
        return Bounds(int(rows or 0))

    def _fetch_size(
        self, table: SourceTable, rows: int | None = None, *, whole: bool = False
    ) -> int:
        configured = self.source.stream_fetch_size or self.source.options.fetch_size
        if configured is not None or not needs_row_width(table.schema, rows):
            return choose_fetch_size(table.schema, rows)
        native, sampled = table.ref.native, None
        with self.connect(table) as connection:
            place = (native.catalog, native.schema, native.table)
            extent = self.dialect.read_size(connection, place) if not native.query else None
            if self.is_steady(table):
                # The query names the columns, because the role may not have access to all of them.
                [(sampled,)] = connection.rows(
                    f"select avg(size)::bigint from (select {' + '.join(self._list_sizes(table))} "
                    f"as size from {self.source.relation(native)} limit {SAMPLE}) as sampled"
                )
        return choose_fetch_size(table.schema, rows, extent, int(sampled or 0), whole=whole)

    def _select_rows(
        self,
        spark: SparkSession,
        table: SourceTable,
        where: str,
        fetch_size: int,
        division: RangeSplit = RangeSplit(),  # noqa: B008 - it is frozen
        cursor: CursorField | None = None,
        added: Mapping[str, str] = MappingProxyType({}),
    ) -> DataFrame:
        source, native = self.source, table.ref.native
        columns = ", ".join(
            f"{shown} as {self.alias(native, i)}"
            for i, shown in enumerate(self._list_expressions(table, cursor))
        )
        for name, sql in added.items():
            columns += f", {sql} as {self.dialect.quote(name)}"
        columns += f", {division.column}" if division.column else ""
        types = {self._alias_name(native, native.columns.index(n)): k for n, k in native.types}
        instants = self._instants(table)
        relation = f"(select {columns} from {source.rows(native)}{where}) strandline"
        try:
            frame = self._read(
                spark, table, relation, division.conditions, types, fetch_size, instants
            )
        except Py4JJavaError as error:
            raise translate_jdbc_error(error, f"table {source.name}.{table.ref.name}") from error
        if division.column:
            frame = frame.drop(ROW_POSITION)
        return restore_columns(frame, table.schema, native.as_texts, [*added])

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
                # Another connection might have to wait for an ALTER that waits for the run's lock.
                self._layouts[table.ref.name] = read_layout(connection, table.ref.native)
        return frame

    def where(self, table: SourceTable, window: Window, bounds: Bounds | None = None) -> str:
        """Returns a WHERE clause for the rows of a window, before or after its bounds are read."""
        if window.cursor is None:
            return ""
        column = self.column(table, window.cursor.name)
        late = self.late.condition(table, window, bounds.reach if bounds else None)
        # If the cursor is xmin, the raw table already contains all rows that `late` does not
        # select.
        if late is not None and table.ref.native.has_xmin:
            return build_where(self.dialect, column, window, bounds, only=late)
        return build_where(self.dialect, column, window, bounds, late=late)

    def _convert_clock(self, now: dt.datetime | None, type_: CursorType) -> Cursor | None:
        if now is None:
            return None
        if type_ is not CursorType.TIMESTAMPTZ:
            now += dt.timedelta(seconds=self.wall_offset)
        return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)

    def read_clock(self, connection: Connection) -> dt.datetime:
        [(text,)] = connection.rows(self.dialect.utc_clock)
        return _parse_utc(text)


def _parse_utc(text: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(Cursor.parse(text or "", CursorType.TIMESTAMPTZ).text)
