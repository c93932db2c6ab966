"""Reading one moment of a database: bounds first, then the rows, in parallel ranges."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampNTZType, TimestampType

from loader.cursor import Cursor, CursorType
from loader.order import quoted
from loader.sources import Bounds, Snapshot, SourceTable, Window, edge
from loader.sources.by_value import asked_by_value
from loader.sources.checksum_sql import checksum
from loader.sources.connection import Connection, DatabaseError, explain
from loader.sources.contents import KEY, Contents
from loader.sources.horizon import Fate, Horizon
from loader.sources.jdbc_contents import JdbcContents, compared
from loader.sources.open_work import Activity, OpenWork
from loader.sources.partitions import balanced, largest_share, partition_count, slices

if TYPE_CHECKING:
    from loader.sources.jdbc import JdbcSource, Native

# Above it, ranges of a column would leave one reader with nearly all rows.
_SKEWED = 0.8


class JdbcSnapshot(Snapshot):
    """One moment of a database; of PostgreSQL truly one, exported to every reader.

    Args:
        wall_offset: seconds that the database's wall clock is ahead of UTC.
        exported: the name of the snapshot that all connections read.
        horizon: of that snapshot.
        blind: why it does not know how old open transactions are, where it does not.
    """

    def __init__(
        self,
        source: JdbcSource,
        wall_offset: int,
        exported: str | None = None,
        horizon: Horizon | None = None,
        blind: str = "",
    ) -> None:
        self.source = source
        self.horizon = horizon
        self.blind = blind
        self.dialect = source.dialect
        self.lookout = self.dialect.lookout()
        self.wall_offset = wall_offset
        self.session: tuple[str, ...] = ()
        if exported is not None:
            self.session = (
                "set transaction isolation level repeatable read read only",
                f"set transaction snapshot {self.dialect.text(exported)}",
            )

    @contextmanager
    def _connect(self, table: SourceTable) -> Iterator[Connection]:
        with self.source.connect(table.ref.name) as connection:
            if self.session:
                connection.java.setAutoCommit(False)
            for statement in self.session:
                connection.execute(statement)
            yield connection

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        relation = self.source.relation(table.ref.native)
        with self._connect(table) as connection:
            if window.cursor is None:
                [(rows,)] = connection.rows(f"select count(*) from {relation}")
                return Bounds(int(rows or 0))
            type_ = window.cursor.type
            column = self._column(table, window.cursor.name)
            horizon = self.horizon if table.ref.native.stored else None
            if horizon is not None:
                self._same_database(table, window)
            reach = self._reach(table, window) if horizon else None
            seen = self._seen(connection, table, type_)
            before = OpenWork.from_mark(window.mark) if seen else None
            if before is not None and window.low is not None:
                reach = before.reach(window.low, self.wall_offset)
            window = replace(window, reach=reach)
            # The clock is read before the rows: what commits in between lies beyond it.
            clock = self._clock(connection, type_)
            counted = f"select count(*), count({column}), min({column}), max({column})"
            [(rows, dated, low, high)] = connection.rows(
                f"{counted} from {relation}{self._where(table, window)}"
            )
            bottom, top = (edge(text, type_, table, window) for text in (low, high))
            if bottom is not None and (before or self._late(table, window) is not None):
                reach = bottom  # nothing lies below
                if window.whole and window.reach is None:
                    window = replace(window, reach=reach)
                    [(rows, dated, _, _)] = connection.rows(
                        f"{counted} from {relation}{self._where(table, window)}"
                    )
            mark = horizon.to_mark() if horizon else None
            settled = self._settled(table, window) if horizon else False
            if seen is not None and not seen.blind:
                after = seen.remembered(before, self._now(connection))
                mark, settled = after.to_mark(), before is not None and before.settled(after)
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
                low=bottom,
                high=top,
                clock=clock,
                future=future,
                reach=reach,
                mark=mark,
                settled=settled,
                notes=self._notes(table, window, type_, seen),
            )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        predicates = self._predicates(spark, table, window, bounds)
        return self._selected(spark, table, self._where(table, window), predicates)

    def steady(self, table: SourceTable) -> bool:
        # A foreign table's rows come from another database, which has snapshots of its own.
        return bool(self.session) and bool(table.ref.native.stored)

    def living(self, spark: SparkSession, table: SourceTable, keys: DataFrame) -> DataFrame:
        fresh = copy(self)
        fresh.session = ()  # of no snapshot: what is committed now
        columns = {name: self._column(table, name) for name in keys.columns}
        return fresh._selected(spark, table, asked_by_value(self.dialect, columns, keys))

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        expressions = checksum(self.dialect)
        if expressions is not None and unique:
            with self._connect(table) as connection:
                parts, left_out = compared(expressions, connection, table)
            known = {part.name: part for part in parts}
            if set(key) <= set(known):
                return JdbcContents(
                    expressions,
                    self.source.relation(table.ref.native),
                    self._where(table, window).removeprefix(" where "),
                    {name: self._column(table, name) for name in table.schema.names},
                    [known[name] for name in key],
                    parts,
                    left_out,
                    lambda sql: self.source.reader(
                        spark, f"({sql}) strandline", session=self.session
                    ),
                    lambda where, hashed: self._selected(spark, table, where, key=hashed),
                )
        return super().contents(spark, table, key, window, unique)

    def _selected(
        self,
        spark: SparkSession,
        table: SourceTable,
        where: str,
        predicates: list[str] | None = None,
        key: str = "",
    ) -> DataFrame:
        source, native = self.source, table.ref.native
        columns = ", ".join(
            f"{self._expression(native, i)} as {self._alias(native, i)}"
            for i in range(len(native.columns))
        )
        columns += f", {key} as {self.dialect.quote(KEY)}" if key else ""
        relation = f"(select {columns} from {source.relation(native)}{where}) strandline"
        try:
            frame = source.reader(spark, relation, predicates, self.session)
        except Py4JJavaError as error:
            raise explain(error, f"table {source.name}.{table.ref.name}") from error
        hashed = [KEY] if key else []
        return frame.toDF(*table.schema.names, *hashed).select(
            *(
                f.col(quoted(column.name)).cast(column.dataType).alias(column.name)
                if isinstance(column.dataType, TimestampType)
                and isinstance(frame.schema[i].dataType, TimestampNTZType)
                else f.col(quoted(column.name))
                for i, column in enumerate(table.schema.fields)
            ),
            *hashed,
        )

    def _alias(self, native: Native, index: int) -> str:
        """A column's name in the subquery that Spark reads.

        Spark quotes a column's name without doubling the quotes in it.
        """
        name = native.columns[index]
        return self.dialect.quote(
            f"strandline_{index}" if self.dialect.quote_character in name else name
        )

    def _column(self, table: SourceTable, name: str) -> str:
        return self._expression(table.ref.native, table.schema.names.index(name))

    def _expression(self, native: Native, index: int) -> str:
        if native.writers and index == len(native.columns) - 1 and self.horizon is not None:
            return self.horizon.written_by()
        return self.dialect.quote(native.columns[index])

    def _where(self, table: SourceTable, window: Window) -> str:
        if window.cursor is None:
            return ""
        column = self._column(table, window.cursor.name)
        limits = []
        low = window.floor if self.lookout else window.low
        if low is not None:
            limits.append(f"{column} >= {self.dialect.literal(low)}")
        if window.high is not None:
            limits.append(f"{column} <= {self.dialect.literal(window.high)}")
        if not limits:
            return "" if window.nulls else f" where {column} is not null"
        text = " and ".join(limits)
        late = self._late(table, window)
        if late is not None and table.ref.native.writers:
            text = late  # the transactions before were all over, and their rows are in raw
        elif late is not None:
            text = f"({text}) or ({late})"
        return f" where ({text}) or {column} is null" if window.nulls else f" where {text}"

    def _before(self, table: SourceTable, window: Window) -> Horizon | None:
        """The horizon of the last sync, where it can be held against this one's."""
        comparable = table.ref.native.stored and window.low is not None and self.horizon is not None
        return Horizon.from_mark(window.mark) if comparable else None

    def _late(self, table: SourceTable, window: Window) -> str | None:
        """SQL of rows below the window that a transaction in flight at the last sync may have left.

        Times are sought from the oldest transaction's on. Of other cursors nothing tells how low
        they can be: all rows are asked who wrote them, unless a lookback bounds it.
        """
        before = self._before(table, window)
        if before is None or self.horizon is None or window.cursor is None:
            return None
        column = self._column(table, window.cursor.name)
        above = (
            f"{column} >= {self.dialect.literal(window.reach)}" if window.reach is not None else ""
        )
        if table.ref.native.writers or (window.whole and above):
            return above or None
        if not above and (window.cursor.type.is_time or window.bounded or not before.open):
            return None
        return " and ".join(filter(None, [above, before.written_since(self.horizon)]))

    def _reach(self, table: SourceTable, window: Window) -> Cursor | None:
        before = self._before(table, window)
        if before is None or window.cursor is None:
            return None
        if table.ref.native.writers:
            return Cursor.parse(str(before.xmin), CursorType.INTEGER)
        return before.reach(window.cursor.type)

    def _settled(self, table: SourceTable, window: Window) -> bool:
        before = Horizon.from_mark(window.mark)
        if before is None or self.horizon is None:
            return False
        if table.ref.native.writers and window.low is not None:
            return before.xmin <= int(window.low.text) < self.horizon.xmin
        return before.open and not self.horizon.open

    def _same_database(self, table: SourceTable, window: Window) -> None:
        """Refuses a cursor that means something else now.

        Raises:
            DatabaseError: where numbers may have been given out a second time.
        """
        before = Horizon.from_mark(window.mark)
        if before is None or self.horizon is None or window.cursor is None:
            return
        fate = before.fate(self.horizon)
        by_writer = table.ref.native.writers
        if fate is Fate.RESTORED and not window.cursor.type.is_time:
            what = "the database is not the one of the last sync: restored, or another one"
        elif fate is Fate.FAILED_OVER and by_writer:
            what = "the database failed over since the last sync"
        else:
            return
        name = f"{self.source.name}.{table.ref.lake_name}"
        shown = window.low.text if window.low else "?"
        accept = "" if by_writer else f"; or accept it with `loader state set {name} {shown}`"
        raise DatabaseError(
            f"{what}; it may give out values of {window.cursor.name} again that are below the "
            f"stored cursor, {shown}",
            where=f"table {name}",
            remedy=f"`loader run --full-refresh --select {name}`{accept}",
        )

    def _seen(
        self, connection: Connection, table: SourceTable, type_: CursorType
    ) -> Activity | None:
        """What may still bring rows of a table; to be asked before its clock and its rows."""
        native = table.ref.native
        if self.lookout is None or not native.stored or not type_.is_time:
            return None
        return self.lookout.seen(connection, native.catalog or "", native.table)

    def _notes(
        self, table: SourceTable, window: Window, type_: CursorType, seen: Activity | None
    ) -> tuple[str, ...]:
        shown = self.dialect.shares_snapshots or self.lookout is not None
        if not shown or not type_.is_time:
            return ()
        if not table.ref.native.stored:
            return ("of a view, rows that commit late are found within the lookback only",)
        notes = []
        before = Horizon.from_mark(window.mark)
        fate = before.fate(self.horizon) if before and self.horizon else Fate.SAME
        if fate is not Fate.SAME:
            notes.append(
                f"the database was {fate.value} since the last sync: what was written from the "
                "last sync on is read again; what it lost stays in raw until a full refresh"
            )
        blind = seen.blind if seen else self.blind
        if blind:
            notes.append(f"{blind}: rows that commit late are found within the lookback only")
        return tuple(notes)

    def _clock(self, connection: Connection, type_: CursorType) -> Cursor | None:
        if not type_.is_time:
            return None
        now = self._now(connection)
        if type_ is not CursorType.TIMESTAMPTZ:
            now += dt.timedelta(seconds=self.wall_offset)
        return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)

    def _now(self, connection: Connection) -> dt.datetime:
        """The database's clock, in UTC."""
        [(text,)] = connection.rows(self.dialect.utc_clock)
        return dt.datetime.fromisoformat(Cursor.parse(text or "", CursorType.TIMESTAMPTZ).text)

    def _predicates(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> list[str] | None:
        options = self.source.read_options(table.ref)
        rows = bounds.rows or 0
        count = partition_count(rows, spark.sparkContext.defaultParallelism, options.num_partitions)
        if count < 2:
            return None
        for name in self._partition_columns(table, window):
            cuts = self._cuts(table, window, bounds, name, count)
            if cuts:
                column = self._alias(table.ref.native, table.schema.names.index(name))
                marks = [self.dialect.literal(cut) for cut in cuts]
                return [
                    f"{column} < {marks[0]} or {column} is null",
                    *(f"{column} >= {a} and {column} < {b}" for a, b in itertools.pairwise(marks)),
                    f"{column} >= {marks[-1]}",
                ]
        return None

    def _partition_columns(self, table: SourceTable, window: Window) -> list[str]:
        configured = self.source.partition_column(table)
        if configured is not None:
            return [configured]
        if window.cursor is None:
            return list(table.primary_key)
        if window.high is None and not self.steady(table):
            # A read of everything, without an end: a row whose cursor moves from one range to
            # another while they are read could be in none of them. Keys stay.
            return list(table.primary_key)
        return [window.cursor.name, *table.primary_key]

    def _cuts(
        self, table: SourceTable, window: Window, bounds: Bounds, name: str, count: int
    ) -> list[Cursor]:
        type_ = CursorType.of(table.schema[name].dataType)
        if type_ is None or type_ is CursorType.STRING:
            return []
        relation = self.source.relation(table.ref.native)
        column, where = self._column(table, name), self._where(table, window)
        with self._connect(table) as connection:
            if window.cursor is None or name != window.cursor.name:
                [(low, high)] = connection.rows(
                    f"select min({column}), max({column}) from {relation}{where}"
                )
                bounds = Bounds(
                    bounds.rows,
                    low=edge(low, type_, table, window),
                    high=edge(high, type_, table, window),
                )
            edges = slices(bounds)
            if not edges:
                return []
            sums = ", ".join(
                f"sum(case when {column} < {self.dialect.literal(edge)} then 1 else 0 end)"
                for edge in edges
            )
            [counts] = connection.rows(f"select {sums} from {relation}{where}")
        below = [*(int(n or 0) for n in counts), bounds.rows or 0]
        return balanced(edges, below, count) if largest_share(below) <= _SKEWED else []
