"""JDBC connections from the Spark driver's JVM, and a pool of idle connections.

The connections run the queries that precede a read (for keys, bounds and clocks) and export the
shared snapshot. Spark's JDBC reader opens its own connections on the executors. The pool exists
because opening a connection takes longer than most queries.
"""

from __future__ import annotations

import csv
import io
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, partial
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from loader.spark.error_translation import (
    OVERDUE,
    ConnectionRefusedByServer,
    DatabaseError,
    translate_jdbc_error,
)
from loader.spark.interruption import check_interruption, interruptible
from loader.spark.spark_version import jdbc_schema

_TIMES = (93, 2014)
"""The constants `TIMESTAMP` and `TIMESTAMP_WITH_TIMEZONE` of ``java.sql.Types``."""

_CSV_READABLE = ("jdbc:postgresql:", "jdbc:mariadb:", "jdbc:mysql:")
"""URL prefixes of databases whose drivers return metadata only as strings and numbers."""
csv.field_size_limit(2**31 - 1)  # a comment on a table may be long
_NULL = f"\x1f{secrets.token_hex(4)}"
"""The string for null in CSV. It is random, so that no value in the database equals it."""
_CANCEL = ("cancelQuery", "cancelCurrentQuery")
"""Methods of the PostgreSQL and MariaDB drivers that also cancel metadata queries."""
Answer = TypeVar("Answer")


def spark_options(spark: SparkSession, options: Mapping[str, str], relation: str = "unused") -> Any:
    """Converts JDBC options to Spark's Java class ``JDBCOptions``.

    Args:
        relation: the table or subquery to read.
    """
    jvm: Any = spark._jvm
    java_map = jvm.java.util.HashMap()
    for key, value in {**options, "dbtable": relation}.items():
        java_map.put(key, value)
    scala_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java_map)
    return jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(scala_map)


