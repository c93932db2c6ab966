"""The `jdbc` connector: any database with a JDBC driver, read by Spark's JDBC reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType
from zoneinfo import ZoneInfo

from loader.cursor import Cursor, CursorType
from loader.errors import TableError
from loader.sources import Bounds, Snapshot, Source, SourceTable, TableRef, Window
from loader.sources.connection import Connection, DatabaseError, explain
from loader.sources.dialect import Dialect, dialect_class, scrubbed
from loader.sources.partitions import balanced, partition_count, slices
from loader.options import TableOptions


_TIMESTAMP_WITH_TIMEZONE = "2014"  # java.sql.Types


class JdbcTableOptions(TableOptions):
    """What one table of a database may say beyond the common options.

    Attributes:
        num_partitions: how many connections read it at once; chosen by size where absent.
        partition_column: read by ranges of this column in place of the cursor.
    """

    num_partitions: int | None = Field(default=None, ge=1)
    partition_column: str | None = None


class JdbcOptions(BaseModel):
    """The inner `spec` of a source with `path: jdbc`.

    Attributes:
        url: the JDBC URL.
        user, password: the account; properties of the driver go into `properties`.
        driver: the driver's class, where the URL does not tell.
        time_zone: the zone that columns without zone are written in; the database's own by
            default. Only "is this row dated in the future?" depends on it.
        fetch_size: rows per round trip.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    driver: str | None = None
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    time_zone: str | None = None
    fetch_size: int = Field(default=10_000, ge=1)
    table_options: dict[str, JdbcTableOptions] = Field(default_factory=dict)


@dataclass(frozen=True)
class Native:
    """Where a table is: its catalog, schema and name, exactly as the database has them."""

    catalog: str | None
    schema: str | None
    table: str
    columns: tuple[str, ...] = ()


