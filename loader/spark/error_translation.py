"""Translates exceptions from Spark, JDBC drivers and the system into errors with remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from filelock import Timeout
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from loader.corruption import detect_damage
from loader.errors import JavaEndedError, LoaderError, LockedError, TableError
from loader.spark.interruption import interruption_error
from loader.spark.jars import DRIVERS, driver_for_url
from loader.spark.jvm_exit import explain_java_end
from loader.spark.missing_jars import find_missing_jar
from loader.spec.redaction import excerpt

BROKEN_LINE = (
    "A line does not have the table's columns: the file is incomplete (run again), belongs to "
    "another table, or is corrupt. With the reader option mode: PERMISSIVE, missing values become "
    "null"
)

UNKNOWN_BYTES = (
    "Set the reader's option encoding to the file's encoding (windows-1252, UTF-16), or write the "
    "file as UTF-8; in ISO-8859-1, every byte is a character"
)

_STOPPED = (
    "No row of this batch is visible; run again. If Spark was not stopped on purpose, it ran out "
    "of memory: raise spark.driver.memory in the profile's target, or lower the source's "
    "fetch_size. On a cluster, the master ends an application whose executors do not start: the "
    "executors' logs on the workers have the reason"
)

_STOPPED_TEXTS = ("context was shut down", "on a stopped sparkcontext")

NO_STORE = "the object store does not respond"
_STORE_SILENT = "Unable to execute HTTP request"  # AWS's SDK, after its retries

# A message from Spark's CSV parser, with the number of lines before the error.
_TOO_LONG = re.compile(
    r"exceeds the maximum number of characters defined in your parser settings \((\d+)\)"
    r"(?s:.*?)Internal state when error was thrown: line=(\d+)"
)
_TOO_MANY = re.compile(r"univocity(?s:.*?)Index (\d+) out of bounds for length \1\b")
_FILE = re.compile(r"error while reading file (\S+)\. Details")
_SPARK_STOPPED_MESSAGE = "Spark was stopped while it worked on the table"
_OUT_OF_MEMORY_TEXTS = ("outofmemory", "java heap space", "gc overhead limit", "array size exceeds")

TOO_MANY = "Correct the file or the reader's option sep, or raise the reader's option maxColumns"

UNPACK = "Unpack it, and remove it from the folder"

TOO_LONG = (
    "Correct the file: the end of a line may be missing, or a quote may not be closed. Or raise "
    "line_limit in the source's spec and Spark's memory (spark.driver.memory in the profile's "
    "target)"
)

# Remedies, keyed by a part of the error message in lower case.
_REMEDIES = {
    "no space left": "Free disk space and run again: no partial batch is visible",
    "read-only file system": "Mount it as writable for the user that runs the loader, or use "
    "another folder; no partial batch is visible",
    "cancelled": "No row of this batch is visible; run again",
    "context was shut down": _STOPPED,
    "outofmemory": "Give Spark more memory (spark.driver.memory in the profile's target)",
    "java heap space": "Give Spark more memory (spark.driver.memory in the profile's target)",
    "exceeds max precision": "Read it through a view in the source that casts the column: Spark's "
    "numbers have 38 digits, 18 of them after the point if the source declares no precision",
    "malformed csv record": BROKEN_LINE,
    "malformed records are detected": BROKEN_LINE,
    "unexpected end-of-input": BROKEN_LINE,
    "is an archive, which spark cannot read": UNPACK,
    "contains bytes that are not ": UNKNOWN_BYTES,
    "a quote is still open where a line ends": "If values span several lines, set the reader's "
    "option multiLine: 'true'; with multiLine: 'false' each line is a row, and with quote: '' "
    "quotes are literal characters; otherwise correct the file",
    "a quote follows a backslash": "If backslashes escape quotes, as Spark and MySQL write "
    "them, set the reader's option escape: '\\'; with escape: '\"' backslashes are literal "
    "characters",
    "a key differs from a column only in case": "Use the same case in all files and in "
    "`column_types`: in JSON `id` and `ID` are two names, but names in the lake ignore case",
    "a json key is an empty string": "Spark would ignore the value: name the key, or declare all "
    "columns to read in the table's `column_types`",
    "text follows a json value": "Write each value on a separate line: Spark would "
    "read only the first one",
    "contains a timestamp with sub-microsecond precision": "Write it in microseconds (pyarrow: "
    "coerce_timestamps='us'), or set spark.sql.legacy.parquet.nanosAsLong: 'true' in the profile's "
    "target: the column is then a whole number of nanoseconds",
    "parquet column cannot be converted": "Declare the file's type in `column_types`, or remove "
    "`column_types` to read each file with its own types",
    "illegal parquet type: int64 (timestamp(nanos": "Remove the column from the table's "
    "`column_types`: by default, nanoseconds are read as microseconds",
    "relative path in absolute uri": "A file has a colon in its name, and Spark cannot read it: "
    "rename it",
    "unexpected end of input stream": "A file is truncated, or is not compressed although its name "
    "has the extension of a compressed file: rewrite or rename it",
    "cannot convert json root field": "Each line must be a JSON object or an array of objects",
    "header does not conform": "A file's header changed while it was read: run again",
    "unknown catalog type": "Set spark.sql.catalog.<name>.type in the profile's target "
    "(STRANDLINE_CATALOG_TYPE) to rest, jdbc, hive, glue, nessie or hadoop",
    "(service: s3, status code: 5": "The object store failed: check its log and its disk, and run "
    "again; no partial batch is visible",
    "permission denied": "Grant the loader's user write access there",
    "mkdirs failed to create": "Grant the loader's user write access there, or use another "
    "warehouse",
}


def translate_error(error: BaseException, where: str) -> LoaderError:
    """Translates an exception into an error for the user. Returns loader errors unchanged.

    If Spark's JVM has exited, `error` is only a consequence of this, and the result reports the
    exit.
    """
    if isinstance(error, JavaEndedError):
        return JavaEndedError(error.what, where=where or error.where, remedy=error.remedy)
    ended = explain_java_end(error, where)
    if ended is not None:
        return ended
    if isinstance(error, LoaderError):
        return error
    if isinstance(error, Timeout):
        return LockedError(
            "another run holds the lock",
            where=where,
            remedy="Run again when it has finished",
        )
    if isinstance(error, (PySparkException, Py4JError)):
        text = _full_text(error)
        lacking = find_missing_jar(text)
        if lacking is not None:
            return TableError(lacking[0], where=where, remedy=lacking[1])
        if _STORE_SILENT in text:
            return TableError(
                f"{NO_STORE}: {_first_informative_line(text)}",
                where=where,
                remedy="Check that this machine and the executors can reach it "
                "(STRANDLINE_S3_ENDPOINT), and run again. Nothing was lost or duplicated",
            )
        broken = detect_damage(text, where)
        if broken is not None:
            return broken
    if isinstance(error, Py4JJavaError):
        translated = translate_jdbc_error(error, where)
        if any(text in translated.what.lower() for text in _STOPPED_TEXTS):
            return TableError(_SPARK_STOPPED_MESSAGE, where=where, remedy=_STOPPED)
        length = find_long_line(str(error))
        if length is not None:
            limit, line = length
            file = _FILE.search(str(error))
            near = f"near line {line:,} of {file[1] if file else 'a file'}"
            text = f"a value {near} has more than {limit:,} characters"
            return TableError(text, where=where, remedy=TOO_LONG)
        columns = _TOO_MANY.search(str(error))
        if columns is not None:
            text = f"a line has more than {int(columns[1]):,} columns"
            return TableError(text, where=where, remedy=TOO_MANY)
        if re.search(r"\b(?:job|stage) \d+ (?:was )?cancelled", translated.what, re.IGNORECASE):
            # Spark's message contains only a job number.
            return interruption_error(where)
        kind = type(translated) if isinstance(translated, ConnectionLostError) else TableError
        return kind(
            _first_informative_line(translated.what),
            where=where,
            remedy=_remedy(translated.what, translated.remedy),
        )
    if isinstance(error, (PySparkException, Py4JError, OSError)):
        text = _first_informative_line(_error_text(error))
        return TableError(text, where=where, remedy=_remedy(str(error), ""))
    if isinstance(error, RecursionError):
        return TableError(
            "a value is nested too deeply to be read",
            where=where,
            remedy="Declare its column as a string (`column_types`), or nest it less deeply",
        )
    return TableError(
        f"{type(error).__name__}: {_first_informative_line(str(error))}",
        where=where,
        remedy="This is a bug: run again with --debug, and report the stack trace",
    )


def find_long_line(text: str) -> tuple[int, int] | None:
    """Returns the limit and the line number in the CSV parser's error about a value's length."""
    match = _TOO_LONG.search(text)
    return None if match is None else (int(match[1]), int(match[2]) + 1)


def may_precede_java_end(error: LoaderError) -> bool:
    """Returns whether an error can be an early symptom of the JVM's exit.

    If a task runs out of memory, Spark first reports an error, then stops, and then the JVM exits.
    """
    text = error.what.lower()
    lacks_memory = any(sign in text for sign in _OUT_OF_MEMORY_TEXTS)
    return isinstance(error, JavaEndedError) or error.what == _SPARK_STOPPED_MESSAGE or lacks_memory


def _full_text(error: PySparkException | Py4JError) -> str:
    origin = getattr(error, "_origin", None)
    return f"{error}\n{getattr(error, 'stackTrace', '') or ''}\n{origin or ''}"


def _error_text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _first_informative_line(text: str) -> str:
    """Returns the first informative line, without Java's class names, plans and stack traces."""
    caused = re.findall(r"Caused by: (?:[\w.$]+: )?([^\n]+)", text)
    line = caused[-1] if caused else (text.strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line)
    line = re.sub(r"^\[[A-Z_.]+\] ", "", line)
    line = re.sub(r"\s*SQLSTATE: \w{5}\.?$", "", line.strip())  # Spark 4 adds this suffix
    # Removes the position, which refers to DDL that the loader wrote.
    line = re.sub(r"\(line \d+, pos \d+\)$", "", line)
    return excerpt(line.strip().rstrip("."), 500)