class Connection:
    """A JDBC connection for queries with small results, which are read as strings."""

    def __init__(self, spark: SparkSession, java: Any, where: str, url: str = "") -> None:
        self.java = java
        self.where = where
        self.lost = False
        """Whether the session must not be reused, because its state is unknown."""
        self.is_overdue = False
        """Whether the connection was aborted because a time limit expired."""
        self.reopen: Callable[[], Connection] | None = None
        """Opens a new connection if the server closed this one while it was idle."""
        self._in_transaction = False
        self._is_running = False
        self._jvm: Any = spark._jvm
        self._can_read_as_csv = url.startswith(_CSV_READABLE)
        self._label_positions: dict[str, dict[str, int]] = {}
        """The column positions in the result of each metadata method."""

    @classmethod
    @contextmanager
    def open(
        cls, spark: SparkSession, options: Mapping[str, str], where: str
    ) -> Iterator[Connection]:
        """Opens a connection with the driver and properties of Spark's JDBC reader.

        Args:
            options: Spark's JDBC options (`url`, `driver`, `user`, `password`) and the driver's
                properties.

        Raises:
            DatabaseError: if the database is down or rejects the password, or if its driver is
                missing.
        """
        jvm: Any = spark._jvm
        try:
            dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
            java = dialect.createConnectionFactory(spark_options(spark, options)).apply(-1)
        except Py4JJavaError as error:
            raise translate_jdbc_error(error, where, options["url"]) from error
        connection = cls(spark, java, where, options["url"])
        try:
            yield connection
        finally:
            connection._ignore_errors(lambda: java.rollback() if not java.getAutoCommit() else None)
            connection._ignore_errors(java.close)

    @cached_property
    def major_version(self) -> int:
        return int(self.java.getMetaData().getDatabaseMajorVersion())

    @contextmanager
    def limit_time(self, seconds: int) -> Iterator[None]:
        """Aborts the connection if the block takes longer than the limit.

        The driver's timeout does not suffice, because it restarts with each byte from the server.
        """
        timer = threading.Timer(seconds, self._abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _abort(self) -> None:
        self.is_overdue = True
        threads = self._jvm.java.util.concurrent.ForkJoinPool.commonPool()
        self._ignore_errors(lambda: self.java.abort(threads))

    def execute(self, sql: str) -> None:
        self._run_query(lambda: self._statement.execute(sql))

    def prepare(self, statements: Sequence[str]) -> None:
        """Runs the first statements of a session in one round trip."""
        if statements:
            self.execute("; ".join(statements))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Runs the block in a transaction, which is rolled back at the end."""
        self.begin()
        try:
            yield
        finally:
            was_lost, self.lost, self._in_transaction = self.lost, True, False
            self._ignore_errors(self._roll_back)
            self.lost = self.lost or was_lost

    def begin(self) -> None:
        """Makes the next statement start a transaction."""
        self._explain_errors(lambda: self.java.setAutoCommit(False))
        self._in_transaction = True

    def _roll_back(self) -> None:
        self.java.rollback()
        self.java.setAutoCommit(True)
        self.lost = False

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Runs a query and returns its rows as strings.

        Timestamps have all digits, for example ``2025-01-01 00:00:00.123456789``. Instants are in
        UTC, the JVM's time zone.
        """
        return self._run_query(lambda: list(self._fetch(self._statement.executeQuery(sql))))

    def text_rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Like :meth:`rows`, but faster for some drivers: one JVM call reads all values.

        The values must be strings or numbers; in PostgreSQL, they may also be timestamps.
        """
        if not self._can_read_as_csv:
            return self.rows(sql)
        return self._run_query(lambda: self._read_as_csv(self._statement.executeQuery(sql)))

    def types(self, sql: str) -> dict[str, str]:
        """Returns the type name of each column of a query; for a domain, its base type's name."""
        return {row["COLUMN_NAME"] or "": row["TYPE_NAME"] or "" for row in self.describe(sql)}

    def describe(self, sql: str) -> list[dict[str, str | None]]:
        """Describes each column of a query, like ``DatabaseMetaData.getColumns`` for a table."""
        return self._run_query(lambda: self._describe(sql))

    def _describe(self, sql: str) -> list[dict[str, str | None]]:
        meta = self._statement.executeQuery(sql).getMetaData()
        return [
            {
                "COLUMN_NAME": meta.getColumnLabel(i),
                "DATA_TYPE": str(meta.getColumnType(i)),
                "SOURCE_DATA_TYPE": None,
                "TYPE_NAME": meta.getColumnTypeName(i),
                "COLUMN_SIZE": str(meta.getPrecision(i)),
                "DECIMAL_DIGITS": str(meta.getScale(i)),
                "REMARKS": None,
            }
            for i in range(1, meta.getColumnCount() + 1)
        ]

    def columns(self, dialect: Any, sql: str) -> Any:
        """Returns the schema of a query as a Java ``StructType``, using Spark's JDBC dialect."""
        return self._run_query(
            lambda: jdbc_schema(self._jvm, self.java, self._statement.executeQuery(sql), dialect)
        )

    def default_namespace(self, kind: str) -> str | None:
        name: str | None = self._run_query(lambda: getattr(self.java, f"get{kind}")())
        return name

    def metadata(
        self, call: str, *arguments: Any, labels: Sequence[str]
    ) -> list[dict[str, str | None]]:
        """Calls a method of ``java.sql.DatabaseMetaData``. Returns a dict for each row.

        Args:
            labels: the columns to return, in upper case. A column that the driver does not return
                is None.
        """
        return self._run_query(lambda: self._metadata(call, arguments, labels))

    def _metadata(
        self, call: str, arguments: Sequence[Any], labels: Sequence[str]
    ) -> list[dict[str, str | None]]:
        result = getattr(self.java.getMetaData(), call)(*arguments)
        if self._can_read_as_csv:
            rows = self._read_as_csv(result, names=call not in self._label_positions)
            if call not in self._label_positions:
                names = rows.pop(0)
                self._label_positions[call] = {
                    (name or "").upper(): i for i, name in enumerate(names)
                }
            asked = [(label, self._label_positions[call].get(label)) for label in labels]
            return [{n: row[i] if i is not None else None for n, i in asked} for row in rows]
        if call not in self._label_positions:
            meta = result.getMetaData()
            columns = range(1, meta.getColumnCount() + 1)
            self._label_positions[call] = {meta.getColumnLabel(i).upper(): i for i in columns}
        positions = self._label_positions[call]
        records = []
        while result.next():  # each value costs a JVM call, so only requested columns are read
            records.append(
                {
                    label: result.getString(positions[label]) if label in positions else None
                    for label in labels
                }
            )
        result.close()
        return records

    def _read_as_csv(self, result: Any, names: bool = False) -> list[tuple[str | None, ...]]:
        """Reads a small result in one JVM call, with a CSV writer that is part of Spark."""
        written = self._jvm.java.io.StringWriter()
        (self._csv(names=True) if names else self._csv_without_names).write(result, written)
        read = csv.reader(io.StringIO(written.toString(), newline=""), strict=True)
        return [tuple(None if value == _NULL else value for value in row) for row in read]

    @cached_property
    def _csv_without_names(self) -> Any:
        return self._csv(names=False)

    def _csv(self, names: bool) -> Any:
        """Returns a new CSV writer, because a used one would repeat the first result's names."""
        settings = self._csv_settings.clone()
        settings.setHeaderWritingEnabled(names)
        return self._jvm.com.univocity.parsers.csv.CsvRoutines(settings)

    @cached_property
    def _csv_settings(self) -> Any:
        settings = self._jvm.com.univocity.parsers.csv.CsvWriterSettings()
        settings.setQuoteAllFields(True)
        settings.setIgnoreLeadingWhitespaces(False)
        settings.setIgnoreTrailingWhitespaces(False)
        settings.setNullValue(_NULL)
        settings.setEmptyValue("")
        settings.getFormat().setLineSeparator("\n")
        return settings

    def string_array(self, *texts: str) -> Any:
        gateway = self.java._gateway_client  # an attribute of every Java object in Py4J
        from py4j.java_gateway import JavaClass

        array = JavaClass("java.lang.reflect.Array", gateway).newInstance(
            JavaClass("java.lang.Class", gateway).forName("java.lang.String"), len(texts)
        )
        for index, text in enumerate(texts):
            array[index] = text
        return array

    def _fetch(self, result: Any) -> Iterator[tuple[str | None, ...]]:
        meta = result.getMetaData()
        columns = range(1, meta.getColumnCount() + 1)
        is_time = {i: meta.getColumnType(i) in _TIMES for i in columns}
        while result.next():
            row: list[str | None] = []
            for i in columns:
                value = result.getTimestamp(i) if is_time[i] else result.getString(i)
                row.append(value.toString() if is_time[i] and value is not None else value)
            yield tuple(row)

    @cached_property
    def _statement(self) -> Any:
        """The statement that runs all queries. Each query closes the previous result."""
        return self.java.createStatement()

    def _run_query(self, query: Callable[[], Answer]) -> Answer:
        """Runs a query. Opens a new connection if the server closed this one while it was idle.

        Raises:
            ConnectionRefusedByServer: if the database rejects the query.
            DatabaseError: if the connection is closed.
        """
        reopen, self.reopen = self.reopen, None
        try:
            return self._explain_errors(query)
        except DatabaseError:
            if reopen is None or not self.lost or self.is_overdue:
                raise
        self._take_over(reopen())
        return self._explain_errors(query)

    def _explain_errors(self, query: Callable[[], Answer]) -> Answer:
        try:
            with interruptible(self._cancel):
                self._is_running = True
                return query()
        except Py4JJavaError as error:
            closed = True
            with suppress(Py4JJavaError):
                closed = self.java.isClosed()  # also true if the server closed it
            explained = translate_jdbc_error(error, self.where, answered=not closed)
            if self.is_overdue:
                what, remedy = "the database has not answered in time", OVERDUE
                explained = DatabaseError(what, where=self.where, remedy=remedy)
            self.lost = self.lost or not isinstance(explained, ConnectionRefusedByServer)
            check_interruption(self.where)
            raise explained from error
        finally:
            self._is_running = False

    def _cancel(self) -> None:
        """Cancels the running query in another thread, because canceling opens a connection.

        Queries that start later are not canceled, because some of them clean up.
        """
        if self._is_running:
            threading.Thread(target=self._cancel_query, name="cancel", daemon=True).start()

    def _cancel_query(self) -> None:
        for call in _CANCEL:
            with suppress(Py4JError, OSError):
                getattr(self.java, call)()
                return
        self._ignore_errors(lambda: self._statement.cancel())

    def _take_over(self, other: Connection) -> None:
        self.java, self.lost = other.java, other.lost
        self.__dict__.pop("_statement", None)
        if self._in_transaction:
            self.begin()

    @staticmethod
    def _ignore_errors(call: Any) -> None:
        # The call fails if the database closed the connection or if the JVM exited.
        with suppress(Py4JError, OSError):
            call()


_MAX_IDLE_SECONDS = 30
"""The maximum idle time of a connection. Firewalls silently drop connections that idle longer.

A connection that a server or pooler closes earlier is replaced (``Connection.reopen``).
"""


class ConnectionPool:
    """A pool of idle connections whose sessions have the same settings.

    Args:
        opened: opens a connection, given the source or table that error messages are to name.
    """

    def __init__(self, opened: Callable[[str], AbstractContextManager[Connection]]) -> None:
        self._opened = opened
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, ExitStack, float]] = []
        self._closed = False

    @contextmanager
    def lend(self, where: str) -> Iterator[Connection]:
        """Yields a connection. Closes the connection if the block raises an error."""
        connection, opened = self._take_idle(where)
        with opened:
            yield connection
            self.keep(connection, opened.pop_all())

    @property
    def closes_each(self) -> bool:
        """Whether each connection is closed after use."""
        return self._closed

    def keep(self, connection: Connection, opened: ExitStack) -> None:
        """Adds a connection to the pool if it can be reused, and otherwise closes it.

        Args:
            opened: closes the connection.
        """
        with self._lock:
            if not self._closed and not connection.lost:
                self._idle.append((connection, opened, time.monotonic()))
                return
        opened.close()

    def close_surplus(self, keep: int = 1) -> None:
        """Closes idle connections, except the `keep` most recently used ones."""
        with self._lock:
            idle, self._idle = self._idle[:-keep], self._idle[-keep:]
        for _, opened, _ in idle:
            opened.close()

    def _take_idle(self, where: str) -> tuple[Connection, ExitStack]:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection, opened, since = self._idle.pop()
            if time.monotonic() - since < _MAX_IDLE_SECONDS:
                connection.where = where
                connection.reopen = partial(self._reopen, opened, where)
                return connection, opened
            opened.close()
        opened = ExitStack()
        return opened.enter_context(self._opened(where)), opened

    def _reopen(self, opened: ExitStack, where: str) -> Connection:
        """Closes a connection and opens a new one, which `opened` will close."""
        opened.close()
        return opened.enter_context(self._opened(where))

    def close(self) -> None:
        """Closes the pool and its idle connections. Connections in use are closed after use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, opened, _ in idle:
            opened.close()
