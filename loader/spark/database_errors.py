"""Turns a database driver's exception into one clear error, by its SQLSTATE or its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from loader.errors import TableError
from loader.spark.jars import DRIVERS, driver_for_url
from loader.spec.redaction import excerpt


class DatabaseError(TableError):
    """Reports a refusal by the database: its own text, plus a remedy.

    Attributes:
        state: its SQLSTATE; empty if it gave none.
    """

    state: str = ""

    @property
    def is_locked_out(self) -> bool:
        """Whether another session kept readers out until lock_timeout: the next one waits, too."""
        return self.state == "55P03"

    @property
    def is_denied(self) -> bool:
        """Whether the account lacks a privilege."""
        return self.state == "42501" or "denied" in self.what.lower()


class ConnectionRefusedByServer(DatabaseError):
    """Reports a refusal on a connection that is still usable for other queries."""


def explain(
    error: Py4JJavaError, where: str, url: str = "", answered: bool = False
) -> DatabaseError:
    """Turns a JDBC driver's exception into one clear error, with the remedy for its SQLSTATE.

    Args:
        url: the database's, if the error is from connecting to it.
        answered: whether the driver has not closed the connection; the error is then a
            :class:`ConnectionRefusedByServer`, unless its SQLSTATE says otherwise.
    """
    throwable = error.java_exception
    cause = root_cause(throwable)
    message = _plain(excerpt(cause.getMessage() or cause.toString(), _LONGEST))
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
    if "no password was provided" in message:
        message = "the server asks for a password, and none was given"
    wide = "maxResultBuffer" in message
    message = _WIDE_ROWS if wide else _MEANINGS.get(state, message)
    remedy = _LOST if lost else _FEWER_ROWS if wide else _remedy(state, message, host)
    if _of_catalog(throwable):
        message, remedy = f"the catalog's database: {message}", _catalog_remedy(remedy)
    kind = ConnectionRefusedByServer if answered and not state.startswith(_GONE) else DatabaseError
    told = kind(message, where=where, remedy=remedy)
    told.state = state
    return told


def protocol(url: str) -> str:
    """Returns the kind of database a URL is for: ``jdbc:postgresql``."""
    return ":".join(url.split(":")[:2]) if url.lower().startswith("jdbc:") else ""


def root_cause(throwable: Any) -> Any:
    """Returns the most telling exception: the deepest SQLException, else the deepest cause."""
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
    """Returns a driver's message in one line, without the parts that help no reader."""
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


def _of_catalog(throwable: Any) -> bool:
    """Whether Iceberg's JDBC catalog called the database, and not a read of a source."""
    return any(
        one.getClass().getName().startswith("org.apache.iceberg.jdbc.")
        for one in (throwable, *_causes(throwable))
    )


def _catalog_remedy(remedy: str) -> str:
    """Returns the remedy for the catalog's database; `remedy` is the one for a source's."""
    if remedy == _REMEDIES["28"]:
        return "Check the catalog's user and password in the profile's target" + _CATALOG
    if remedy == _REMEDIES["42501"]:
        return "Let the catalog's user create its tables, read them and write to them"
    if "source's url" in remedy or "database's name" in remedy:
        return "Check the catalog's host, port and database in the profile's target" + _CATALOG
    return remedy if "source" not in remedy else ""


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
    known = driver_for_url(protocol(url))
    if known is not None:
        return f"Run `loader setup {known.name}`"
    return (
        "Put the driver's jar into the `jars` folder of PySpark (or name it in `spark.jars` of "
        "the profile's target) and its class into the source's `driver`; `loader setup` has "
        f"{', '.join(DRIVERS)}"
    )


_CATALOG = ": spark.sql.catalog.<name>.uri, .jdbc.user and .jdbc.password"
_LOST_SNAPSHOT = r"snapshot \".*\" does not exist|invalid snapshot identifier"
_LOST = (
    "Nothing of this batch is visible; run again. If it happens again, look in the database's "
    "log for what ended the session: a pooler, an administrator, a restart"
)

_WIDE_ROWS = "the rows of one fetch need more of Java's memory than a read may take"
_FEWER_ROWS = (
    "Set `fetch_size: 10` in the source's spec: fewer rows at a time. If one row alone is too "
    "much, give Spark more memory (spark.driver.memory in the profile's target)"
)

_LONGEST = 2000
"""The most characters of a database's message that are shown."""

OVERDUE = (
    "Look whether the database is overloaded, or something between it and the loader is silent; "
    "then run again"
)

_GONE = ("080", "08S", "57P01", "57P02", "57P03")
"""SQLSTATEs of connections that are gone, for drivers that do not close them."""

# The meaning of a SQLSTATE here, if the database's own text does not explain it.
_MEANINGS = {
    "55P03": "another session holds or awaits a lock that keeps readers out "
    "(ALTER, TRUNCATE, VACUUM FULL, CLUSTER), and lock_timeout has expired",
}

# By the first characters of the SQLSTATE, longest first if they overlap.
_REMEDIES = {
    "70100": "Somebody ended the query: nothing of this batch is visible; run again",
    "22P02": "If the cursor's type was changed, the stored cursor is no value of it any more: "
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
    "42501": "Grant the source's user SELECT on it, on all columns; or let it read a view of those "
    "that it may see",
    "42P05": "A pooler shares sessions: set prepareThreshold: 0 in the source's properties",
    "26000": "A pooler shares sessions: set prepareThreshold: 0 in the source's properties",
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
    if "asks for a password" in text:
        return "Export the variable that the source's `password` names, such as ${PGPASSWORD}"
    if "access denied" in text or "authentication failed" in text:
        return _REMEDIES["28"]
    if "unknown database" in text:
        return _REMEDIES["3D000"]
    if "permission denied" in text or "command denied" in text:
        return _REMEDIES["42501"]
    if "lock wait timeout" in text:
        return "Run again when the other session is done, or raise the source's lock_timeout"
    if "max_statement_time" in text or "maximum statement execution time" in text:
        return "Raise the limit for the source's user; nothing of this batch is visible"
    if "invalid byte sequence" in text:
        return "Correct the text in the source, or read the table through a view that converts it"
    if "refused" in text:
        return _REMEDIES["08"]
    return next((remedy for start, remedy in _REMEDIES.items() if state.startswith(start)), "")
