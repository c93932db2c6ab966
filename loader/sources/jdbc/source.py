"""The `jdbc` connector: any database with a JDBC driver, read by Spark's JDBC reader."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from zoneinfo import ZoneInfo

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loader.duration import Lookback
from loader.errors import TableError, sentence
from loader.problems import did_you_mean
from loader.rows.cursor import CursorType
from loader.rows.order import quoted
from loader.runtime.database_errors import DatabaseError, explain
from loader.sources import Source, SourceTable, TableRef
from loader.sources.jdbc.collation import by_bytes
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect, dialect_class, scrubbed
from loader.sources.jdbc.doubtful import Doubt, doubts
from loader.sources.jdbc.holding import hold, undisturbed
from loader.sources.jdbc.horizon import XMIN, activity, horizon
from loader.sources.jdbc.options import JdbcOptions, JdbcTableOptions, column_type
from loader.sources.jdbc.snapshot import JdbcSnapshot

_TIMESTAMP_WITH_TIMEZONE = "2014"  # java.sql.Types


@dataclass(frozen=True)
class Native:
    """Where a table is: its catalog, schema and name, exactly as the database has them.

    Attributes:
        stored: its rows lie in this database: no view, no foreign table.
        columns: the columns' names.
        writers: whether the last of them is PostgreSQL's system column `xmin`.
        comment: the database's comment on the table.
        doubts: columns with values that the lake may be unable to hold.
        types: what columns are read as in place of the types that Spark would choose.
    """

    catalog: str | None
    schema: str | None
    table: str
    stored: bool = True
    columns: tuple[str, ...] = ()
    writers: bool = False
    comment: str = ""
    doubts: tuple[Doubt, ...] = ()
    types: tuple[tuple[str, str], ...] = ()


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
        return self._options(self._startup)

    def _options(self, startup: Mapping[str, str]) -> dict[str, str]:
        given = self.options
        options = {
            "url": self.kind().url(given.url, given.properties),
            **startup,
            **given.properties,
        }
        for key, value in (
            ("user", given.user),
            ("password", given.password),
            ("driver", given.driver or self.kind.driver),
        ):
            if value is not None:
                options[key] = value
        return options

    @cached_property
    def _startup(self) -> Mapping[str, str]:
        """Properties of ours; none where a pooler refuses them."""
        properties = self.kind.properties(self.lock_timeout)
        taken = [*self.options.properties, *re.findall(r"[?&;](\w+)=", self.options.url)]
        if not properties or set(properties) & set(taken):
            return {}
        try:
            with Connection.open(self.spark, self._options(properties), self.where):
                return properties
        except DatabaseError as error:
            if "startup parameter" in error.what:
                return {}
            raise

    @contextmanager
    def connect(self, table: str = "") -> Iterator[Connection]:
        """A connection whose session speaks UTC.

        Args:
            table: what is asked about; errors name it in place of the source.
        """
        where = f"table {self.name}.{table}" if table else self.where
        with Connection.open(self.spark, self.reader_options, where) as connection:
            for statement in self.session:
                connection.execute(statement)
            yield connection

    @property
    def lock_timeout(self) -> int:
        """Seconds to wait for a table that another session locks."""
        return Lookback.parse(self.options.lock_timeout).seconds or 0

    @property
    def session(self) -> tuple[str, ...]:
        """Statements that every connection runs first."""
        return (*self.kind.session, *self.kind.waiting(self.lock_timeout))

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
                view = "VIEW" in (row["TABLE_TYPE"] or "")
                stored = not view and "FOREIGN" not in (row["TABLE_TYPE"] or "")
                # MySQL says VIEW of a view without a comment.
                comment = "" if row["REMARKS"] == "VIEW" else row["REMARKS"] or ""
                native = Native(row["TABLE_CAT"], row["TABLE_SCHEM"], name, stored, comment=comment)
                refs.append(TableRef(shown, native, "view" if view else "table"))
            return sorted(refs, key=lambda ref: ref.name)

    def describe(self, ref: TableRef) -> SourceTable:
        native: Native = ref.native
        with self.connect(ref.name) as connection:
            place = (native.catalog, native.schema, native.table)
            keys = connection.metadata("getPrimaryKeys", *place)
            keys.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
            indexes = connection.metadata("getIndexInfo", *place, False, True)
            told = self._columns(connection, native)
        schema = self._schema(ref, told)
        types = self._chosen_types(ref, schema)
        fields = [
            StructField(c.name, column_type(types[c.name]) if c.name in types else c.dataType)
            for c in schema.fields
        ]
        schema = StructType(fields)
        doubtful = doubts(schema, told, self.dialect.infinite_times)
        writers = self._by_writer(ref)
        if writers:
            schema = StructType([*schema.fields, StructField(XMIN, LongType())])
        columns = tuple(schema.names)
        fields = [
            StructField(self.dialect.lake_name(column.name), column.dataType)
            for column in schema.fields
        ]
        described = SourceTable(
            TableRef(
                ref.name,
                replace(
                    native,
                    columns=columns,
                    writers=writers,
                    doubts=doubtful,
                    types=tuple(types.items()),
                ),
                ref.kind,
            ),
            StructType(fields),
            primary_key=tuple(self.dialect.lake_name(row["COLUMN_NAME"] or "") for row in keys),
            indexed=frozenset(
                self.dialect.lake_name(row["COLUMN_NAME"] or "")
                for row in indexes
                if row["ORDINAL_POSITION"] == "1" and row["COLUMN_NAME"]
            ),
            collated=self._collated(ref, schema),
            comment=native.comment,
            column_comments={
                self.dialect.lake_name(name): row["REMARKS"] or "" for name, row in told.items()
            },
        )
        self.partition_column(described)  # a mistake in it is told before anything is read
        return described

    def _chosen_types(self, ref: TableRef, schema: StructType) -> dict[str, str]:
        """The types that the spec chooses, by the columns' names in the database.

        Raises:
            TableError: where there is no such column, or it is the cursor, or no number.
        """
        options, chosen = self.read_options(ref), {}
        for name, text in options.column_types.items():
            where = f"table {self.name}.{ref.name}, column_types"
            found = [c for c in schema.fields if c.name.lower() == name.lower()]
            if not found:
                raise TableError(
                    f"there is no column {name!r}",
                    where=where,
                    remedy=f"{did_you_mean(name, schema.names)} Its columns: "
                    f"{', '.join(schema.names)}".strip(),
                )
            if not isinstance(found[0].dataType, DecimalType):
                raise TableError(
                    f"the column {name!r} is no decimal, but {found[0].dataType.simpleString()}",
                    where=where,
                    remedy="Remove it: only decimals can be loaded as another type",
                )
            if name.lower() == (options.cursor_field or "").lower():
                raise TableError(
                    f"the cursor {name!r} must keep its type",
                    where=where,
                    remedy="Choose another cursor_field, or declare its scale in the source",
                )
            chosen[found[0].name] = text.strip().lower()
        return chosen

    def _collated(self, ref: TableRef, schema: StructType) -> frozenset[str]:
        """The cursor's name, where it is a text whose order is not that of its bytes."""
        wanted = (self.read_options(ref).cursor_field or "").lower()
        native: Native = ref.native
        space = (native.catalog if self.dialect.uses_catalogs else native.schema) or ""
        found = set()
        for column in schema.fields:
            if column.name.lower() != wanted or not isinstance(column.dataType, StringType):
                continue
            with self.connect(ref.name) as connection:
                if not by_bytes(connection, self.dialect, space, native.table, column.name):
                    found.add(self.dialect.lake_name(column.name))
        return frozenset(found)

    def _by_writer(self, ref: TableRef) -> bool:
        """Whether a table's cursor is the transaction that wrote each row."""
        options = self.read_options(ref)
        wanted = (options.cursor_field or "").lower() == XMIN
        if not wanted or not self.dialect.shares_snapshots:
            return False
        where = f"table {self.name}.{ref.name}, cursor_field"
        if not ref.native.stored:
            raise TableError(
                "only tables of PostgreSQL know the transactions that wrote their rows",
                where=where,
                remedy="Choose a column, or read the tables behind it",
            )
        if options.lookback is not None:
            raise TableError(
                "the cursor xmin knows which transactions were in flight, and takes no lookback",
                where=where,
                remedy="Leave the lookback away",
            )
        return True

    def partition_column(self, table: SourceTable) -> str | None:
        """The column whose ranges a table is configured to be read by.

        Raises:
            TableError: where there is no such column, or its type cannot be cut into ranges.
        """
        wanted = self.read_options(table.ref).partition_column
        if wanted is None:
            return None
        where = f"table {self.name}.{table.ref.name}, partition_column"
        for column in table.schema.fields:
            if column.name.lower() == wanted.lower():
                if CursorType.of(column.dataType) in (None, CursorType.STRING):
                    raise TableError(
                        f"the column {wanted!r} of type {column.dataType.simpleString()} "
                        "cannot be cut into ranges",
                        where=where,
                        remedy="Choose a number, date or timestamp, or leave it away",
                    )
                return column.name
        raise TableError(
            f"there is no column {wanted!r}",
            where=where,
            remedy=f"{did_you_mean(wanted, table.schema.names)} Its columns: "
            f"{', '.join(table.schema.names)}".strip(),
        )

    def _schema(self, ref: TableRef, told: Mapping[str, Mapping[str, str | None]]) -> StructType:
        native: Native = ref.native
        where = f"table {self.name}.{ref.name}"
        try:
            schema = self.reader(self.spark, f"(select * from {self.relation(native)}) t").schema
        except Py4JJavaError as error:
            raise explain(error, where) from error
        except PySparkException as error:
            raise TableError(
                f"Spark cannot read its columns: {sentence(error)}",
                where=where,
                remedy="Read it through a view in the database, with other names or fewer columns",
            ) from error
        # Drivers call instants and wall clocks alike TIMESTAMP; only the database's own name of
        # the type tells them apart.
        instants = {
            name
            for name, row in told.items()
            if (row["TYPE_NAME"] or "").lower() in self.dialect.instant_types
            or row["DATA_TYPE"] == _TIMESTAMP_WITH_TIMEZONE
        }
        return StructType(
            [
                StructField(c.name, TimestampType() if c.name in instants else c.dataType)
                for c in schema.fields
            ]
        )

    @staticmethod
    def _columns(connection: Connection, native: Native) -> dict[str, dict[str, str | None]]:
        """What the database says of each column: its own name of the type, its comment."""
        place = (native.catalog, native.schema, native.table)
        rows = connection.metadata("getColumns", *place, "%")
        # The metadata takes the name for a pattern: `a_b` finds `axb` as well.
        return {row["COLUMN_NAME"] or "": row for row in rows if row["TABLE_NAME"] == native.table}

    def relation(self, native: Native) -> str:
        """The table's qualified and quoted name."""
        space = native.catalog if self.dialect.uses_catalogs else native.schema
        parts = [part for part in (space, native.table) if part]
        return ".".join(self.dialect.quote(part) for part in parts)

    def reader(
        self,
        spark: SparkSession,
        relation: str,
        predicates: list[str] | None = None,
        session: tuple[str, ...] = (),
        types: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A lazy read of a relation through Spark, one partition for each predicate.

        Args:
            session: statements that every connection of the read runs first.
            types: of columns that are not read as the type that Spark would choose.
        """
        options = {
            **self.reader_options,
            "fetchsize": str(self.options.fetch_size),
            "preferTimestampNTZ": "true",
            "pushDownPredicate": "false",
        }
        if types:
            options["customSchema"] = ", ".join(f"{quoted(n)} {kind}" for n, kind in types.items())
        statements = (*self.session, *session)
        if statements:
            options["sessionInitStatement"] = "; ".join(statements)
        if predicates:
            return spark.read.jdbc(
                options.pop("url"), relation, predicates=predicates, properties=options
            )
        return spark.read.format("jdbc").options(**options, dbtable=relation).load()

    def read_options(self, ref: TableRef) -> JdbcTableOptions:
        """How a table is read in parallel."""
        for name, options in self.options.table_options.items():
            if name.lower() == ref.name.lower():
                return options
        return JdbcTableOptions()

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[JdbcSnapshot]:
        offset = self._wall_offset()
        if not self.dialect.shares_snapshots:
            yield JdbcSnapshot(self, offset)
            return
        with self.connect() as holder:
            long = undisturbed(holder)
            for statement in (*long, "set statement_timeout = 0"):
                holder.execute(statement)
            [(pid,)] = holder.rows("select pg_catalog.pg_backend_pid()")
            holder.java.setAutoCommit(False)
            holder.execute("set transaction isolation level repeatable read read only")
            relations = {table.ref.name: self.relation(table.ref.native) for table in tables}
            refused = hold(holder, relations, self.lock_timeout)
            with self.connect() as connection:
                seen = activity(connection, int(pid or 0))
            found = horizon(holder, seen)
            [(exported,)] = holder.rows("select pg_catalog.pg_export_snapshot()")
            yield JdbcSnapshot(self, offset, exported, found, seen.blind, long, refused)

    def _wall_offset(self) -> int:
        zone = self.options.time_zone
        if zone is not None:
            offset = dt.datetime.now(ZoneInfo(zone)).utcoffset()
            return int(offset.total_seconds()) if offset else 0
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            return self.dialect.wall_offset(connection)