def _remedy(text: str, remedy: str) -> str:
    lowered = text.lower()
    return next((text for part, text in _REMEDIES.items() if part in lowered), remedy)


class DatabaseError(TableError):
    """An error that a database reported, with the database's message and a remedy.

    Attributes:
        state: the SQLSTATE; empty if there is none.
    """

    state: str = ""

    @property
    def is_locked_out(self) -> bool:
        """Whether another session's lock blocked this session until lock_timeout expired."""
        return self.state == "55P03"

    @property
    def is_denied(self) -> bool:
        return self.state == "42501" or "denied" in self.what.lower()


class ConnectionLostError(DatabaseError):
    """The database or the network closed an open connection."""


class CatalogLostError(ConnectionLostError):
    """The lake's catalog server cannot be reached."""


class ConnectionRefusedByServer(DatabaseError):
    """A database error that leaves the connection usable, such as a rejected statement."""


def translate_jdbc_error(
    error: Py4JJavaError, where: str, url: str = "", answered: bool = False
) -> DatabaseError:
    """Translates a JDBC driver's exception. The remedy depends on the SQLSTATE.

    Args:
        url: the database's URL if connecting failed; else empty.
        answered: whether the connection is still open. The result is then a
            :class:`ConnectionRefusedByServer`, unless the SQLSTATE is that of a closed connection.
    """
    throwable = error.java_exception
    cause = find_root_cause(throwable)
    message = _clean_message(excerpt(cause.getMessage() or cause.toString(), _LONGEST))
    host = _unknown_host(throwable)
    if host is not None:
        message = f"the host {host!r} does not exist"
    elif _driver_missing(cause, message, url):
        detail = f" ({message})" if "no suitable driver" not in message.lower() else ""
        message = f"there is no JDBC driver for {protocol(url) or 'this url'}{detail}"
        if _is_catalog_error(throwable):
            message = f"the catalog's database: {message}"
            return DatabaseError(message, where=where, remedy=_CATALOG_DRIVER_REMEDY)
        return DatabaseError(message, where=where, remedy=_driver_remedy(url))
    if _is_rest_catalog_lost(throwable):
        return CatalogLostError(
            f"the catalog cannot be reached: {message}",
            where=where,
            remedy="Check that the catalog's server is up, and spark.sql.catalog.<name>.uri in the "
            "profile's target",
        )
    state = _state(cause)
    lost = re.search(_LOST_SNAPSHOT, message)
    message = "the session with the run's snapshot has ended" if lost else message
    if "no password was provided" in message:
        message = "the server requires a password, but none is set"
    wide = "maxResultBuffer" in message
    message = _WIDE_ROWS if wide else _SQLSTATE_MEANINGS.get(state, message)
    remedy = (
        _CONNECTION_LOST_TEXTS
        if lost
        else _OUT_OF_MEMORY_REMEDY
        if wide
        else _find_remedy(state, message, host)
    )
    is_catalog = _is_catalog_error(throwable)
    if is_catalog:
        message, remedy = f"the catalog's database: {message}", _catalog_remedy(remedy)
    is_closed = bool(lost) or state.startswith(_CONNECTION_LOST_SQLSTATES)
    kind = DatabaseError
    if answered and not is_closed:
        kind = ConnectionRefusedByServer
    elif is_closed and not url:
        kind = CatalogLostError if is_catalog else ConnectionLostError
    translated = kind(message, where=where, remedy=remedy)
    translated.state = state
    return translated


