"""A JDBC connection held by the driver, through Spark's own JVM.

Spark's reader opens its own connections on the executors; this one asks what must be known
before: keys, bounds, clocks, and the snapshot that the readers share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from loader.errors import TableError
from loader.runtime.drivers import DRIVERS


class DatabaseError(TableError):
    """The database said no; the text is its own, with what to do.

    Attributes:
        state: its SQLSTATE; empty where it gave none.
    """

    state: str = ""


class Connection:
    """One JDBC connection; every statement's result is small and read as text."""

    def __init__(self, spark: SparkSession, java: Any, where: str) -> None:
        self.java = java
        self.where = where
        self._jvm: Any = spark._jvm

    @classmethod
    @contextmanager
    def open(
        cls, spark: SparkSession, options: Mapping[str, str], where: str
    ) -> Iterator[Connection]:
        """Connects as Spark's reader would: same driver, same properties.

        Args:
            options: Spark's JDBC options (`url`, `driver`, `user`, `password`, properties).
            where: the source, for messages.

        Raises:
            DatabaseError: where the database is down, refuses the password, or no driver is there.
        """
        jvm: Any = spark._jvm
        java_map = jvm.java.util.HashMap()
        for key, value in {**options, "dbtable": "unused"}.items():
            java_map.put(key, value)
        try:
            scala_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java_map)
            jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(scala_map)
            dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
            java = dialect.createConnectionFactory(jdbc).apply(-1)
        except Py4JJavaError as error:
            raise explain(error, where, options["url"]) from error
        connection = cls(spark, java, where)
        try:
            yield connection
        finally:
            connection._quietly(lambda: java.rollback() if not java.getAutoCommit() else None)
            connection._quietly(java.close)

    @property
    def product(self) -> str:
        """The database's name and version, as it says itself."""
        meta = self.java.getMetaData()
        return f"{meta.getDatabaseProductName()} {meta.getDatabaseProductVersion()}"

    def execute(self, sql: str) -> None:
        """Runs a statement without a result."""
        with self._explained(), self._statement() as statement:
            statement.execute(sql)

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Runs a query and returns its rows as text, instants and wall clocks with all digits.

        Timestamps come as ``2025-01-01 00:00:00.123456789``; instants in the JVM's zone, which
        the loader sets to UTC.
        """
        with self._explained(), self._statement() as statement:
            return list(self._fetch(statement.executeQuery(sql)))

    def metadata(self, call: str, *arguments: Any) -> list[dict[str, str | None]]:
        """A result of ``java.sql.DatabaseMetaData``, one dict a row, labels in upper case."""
        with self._explained():
            result = getattr(self.java.getMetaData(), call)(*arguments)
            meta = result.getMetaData()
            labels = [meta.getColumnLabel(i).upper() for i in range(1, meta.getColumnCount() + 1)]
            found = []
            while result.next():
                found.append({label: result.getString(i + 1) for i, label in enumerate(labels)})
            result.close()
            return found

    def array(self, *texts: str) -> Any:
        """A Java ``String[]``."""
        gateway = self.java._gateway_client  # kept by py4j on every Java object
        from py4j.java_gateway import JavaClass

        array = JavaClass("java.lang.reflect.Array", gateway).newInstance(
            JavaClass("java.lang.Class", gateway).forName("java.lang.String"), len(texts)
        )
        for index, text in enumerate(texts):
            array[index] = text
        return array

    def _fetch(self, result: Any) -> Iterator[tuple[str | None, ...]]:
        types = self._jvm.java.sql.Types
        times = {types.TIMESTAMP, types.TIMESTAMP_WITH_TIMEZONE}
        meta = result.getMetaData()
        columns = range(1, meta.getColumnCount() + 1)
        is_time = {i: meta.getColumnType(i) in times for i in columns}
        while result.next():
            row: list[str | None] = []
            for i in columns:
                value = result.getTimestamp(i) if is_time[i] else result.getString(i)
                row.append(value.toString() if is_time[i] and value is not None else value)
            yield tuple(row)

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        statement = self.java.createStatement()
        try:
            yield statement
        finally:
            self._quietly(statement.close)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise explain(error, self.where) from error

    @staticmethod
    def _quietly(call: Any) -> None:
        # A connection that the database already dropped cannot be closed, and need not be.
        with suppress(Py4JJavaError):
            call()


def explain(error: Py4JJavaError, where: str, url: str = "") -> DatabaseError:
    """One clear error out of a JDBC driver's exception, with the remedy its SQLSTATE suggests.

    Args:
        url: of the database, where it was being connected to.
    """
    throwable = error.java_exception
    cause = root_cause(throwable)
    message = _plain(cause.getMessage() or cause.toString())
    host = _unknown_host(throwable)
    if host is not None:
        message = f"there is no host {host!r}"
    elif _driver_missing(cause, message, url):
        found = f" ({message})" if "no suitable driver" not in message.lower() else ""
        message = f"there is no JDBC driver for {protocol(url) or 'this url'}{found}"
        return DatabaseError(message, where=where, remedy=_driver_remedy(url))
    state = _state(cause)
    lost = re.search(_LOST_SNAPSHOT, message)
    message = "the session that held the run's snapshot is gone" if lost else message
    message = _MEANINGS.get(state, message)
    remedy = _LOST if lost else _remedy(state, message, host)
    told = DatabaseError(message, where=where, remedy=remedy)
    told.state = state
    return told


def protocol(url: str) -> str:
    """What kind of database a URL is for: ``jdbc:postgresql``."""
    return ":".join(url.split(":")[:2]) if url.lower().startswith("jdbc:") else ""


def root_cause(throwable: Any) -> Any:
    """The exception that says most: the deepest SQLException, else the deepest cause."""
    best = throwable
    for cause in _causes(throwable):
        if (
            "SQL" in cause.getClass().getSimpleName()
            or "SQL" not in best.getClass().getSimpleName()
        ):
            best = cause
    return best


def _causes(throwable: Any) -> Iterator[Any]:
    for _ in range(20):
        throwable = throwable.getCause()
        if throwable is None:
            return
        yield throwable


def _plain(message: str) -> str:
    """A driver's message in one line, without what helps nobody who reads it."""
    text = " ".join(message.split())
    text = re.sub(r"^(?:\(conn=\d+\) |(?:FATAL|ERROR|PANIC): )+", "", text)
    text = re.sub(r" Current charset is [^.]*\..*$", "", text)
    text = re.sub(r" Where: .*$", "", text)  # the database's own stack trace
    text = re.sub(r" Hint: No (?:function|operator) matches .*$", "", text)
    return re.sub(r" Position: \d+$", "", text).rstrip(". ")


