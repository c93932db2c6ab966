"""A database as the connector reaches it: connections, Spark's readers, how it quotes names."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame, SparkSession

from loader.duration import Lookback
from loader.errors import TableError
from loader.problems import did_you_mean
from loader.rows.cursor import CursorType
from loader.rows.order import quoted
from loader.runtime.database_errors import DatabaseError
from loader.sources import Source, SourceTable, TableRef
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect, dialect_class, scrubbed
from loader.sources.jdbc.native import Native
from loader.sources.jdbc.options import JdbcOptions, JdbcTableOptions


class Database(Source):
    """One database, as a connector of it reaches it."""

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
                        remedy="Choose a number, date or timestamp column, "
                        "or remove partition_column",
                    )
                return column.name
        raise TableError(
            f"there is no column {wanted!r}",
            where=where,
            remedy=f"{did_you_mean(wanted, table.schema.names)} Its columns: "
            f"{', '.join(table.schema.names)}".strip(),
        )

    def wall_offset(self) -> int:
        """Seconds that the wall clock of the rows is ahead of UTC."""
        zone = self.options.time_zone
        if zone is not None:
            offset = dt.datetime.now(ZoneInfo(zone)).utcoffset()
            return int(offset.total_seconds()) if offset else 0
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            return self.dialect.wall_offset(connection)