def protocol(url: str) -> str:
    """Returns the prefix of a JDBC URL, such as ``jdbc:postgresql``."""
    return ":".join(url.split(":")[:2]) if url.lower().startswith("jdbc:") else ""


def find_root_cause(throwable: Any) -> Any:
    """Returns the innermost SQLException; if there is none, the innermost cause."""
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


def _clean_message(message: str) -> str:
    text = " ".join(message.split())
    text = re.sub(r"^(?:\(conn=\d+\) |(?:FATAL|ERROR|PANIC): )+", "", text)
    text = re.sub(r" Current charset is [^.]*\..*$", "", text)
    text = re.sub(r" Where: .*$", "", text)  # the stack trace of the database
    text = re.sub(r" Hint: No (?:function|operator) matches .*$", "", text)
    return re.sub(r" Position: \d+$", "", text).rstrip(". ")


def _unknown_host(throwable: Any) -> str | None:
    for cause in _causes(throwable):
        if cause.getClass().getSimpleName() == "UnknownHostException":
            return str(cause.getMessage()).partition(":")[0].strip()
    return None


def _is_catalog_error(throwable: Any) -> bool:
    """Returns whether Iceberg's JDBC catalog raised the error."""
    return any(
        cause.getClass().getName().startswith("org.apache.iceberg.jdbc.")
        for cause in (throwable, *_causes(throwable))
    )