class JdbcSource(Source):
    """Reads tables of one database."""

    options_model = JdbcOptions
    options: JdbcOptions

    def __init__(self, name: str, options: JdbcOptions, spark: SparkSession, folder: Path) -> None:
        super().__init__(name, options, spark, folder)
        self.kind = dialect_class(options.url)
        self.where = f"source {name} ({scrubbed(options.url)})"

    @property
    def reader_options(self) -> dict[str, str]:
        """Spark's JDBC options, the same for every connection."""
        given = self.options
        options = {"url": self.kind().url(given.url), **given.properties}
        for key, value in (
            ("user", given.user),
            ("password", given.password),
            ("driver", given.driver or self.kind.driver),
        ):
            if value is not None:
                options[key] = value
        return options

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection whose session speaks UTC."""
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            for statement in self.kind.session:
                connection.execute(statement)
            yield connection

    @cached_property
    def dialect(self) -> Dialect:
        """How this database quotes and folds names, by its own word."""
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            meta = connection.java.getMetaData()
            quote = (meta.getIdentifierQuoteString() or "").strip()
            return self.kind(quote or '"', bool(meta.storesUpperCaseIdentifiers()))

    def tables(self) -> list[TableRef]:
        dialect = self.dialect
        with self.connect() as connection:
            home = connection.java.getCatalog() if dialect.uses_catalogs else None
            default = connection.java.getSchema() if not dialect.uses_catalogs else home
            kinds = connection.array(
                "TABLE",
                "BASE TABLE",
                "PARTITIONED TABLE",
                "VIEW",
                "MATERIALIZED VIEW",
                "FOREIGN TABLE",
            )
            hidden = dialect.hidden_tables(connection)
            refs = []
            for row in connection.metadata("getTables", home, None, "%", kinds):
                schema = row["TABLE_CAT"] if dialect.uses_catalogs else row["TABLE_SCHEM"]
                name = row["TABLE_NAME"] or ""
                if (schema or "") in dialect.system_schemas or (schema or "", name) in hidden:
                    continue
                bare = dialect.lake_name(name)
                shown = bare if schema == default else f"{dialect.lake_name(schema or '')}.{bare}"
                native = Native(row["TABLE_CAT"], row["TABLE_SCHEM"], name)
                view = "VIEW" in (row["TABLE_TYPE"] or "")
                refs.append(TableRef(shown, native, "view" if view else "table"))
            return sorted(refs, key=lambda ref: ref.name)

    def describe(self, ref: TableRef) -> SourceTable:
        native: Native = ref.native
        with self.connect() as connection:
            place = (native.catalog, native.schema, native.table)
            keys = connection.metadata("getPrimaryKeys", *place)
            keys.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
            indexes = connection.metadata("getIndexInfo", *place, False, True)
        schema = self._schema(native)
        columns = tuple(schema.names)
        fields = [
            StructField(self.dialect.lake_name(column.name), column.dataType)
            for column in schema.fields
        ]
        return SourceTable(
            TableRef(ref.name, Native(*place, columns=columns), ref.kind),
            StructType(fields),
            primary_key=tuple(self.dialect.lake_name(row["COLUMN_NAME"] or "") for row in keys),
            indexed=frozenset(
                self.dialect.lake_name(row["COLUMN_NAME"] or "")
                for row in indexes
                if row["ORDINAL_POSITION"] == "1" and row["COLUMN_NAME"]
            ),
        )

    def _schema(self, native: Native) -> StructType:
        try:
            schema = self._reader(self.spark, f"(select * from {self.relation(native)}) t").schema
        except Py4JJavaError as error:
            raise explain(error, f"{self.where}, table {native.table}") from error
        except PySparkException as error:
            raise TableError(
                f"Spark cannot read a column's type: {str(error).splitlines()[0]}",
                where=f"{self.where}, table {native.table}",
                remedy="Select the other columns through a view in the database",
            ) from error
        instants = self._instants(native)
        return StructType(
            [
                StructField(c.name, TimestampType() if c.name in instants else c.dataType)
                for c in schema.fields
            ]
        )

    def _instants(self, native: Native) -> set[str]:
        # Drivers call instants and wall clocks alike TIMESTAMP; only the database's own name of
        # the type tells them apart.
        with self.connect() as connection:
            rows = connection.metadata(
                "getColumns", native.catalog, native.schema, native.table, "%"
            )
        return {
            row["COLUMN_NAME"] or ""
            for row in rows
            if (row["TYPE_NAME"] or "").lower() in self.dialect.instant_types
            or row["DATA_TYPE"] == _TIMESTAMP_WITH_TIMEZONE
        }

    def relation(self, native: Native) -> str:
        """The table's qualified and quoted name."""
        space = native.catalog if self.dialect.uses_catalogs else native.schema
        parts = [part for part in (space, native.table) if part]
        return ".".join(self.dialect.quote(part) for part in parts)

    def _reader(
        self,
        spark: SparkSession,
        relation: str,
        predicates: list[str] | None = None,
        session: tuple[str, ...] = (),
    ) -> DataFrame:
        options = {
            **self.reader_options,
            "fetchsize": str(self.options.fetch_size),
            "preferTimestampNTZ": "true",
            "pushDownPredicate": "false",
        }
        statements = (*self.kind.session, *session)
        if statements:
            options["sessionInitStatement"] = "; ".join(statements)
        if predicates:
            return spark.read.jdbc(
                options.pop("url"), relation, predicates=predicates, properties=options
            )
        return spark.read.format("jdbc").options(**options, dbtable=relation).load()

    @contextmanager
    def snapshot(self) -> Iterator[JdbcSnapshot]:
        offset = self._wall_offset()
        if not self.dialect.shares_snapshots:
            yield JdbcSnapshot(self, offset, None)
            return
        with self.connect() as holder:
            holder.execute("begin isolation level repeatable read read only")
            [(exported,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
            yield JdbcSnapshot(self, offset, exported)

    def _wall_offset(self) -> int:
        zone = self.options.time_zone
        if zone is not None:
            offset = dt.datetime.now(ZoneInfo(zone)).utcoffset()
            return int(offset.total_seconds()) if offset else 0
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            return self.dialect.wall_offset(connection)


class JdbcSnapshot(Snapshot):
    """One moment of a database; of PostgreSQL truly one, exported to every reader."""

    def __init__(self, source: JdbcSource, wall_offset: int, exported: str | None) -> None:
        self.source = source
        self.dialect = source.dialect
        self.wall_offset = wall_offset
        self.session: tuple[str, ...] = ()
        if exported is not None:
            self.session = (
                "set transaction isolation level repeatable read read only",
                f"set transaction snapshot {self.dialect.text(exported)}",
            )

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        with self.source.connect() as connection:
            if self.session:
                connection.java.setAutoCommit(False)
            for statement in self.session:
                connection.execute(statement)
            yield connection

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        relation = self.source.relation(table.ref.native)
        with self._connect() as connection:
            if window.cursor is None:
                [(rows,)] = connection.rows(f"select count(*) from {relation}")
                return Bounds(int(rows or 0))
            type_ = window.cursor.type
            column = self._column(table, window.cursor.name)
            # The clock is read before the rows: what commits in between lies beyond it.
            clock = self._clock(connection, type_)
            [(rows, dated, low, high)] = connection.rows(
                f"select count(*), count({column}), min({column}), max({column}) "
                f"from {relation}{self._where(table, window)}"
            )
            top = _parse(high, type_, table, window)
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
                low=_parse(low, type_, table, window),
                high=top,
                clock=clock,
                future=future,
            )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        source, native = self.source, table.ref.native
        where = self._where(table, window)
        marks = self.dialect.quote_character
        # Spark quotes a column's name without doubling the quotes in it.
        columns = ", ".join(
            f"{self.dialect.quote(name)} as c{i}" if marks in name else self.dialect.quote(name)
            for i, name in enumerate(native.columns)
        )
        relation = f"(select {columns} from {source.relation(native)}{where}) strandline"
        predicates = self._predicates(spark, table, window, bounds)
        try:
            frame = source._reader(spark, relation, predicates, self.session)
        except Py4JJavaError as error:
            raise explain(error, f"{source.where}, table {table.ref.name}") from error
        return frame.toDF(*table.schema.names).select(
            *(
                f.col(_tick(column.name)).cast(column.dataType).alias(column.name)
                if isinstance(column.dataType, TimestampType)
                and isinstance(frame.schema[i].dataType, TimestampNTZType)
                else f.col(_tick(column.name))
                for i, column in enumerate(table.schema.fields)
            )
        )

    def _column(self, table: SourceTable, name: str) -> str:
        native: Native = table.ref.native
        return self.dialect.quote(native.columns[table.schema.names.index(name)])

    def _where(self, table: SourceTable, window: Window) -> str:
        if window.cursor is None:
            return ""
        column = self._column(table, window.cursor.name)
        limits = []
        if window.low is not None:
            limits.append(f"{column} >= {self.dialect.literal(window.low)}")
        if window.high is not None:
            limits.append(f"{column} <= {self.dialect.literal(window.high)}")
        if not limits:
            return "" if window.nulls else f" where {column} is not null"
        text = " and ".join(limits)
        return f" where ({text}) or {column} is null" if window.nulls else f" where {text}"

    def _clock(self, connection: Connection, type_: CursorType) -> Cursor | None:
        if not type_.is_time:
            return None
        [(text,)] = connection.rows(self.dialect.utc_clock)
        now = dt.datetime.fromisoformat(Cursor.parse(text or "", CursorType.TIMESTAMPTZ).text)
        if type_ is not CursorType.TIMESTAMPTZ:
            now += dt.timedelta(seconds=self.wall_offset)
        return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)

    def _predicates(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> list[str] | None:
        options = self.source.table_options.get(table.ref.name, JdbcTableOptions())
        assert isinstance(options, JdbcTableOptions)
        count = partition_count(
            bounds.rows, spark.sparkContext.defaultParallelism, options.num_partitions
        )
        if count < 2:
            return None
        for name in self._partition_columns(table, window, options):
            cuts = self._cuts(table, window, bounds, name, count)
            if cuts:
                column = self._column(table, name)
                marks = [self.dialect.literal(cut) for cut in cuts]
                return [
                    f"{column} < {marks[0]} or {column} is null",
                    *(f"{column} >= {a} and {column} < {b}" for a, b in zip(marks, marks[1:])),
                    f"{column} >= {marks[-1]}",
                ]
        return None

    def _partition_columns(
        self, table: SourceTable, window: Window, options: JdbcTableOptions
    ) -> list[str]:
        if options.partition_column is not None:
            if options.partition_column not in table.schema.names:
                raise TableError(
                    f"there is no column {options.partition_column!r} to partition by",
                    where=f"table {table.ref.name}, partition_column",
                    remedy=f"Its columns: {', '.join(table.schema.names)}",
                )
            return [options.partition_column]
        names = [window.cursor.name] if window.cursor is not None else []
        return [*names, *table.primary_key]

    def _cuts(
        self, table: SourceTable, window: Window, bounds: Bounds, name: str, count: int
    ) -> list[Cursor]:
        type_ = CursorType.of(table.schema[name].dataType)
        if type_ is None or type_ is CursorType.STRING:
            return []
        relation = self.source.relation(table.ref.native)
        column, where = self._column(table, name), self._where(table, window)
        with self._connect() as connection:
            if window.cursor is None or name != window.cursor.name:
                [(low, high)] = connection.rows(
                    f"select min({column}), max({column}) from {relation}{where}"
                )
                bounds = Bounds(
                    bounds.rows,
                    low=_parse(low, type_, table, window),
                    high=_parse(high, type_, table, window),
                )
            edges = slices(bounds)
            if not edges:
                return []
            below = ", ".join(
                f"sum(case when {column} < {self.dialect.literal(edge)} then 1 else 0 end)"
                for edge in edges
            )
            [counts] = connection.rows(f"select {below} from {relation}{where}")
        cuts = balanced(edges, [*(int(n or 0) for n in counts), bounds.rows], count)
        # One slice with nearly all rows: ranges of this column would leave one reader alone.
        largest = max(
            b - a
            for a, b in zip(
                [0, *map(int, _known(counts))], [*map(int, _known(counts)), bounds.rows]
            )
        )
        return cuts if largest <= bounds.rows * 0.8 else []


def _known(values: tuple[str | None, ...]) -> list[str]:
    return [value or "0" for value in values]


def _parse(
    text: str | None, type_: CursorType, table: SourceTable, window: Window
) -> Cursor | None:
    if text is None:
        return None
    try:
        return Cursor.parse(text, type_)
    except ValueError as problem:
        column = window.cursor.name if window.cursor else "?"
        raise DatabaseError(
            f"a value of the cursor column cannot be used: {problem}",
            where=f"table {table.ref.name}, column {column}",
            remedy="Mend the value in the source, or choose another cursor_field",
        ) from None


def _tick(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
