"""Connects to a source's database, reads it with Spark's JDBC reader, and quotes names."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame, SparkSession

from loader.duration import Lookback
from loader.errors import TableError, unknown_column
from loader.names import is_wildcard
from loader.rows.cursor import CursorType
from loader.sources.interface import Source, SourceTable, TableRef
from loader.sources.jdbc.connections import Connection, ConnectionPool
from loader.sources.jdbc.dialect import LOGIN_SECONDS, Derby, Dialect, Oracle
from loader.sources.jdbc.metadata import NativeColumns
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.options import JdbcOptions, JdbcTableOptions
from loader.sources.jdbc.postgresql_dialect import PostgreSQL
from loader.sources.jdbc.reader import MOST_ROWS, build_custom_schema, read_relation
from loader.spark.error_translation import DatabaseError
from loader.spec.options import options_for

_CATALOG_TIMEOUT = 600
"""The time limit in seconds for listing or describing tables, not counting waits for locks."""


_DIALECTS: tuple[type[Dialect], ...] = (PostgreSQL, MySQL, Derby, Oracle)
_CREDENTIALS = (
    re.compile(r"([\w:+-]+//)[^@/?;#]*@([^@?;]*)(?:[?;][^@]*)?"),
    re.compile(r"(jdbc:oracle:\w+:)[^@?;#]*(@[^@?;]*)(?:[?;][^@]*)?"),
)


class _ServerFacts(NamedTuple):
    """Facts about a server, which the first connection reads.

    Attributes:
        startup: the connection properties that the server accepts.
        session: statements that every connection runs first.
        resting: statements that disable the server's timeout for idle sessions.
        reading: driver properties for reads.
        streamed: the fetch size that the driver needs to stream rows; None if it always streams.
    """

    startup: Mapping[str, str]
    dialect: Dialect
    session: tuple[str, ...]
    resting: tuple[str, ...]
    reading: Mapping[str, str]
    streamed: int | None


class Database(Source):
    """The base class of the connector, which connects to one database."""

    options_model = JdbcOptions
    can_mask = True
    options: JdbcOptions

    def __init__(self, name: str, options: JdbcOptions, spark: SparkSession, folder: Path) -> None:
        super().__init__(name, options, spark, folder)
        self.kind = dialect_class(options.url)
        self._idle = ConnectionPool(self.connect)
        self._idle.close()
        self._overdue: DatabaseError | None = None
        self.where = f"source {name} ({strip_url(options.url)})"

    @property
    def reader_options(self) -> dict[str, str]:
        return self._options(self._server_facts.startup)

    def _options(self, startup: Mapping[str, str]) -> dict[str, str]:
        configured = self.options
        options = {
            "url": self.kind().url(configured.url, configured.properties),
            **dict(self.kind.network),
            **startup,
            **configured.properties,
        }
        for key, value in (
            ("user", configured.user),
            ("password", configured.password),
            ("driver", configured.driver or self.kind.driver),
        ):
            if value is not None:
                options[key] = value
        return options

    @cached_property
    def _server_facts(self) -> _ServerFacts:
        """The facts about the server.

        If a pooler rejects the startup properties, connects without them.
        """
        properties = self.kind.choose_startup_properties(self.lock_timeout)
        taken = [*self.options.properties, *re.findall(r"[?&;](\w+)=", self.options.url)]
        if properties and not set(properties) & set(taken):
            try:
                return self._connect_first(properties)
            except DatabaseError as error:
                if "parameter" not in error.what:
                    raise
        return self._connect_first({})

    def _connect_first(self, startup: Mapping[str, str]) -> _ServerFacts:
        jvm: Any = self.spark._jvm
        # A timeout in the driver properties overrides this one.
        jvm.java.sql.DriverManager.setLoginTimeout(LOGIN_SECONDS)
        with ExitStack() as opened:
            connection = opened.enter_context(
                Connection.open(self.spark, self._options(startup), self.where)
            )
            with connection.limit_time(self._catalog_timeout):
                meta = connection.java.getMetaData()
                quote = (meta.getIdentifierQuoteString() or "").strip()
                dialect = self.kind(quote or '"', bool(meta.storesUpperCaseIdentifiers()))
                version = connection.major_version
                reading = (
                    self.kind.choose_read_properties(version, self._readers) if startup else {}
                )
                reading = reading if reading and dialect.has_properties(connection) else {}
                streamed = self.kind.stream_fetch_size(meta.getDriverName())
                waiting = self.kind.limit_lock_wait(self.lock_timeout)
                session = (*self.kind.session, *waiting, *dialect.keep_alive(connection))
                resting = self.kind.disable_idle_timeout(version)
                connection.prepare((*session, *resting))
            self._idle.keep(connection, opened.pop_all())
            return _ServerFacts(startup, dialect, session, resting, reading, streamed)

    @property
    def _readers(self) -> int:
        """The number of tasks that run concurrently in one JVM."""
        context = self.spark.sparkContext
        if str(context.master).startswith("local"):
            return int(context.defaultParallelism)
        return int(context.getConf().get("spark.executor.cores") or 1)

    @contextmanager
    def connect(self, where: str = "") -> Iterator[Connection]:
        """Opens a connection and runs the first statements of its session.

        Args:
            where: the table that error messages name; by default the source.
        """
        with Connection.open(self.spark, self.reader_options, where or self.where) as connection:
            connection.prepare((*self.session, *self._server_facts.resting))
            yield connection

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        if not self._idle.closes_each:  # a nested block; the outer block still needs a connection
            yield
            self._idle.close_surplus(keep)
            return
        self._idle = ConnectionPool(self.connect)
        self._overdue = None
        try:
            yield
        finally:
            self._idle.close()

    def lend_connection(self, where: str = "") -> AbstractContextManager[Connection]:
        """Lends a connection from the pool. The caller must not change the session's settings.

        The pool keeps connections open only within :meth:`reuse_connections`.
        """
        self._server_facts  # noqa: B018 - adds the first connection to the pool
        return self._idle.lend(where or self.where)

    @contextmanager
    def lend_catalog_connection(self, where: str = "") -> Iterator[Connection]:
        """Lends a connection for a metadata query, with a time limit.

        All tables of a run have to wait for such queries. After a timeout, later calls within
        :meth:`reuse_connections` therefore raise the same error immediately.
        """
        if self._overdue is not None:
            raise self._overdue
        with (
            self.lend_connection(where) as connection,
            connection.limit_time(self._catalog_timeout),
        ):
            try:
                yield connection
            except DatabaseError as error:
                self._overdue = error if connection.is_overdue else None
                raise

    @property
    def _catalog_timeout(self) -> int:
        return _CATALOG_TIMEOUT + self.lock_timeout

    @property
    def lock_timeout(self) -> int:
        """The maximum number of seconds to wait for a table that another session has locked."""
        return Lookback.parse(self.options.lock_timeout).seconds or 0

    @property
    def session(self) -> tuple[str, ...]:
        return self._server_facts.session

    @property
    def dialect(self) -> Dialect:
        """The database's dialect, with the quote character and case that the driver reports."""
        return self._server_facts.dialect

    def relation(self, native: NativeColumns) -> str:
        space = native.catalog if self.dialect.uses_catalogs else native.schema
        parts = [part for part in (space, native.table) if part]
        return ".".join(self.dialect.quote(part) for part in parts)

    def rows(self, native: NativeColumns) -> str:
        """Returns SQL for the rows that the spec selects, for the FROM clause.

        The database flattens a subquery, so that indexes, parallel ranges and PostgreSQL's system
        columns remain usable.
        """
        # Thanks to the line breaks, the database's errors quote the user's SQL as it is in the
        # spec.
        if native.query:
            return f"(\n{native.query}\n) strandline_rows"
        relation = self.relation(native)
        if not native.where:
            return relation
        columns = [self.dialect.quote(name) for name in native.columns]
        if native.has_xmin:
            columns.pop()
        if self.dialect.shares_snapshots and native.stored:
            columns += ["ctid", "tableoid", "xmin"]
        return (
            f"(select {', '.join(columns)} from {relation} where (\n{native.where}\n)) "
            "strandline_rows"
        )

    @property
    def stream_fetch_size(self) -> int | None:
        """The fetch size that the driver needs to stream rows; None if it always streams."""
        required, configured = self._server_facts.streamed, self.options.fetch_size
        return required if required is None or required < 0 else configured or required

    def reader(
        self,
        spark: SparkSession,
        connection: Connection,
        relation: str,
        predicates: Sequence[str] | None = None,
        session: tuple[str, ...] = (),
        types: Mapping[str, str] | None = None,
        fetch_size: int = MOST_ROWS,
        instants: Sequence[str] = (),
    ) -> DataFrame:
        """Lazily reads a relation with Spark's JDBC reader.

        Args:
            connection: the connection that is used to read the schema.
            predicates: a condition for each partition; by default one partition reads all rows.
            session: additional statements that every reader runs first.
            types: the types of the columns for which the loader overrides Spark's choice.
            fetch_size: the number of rows per round trip, unless the spec or the driver sets it.
            instants: columns to read as instants, even if Spark would choose a different type.
        """
        options = {
            **self._choose_reading_properties(types),
            **self.reader_options,
            "fetchsize": str(self.stream_fetch_size or self.options.fetch_size or fetch_size),
            "preferTimestampNTZ": "true",
            "pushDownPredicate": "false",
        }
        options |= build_custom_schema({**dict.fromkeys(instants, "timestamp"), **(types or {})})
        statements = (*self.session, *session)
        if statements:
            options["sessionInitStatement"] = "; ".join(statements)
        return read_relation(spark, connection, options, relation, predicates or ())

    def _choose_reading_properties(self, types: Mapping[str, str] | None) -> Mapping[str, str]:
        """Returns driver properties for reads, for example to receive values in the binary format.

        Returns none behind a pooler, because its sessions may contain prepared statements of other
        drivers; if the loader overrides types (`types`); or if the spec sets related properties.
        """
        reading = self._server_facts.reading
        related = {*reading, "binaryTransfer", "preferQueryMode"}
        return {} if types or self._user_properties.keys() & related else reading

    def reads_binary(self, types: Mapping[str, str] | None) -> bool:
        """Returns whether the driver may receive values in the binary format."""
        if self._user_properties.get("binaryTransfer", "").lower() == "false":
            return False
        prepares = self._user_properties.get("prepareThreshold", "0").strip() != "0"
        return bool(self._choose_reading_properties(types)) or prepares

    @property
    def _user_properties(self) -> dict[str, str]:
        in_url = re.findall(r"[?&;](\w+)=([^?&;]*)", self.options.url)
        return {**dict(in_url), **self.options.properties}

    def read_options(self, ref: TableRef) -> JdbcTableOptions:
        return options_for(self.options.table_options, ref.name, JdbcTableOptions())

    def list_cdc_tables(self) -> set[str]:
        by_name = self.options.table_options
        patterns = {name for name, options in by_name.items() if options.sync_mode == "cdc"}
        names = [name for name in by_name if not is_wildcard(name)]
        if any(map(is_wildcard, patterns)):
            names += [ref.name for ref in self.tables()]
        default = JdbcTableOptions()
        return {n for n in names if options_for(by_name, n, default).sync_mode == "cdc"}

    def partition_column(self, table: SourceTable) -> str | None:
        """Returns the column that the `partition_column` option names; None if it is not set.

        Raises:
            TableError: if the column does not exist or cannot be split into ranges.
        """
        configured = self.read_options(table.ref).partition_column
        if configured is None:
            return None
        where = f"table {self.name}.{table.ref.name}, partition_column"
        for index, column in enumerate(table.schema.fields):
            if column.name.lower() == configured.lower():
                if index in table.ref.native.as_texts:
                    raise TableError(
                        f"the database cannot split the column {configured!r} into ranges, because "
                        "column_types changes its type",
                        where=where,
                        remedy="Choose another column, or remove it from column_types",
                    )
                if CursorType.of(column.dataType) in (None, CursorType.STRING):
                    raise TableError(
                        f"the column {configured!r} of type {column.dataType.simpleString()} "
                        "cannot be split into ranges",
                        where=where,
                        remedy="Choose a number, date or timestamp column, "
                        "or remove partition_column",
                    )
                return column.name
        raise unknown_column(configured, table.schema.names, where)

    def wall_offset(self) -> int:
        """Returns the UTC offset in seconds of times that have no time zone."""
        zone = self.options.time_zone
        if zone is not None:
            offset = dt.datetime.now(ZoneInfo(zone)).utcoffset()
            return int(offset.total_seconds()) if offset else 0
        with Connection.open(self.spark, self.reader_options, self.where) as connection:
            return self.dialect.wall_offset(connection)


def dialect_class(url: str) -> type[Dialect]:
    """Returns the dialect for a JDBC URL; by default, :class:`Dialect`."""
    lowered = url.lower()
    for dialect in _DIALECTS:
        if lowered.startswith(dialect.prefixes):
            return dialect
    return Dialect


def strip_url(url: str) -> str:
    """Removes parameters and credentials from a URL, so that messages can show it.

    A password may contain `/`, `?` and `;`, which usually end the host. If a URL with an `@` cannot
    be parsed, only its scheme is returned.
    """
    if "@" not in url:
        return re.sub(r"[?;].*$", "", url, flags=re.DOTALL)
    for credentials in _CREDENTIALS:
        match = credentials.fullmatch(url)
        if match is not None:
            return match[1] + match[2]
    start = re.match(r"(?:[\w+-]+:){1,2}", url)
    return f"{start[0]}…" if start else "…"