def _is_rest_catalog_lost(throwable: Any) -> bool:
    """Returns whether the server of a REST catalog cannot be reached or is not ready."""
    names = [each.getClass().getName() for each in (throwable, *_causes(throwable))]
    is_rest = "org.apache.iceberg.exceptions.RESTException" in names
    is_lost = any(name.startswith(_NETWORK_ERRORS) for name in names)
    return (is_rest and is_lost) or _UNAVAILABLE in names


def _catalog_remedy(remedy: str) -> str:
    """Converts a remedy for a source's database into one for the catalog's database."""
    if remedy in (_ERRORS_BY_SQLSTATE["28"], _NO_PASSWORD):
        return _CATALOG_PASSWORD
    if remedy == _ERRORS_BY_SQLSTATE["42501"]:
        return "Allow the catalog's user to create, read and write its tables"
    if "source's url" in remedy or "database's name" in remedy:
        return "Check the catalog's host, port and database in the profile's target" + _CATALOG
    return remedy if "source" not in remedy else ""


def _state(cause: Any) -> str:
    try:
        return str(cause.getSQLState() or "")
    except Py4JError:  # only an SQLException has this method
        return ""


def _driver_missing(cause: Any, message: str, url: str) -> bool:
    name = cause.getClass().getSimpleName()
    return (
        bool(url) and name == "ClassNotFoundException"
    ) or "no suitable driver" in message.lower()


def _driver_remedy(url: str) -> str:
    known = driver_for_url(protocol(url))
    if known is not None:
        return f"Run `loader setup {known.name}`"
    return (
        "Put the driver's jar into the `jars` folder of PySpark (or add it to `spark.jars` in "
        "the profile's target), and set the source's `driver` to its class; `loader setup` "
        f"provides {', '.join(DRIVERS)}"
    )


_NETWORK_ERRORS = ("java.net.", "java.io.", "org.apache.iceberg.shaded.org.apache.hc.")
_UNAVAILABLE = "org.apache.iceberg.exceptions.ServiceUnavailableException"  # HTTP status 503
_CATALOG_DRIVER_REMEDY = (
    "Check the beginning of spark.sql.catalog.<name>.uri in the profile's target "
    "(STRANDLINE_CATALOG_URI), such as jdbc:postgresql://, and run `loader setup` with the name of "
    f"the database: {', '.join(DRIVERS)}"
)
_CATALOG = ": spark.sql.catalog.<name>.uri"
_CATALOG_PASSWORD = (
    "Check the catalog's user and password: in the profile's target, "
    "spark.sql.catalog.<name>.jdbc.user (STRANDLINE_CATALOG_USER) and .jdbc.password; or, for "
    "PostgreSQL, the file that PGPASSFILE names, with host, port and database as in "
    "spark.sql.catalog.<name>.uri"
)
_NO_PASSWORD = "Export the variable in the source's `password`, such as ${PGPASSWORD}"
_LOST_SNAPSHOT = r"snapshot \".*\" does not exist|invalid snapshot identifier"
_CONNECTION_LOST_TEXTS = (
    "No row of this batch is visible; run again. If it happens again, check in the database's "
    "log whether a pooler, an administrator or a restart ended the session"
)