def _unknown_host(throwable: Any) -> str | None:
    for cause in _causes(throwable):
        if cause.getClass().getSimpleName() == "UnknownHostException":
            return str(cause.getMessage()).partition(":")[0].strip()
    return None


def _state(cause: Any) -> str:
    try:
        return str(cause.getSQLState() or "")
    except Py4JError:  # not an SQLException: it has no such method
        return ""


def _driver_missing(cause: Any, message: str, url: str) -> bool:
    name = cause.getClass().getSimpleName()
    return (
        bool(url) and name == "ClassNotFoundException"
    ) or "no suitable driver" in message.lower()


def _driver_remedy(url: str) -> str:
    scheme = protocol(url).removeprefix("jdbc:").lower()
    known = next((d.name for d in DRIVERS.values() if scheme in d.protocols), None)
    if known is not None:
        return f"Run `loader setup {known}`"
    return (
        "Put the driver's jar into the `jars` folder of PySpark (or name it in `spark.jars` of "
        "the profile's target) and its class into the source's `driver`; `loader setup` has "
        f"{', '.join(DRIVERS)}"
    )


_LOST_SNAPSHOT = r"snapshot \".*\" does not exist|invalid snapshot identifier"
_LOST = (
    "Nothing of this batch is visible; run again. If it happens again, look into the database's "
    "log for what ended the session: a pooler, an administrator, a restart"
)

# What a SQLSTATE means here, where the database's own words do not say it.
_MEANINGS = {
    "55P03": "another session holds or awaits a lock that keeps readers out "
    "(ALTER, TRUNCATE, VACUUM FULL, CLUSTER), and lock_timeout is over",
}

# By the first characters of the SQLSTATE, longest first where they overlap.
_REMEDIES = {
    "28": "Check user and password of the source",
    "3D000": "Check the database's name in the source's url",
    "XJ004": "Check the database's name in the source's url",
    "42P01": "`loader discover` lists the tables that are there",
    "42S02": "`loader discover` lists the tables that are there",
    "42X05": "`loader discover` lists the tables that are there",
    "42703": "`loader discover --columns` lists the table's columns",
    "42S22": "`loader discover --columns` lists the table's columns",
    "42X04": "`loader discover --columns` lists the table's columns",
    "42883": "Choose a cursor_field of a type that the database can order",
    "42501": "Grant the source's user SELECT on it",
    "53200": "Raise the server's max_locks_per_transaction, or select fewer tables for a run",
    "53300": "Lower num_partitions or --concurrency, or let the database take more connections",
    "55P03": "Run again when it is done (pg_stat_activity shows it), or raise the source's "
    "lock_timeout",
    "57014": "Raise statement_timeout for the source's user; nothing of this batch is visible",
    "57": "The database ended the connection: nothing of this batch is visible; run again",
    "08": "Check that the database is up and that the source's url names its host and port",
}


def _remedy(state: str, message: str, host: str | None) -> str:
    text = message.lower()
    if host is not None:
        return "Check the host in the source's url"
    if "access denied for user" in text and "to database" in text:
        return _REMEDIES["42501"]
    if "access denied" in text or "authentication failed" in text:
        return _REMEDIES["28"]
    if "unknown database" in text:
        return _REMEDIES["3D000"]
    if "permission denied" in text or "command denied" in text:
        return _REMEDIES["42501"]
    if "refused" in text:
        return _REMEDIES["08"]
    return next((remedy for start, remedy in _REMEDIES.items() if state.startswith(start)), "")