_WIDE_ROWS = "the rows of one fetch need more of Java's memory than a read may take"
_OUT_OF_MEMORY_REMEDY = (
    "Set `fetch_size: 10` in the source's spec to fetch fewer rows at a time. If a single row is "
    "too large, give Spark more memory (spark.driver.memory in the profile's target)"
)

_LONGEST = 2000
"""The maximum length of the database message that an error quotes."""

OVERDUE = "Check whether the database is overloaded or the network drops packets, and run again"

_CONNECTION_LOST_SQLSTATES = ("080", "08S", "57P01", "57P02", "57P03")
"""SQLSTATEs of closed connections, whose connection objects some drivers leave open."""

# Messages that replace unclear messages from databases, keyed by SQLSTATE.
_SQLSTATE_MEANINGS = {
    "55P03": "another session has or awaits a lock that blocks readers "
    "(ALTER, TRUNCATE, VACUUM FULL, CLUSTER), and lock_timeout has expired",
}

# Remedies, keyed by a prefix of the SQLSTATE. Longer prefixes come first.
_ERRORS_BY_SQLSTATE = {
    "70100": "The query was cancelled in the database: no row of this batch is visible; run again",
    "22P02": "If the cursor's type was changed, the stored cursor has the old type: "
    "`loader state set`, or `loader run --full-refresh`",
    "28": "Check user and password of the source",
    "3D000": "Check the database's name in the source's url",
    "XJ004": "Check the database's name in the source's url",
    "42P01": "`loader discover` lists the tables that exist",
    "42S02": "`loader discover` lists the tables that exist",
    "42X05": "`loader discover` lists the tables that exist",
    "42703": "`loader discover --columns` lists the table's columns",
    "42S22": "`loader discover --columns` lists the table's columns",
    "42X04": "`loader discover --columns` lists the table's columns",
    "42883": "Choose a cursor_field of a type that the database can order",
    "42501": "Grant the source's user SELECT on the table (grants on columns are not enough), "
    "or on a view of some columns",
    "42P05": "A pooler shares sessions: set prepareThreshold: 0 in the source's properties",
    "26000": "A pooler shares sessions: set prepareThreshold: 0 in the source's properties",
    "53200": "Raise the server's max_locks_per_transaction, or select fewer tables in one run",
    "53300": "Lower num_partitions or --concurrency, or raise the database's connection limit",
    "55P03": "Run again when the session has ended (see pg_stat_activity), or raise the source's "
    "lock_timeout",
    "57014": "Raise statement_timeout for the source's user; no row of this batch is visible",
    "57": "The database ended the connection: no row of this batch is visible; run again",
    "08": "Check that the database is up and that the source's url names its host and port",
}


def _find_remedy(state: str, message: str, host: str | None) -> str:
    text = message.lower()
    if host is not None:
        return "Check the host in the source's url"
    if "access denied for user" in text and "to database" in text:
        return _ERRORS_BY_SQLSTATE["42501"]
    if "requires a password" in text:
        return _NO_PASSWORD
    if "access denied" in text or "authentication failed" in text:
        return _ERRORS_BY_SQLSTATE["28"]
    if "unknown database" in text:
        return _ERRORS_BY_SQLSTATE["3D000"]
    if "permission denied" in text or "command denied" in text:
        return _ERRORS_BY_SQLSTATE["42501"]
    if "lock wait timeout" in text:
        return "Run again when the other session has finished, or raise the source's lock_timeout"
    if "max_statement_time" in text or "maximum statement execution time" in text:
        return "Raise the limit for the source's user; no row of this batch is visible"
    if "invalid byte sequence" in text:
        return "Correct the value in the source, or read the table through a view that converts it"
    if "refused" in text:
        return _ERRORS_BY_SQLSTATE["08"]
    return next(
        (remedy for start, remedy in _ERRORS_BY_SQLSTATE.items() if state.startswith(start)), ""
    )
