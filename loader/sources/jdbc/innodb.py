"""The open work of MariaDB and MySQL: running statements, and transactions that have written.

`now()` is the start of the statement; in a trigger or stored function, of the statement that called
it. So the order of reading matters: first the clock, then the process list, then InnoDB's
transactions, twice, then the rows.

- A statement that ran when the process list was read is in it, with its start.
- A statement that began later has a `now()` above the clock.
- A statement that had ended by then, but had not committed, has changed rows in a transaction that
  InnoDB shows both times. The many transactions that it shows only once were committed before the
  rows are read.

`information_schema.innodb_trx` is a copy that InnoDB renews only if it was not read for a tenth of
a second. To tell whether a copy is new, the loader begins a transaction of its own, the first on
its connection, after all earlier reads: a new copy shows it. Once it has ended, the next new copy
no longer does.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.open_transactions import OpenTransactions, TransactionWatcher, Writer
from loader.spark.database_errors import ConnectionRefusedByServer

_KEPT_SECONDS = 5.0
_RENEWED_SECONDS = 0.105
_READS, _TRIES = 4, 15
_SHOWN = frozenset({"aria", "archive", "csv", "innodb", "memory", "mrg_myisam", "myisam"})
_PAST = dt.datetime.min
_REPLICA = "a replica does not show the transactions that are open on its primary"


class InnodbTransactionWatcher(TransactionWatcher):
    """Reads the open work of a MariaDB or MySQL server, at most once every few seconds.

    Args:
        text: writes a string literal.
    """

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._reading = threading.Lock()
        self._read_at = -_KEPT_SECONDS
        self._seen: _OpenTransactions | None = None
        self._standing: str | None = None

    def read_activity(self, connection: Connection, catalog: str, table: str) -> OpenTransactions:
        with self._reading:
            if self._seen is None or time.monotonic() - self._read_at > _KEPT_SECONDS:
                self._read_at = time.monotonic()
                self._seen = self._look(connection)
            seen = self._seen
        if seen.blind:
            return OpenTransactions(_PAST, _PAST, blind=seen.blind)
        rows = connection.rows(
            "select engine from information_schema.tables "
            f"where table_schema = {self._text(catalog)} and table_name = {self._text(table)}"
        )
        engine = (rows[0][0] or "") if rows else ""
        if engine.lower() not in _SHOWN:
            why = f"the storage engine {engine or '?'} does not show open transactions"
            return OpenTransactions(_PAST, _PAST, blind=why)
        base = seen.writing if engine.lower() == "innodb" else seen.running
        return OpenTransactions(seen.clock, base, seen.writers)

    def _look(self, connection: Connection) -> _OpenTransactions:
        try:
            if self._standing is None:
                self._standing = _standing(connection)
            return _OpenTransactions(blind=self._standing) if self._standing else _look(connection)
        except ConnectionRefusedByServer as error:
            if "PROCESS" in str(error):
                return _OpenTransactions(
                    blind="this account cannot see open transactions (grant it PROCESS)"
                )
            return _OpenTransactions(blind="this server does not show open transactions")


@dataclass(frozen=True)
class _OpenTransactions:
    """The work that was open on the server.

    Attributes:
        running: when the oldest running statement began; the clock if none is running.
        writing: the same, for statements that may write to InnoDB.
    """

    clock: dt.datetime = _PAST
    running: dt.datetime = _PAST
    writing: dt.datetime = _PAST
    writers: tuple[Writer, ...] = ()
    blind: str = ""


def _standing(connection: Connection) -> str:
    """Returns why this server never shows the open work behind its rows; empty if it does."""
    settings = {
        (name or "").lower(): (value or "").upper()
        for name, value in connection.rows(
            "show global variables where variable_name in "
            "('innodb_read_only', 'read_only', 'wsrep_on')"
        )
    }
    if settings.pop("wsrep_on", "OFF") != "OFF":
        return "a Galera node does not show the transactions that are open on the others"
    read_only = set(settings.values()) - {"OFF"}
    return _REPLICA if read_only or _replicates(connection) else ""


def _replicates(connection: Connection) -> bool:
    """Returns whether the server is set up as a replica, as far as this account can see."""
    for statement in ("show all slaves status", "show replica status", "show slave status"):
        try:
            return bool(connection.rows(statement))
        except ConnectionRefusedByServer:  # not this server's syntax, or no privilege
            continue
    return False


def _look(connection: Connection) -> _OpenTransactions:
    [(clock_text, version)] = connection.rows("select cast(utc_timestamp(6) as char), version()")
    clock = _moment(clock_text)
    # MySQL reports a statement's age in whole seconds, from a start in whole seconds.
    age = "time_ms * 1000" if "mariadb" in (version or "").lower() else "(time + 2) * 1000000"
    statements = connection.rows(
        f"""
        select
            id,
            user = 'system user' and command <> 'Daemon',
            cast(utc_timestamp(6) - interval cast({age} as signed) microsecond as char)
        from information_schema.processlist
        where id <> connection_id()
            and user <> 'event_scheduler'
            and (command not in ('Sleep', 'Daemon') or user = 'system user')
            and command not like 'Binlog Dump%'
        """
    )
    if any(applies == "1" for _, applies, _ in statements):
        return _OpenTransactions(blind=_REPLICA)
    with closing(_Copies(connection)) as copies:
        readers, writers = copies.next()
        for _ in range(_READS - 1):
            if not writers:
                break
            _, again = copies.next()
            writers = {trx: writer for trx, writer in writers.items() if trx in again}
    if copies.stale:
        return _OpenTransactions(
            blind="information_schema.innodb_trx does not show what is open now"
        )
    began = [(session, _moment(at)) for session, _, at in statements if at is not None]
    return _OpenTransactions(
        clock,
        running=min([clock, *(at for _, at in began)]),
        writing=min([clock, *(at for session, at in began if session not in readers)]),
        writers=tuple(writers.values()),
    )


class _Copies:
    """Copies of InnoDB's transactions, each taken after the one before.

    Attributes:
        stale: no try gave a new copy: other readers keep InnoDB from renewing it.
    """

    def __init__(self, connection: Connection) -> None:
        self.stale = False
        self._connection = connection
        self._open = False

    def next(self) -> tuple[set[str], dict[str, Writer]]:
        """Returns the sessions that only read, and the transactions that have written, by id."""
        if self.stale:
            return set(), {}
        self._connection.execute(
            "rollback" if self._open else "start transaction with consistent snapshot"
        )
        self._open = not self._open
        for _ in range(_TRIES):
            rows = self._connection.rows(
                """
                select
                    trx_id,
                    trx_mysql_thread_id,
                    cast(trx_started as char),
                    trx_rows_modified > 0,
                    trx_is_read_only,
                    trx_mysql_thread_id = connection_id()
                from information_schema.innodb_trx
                where trx_rows_modified > 0
                    or trx_is_read_only = 1
                    or trx_mysql_thread_id = connection_id()
                """
            )
            if self._open == any(own == "1" for *_, own in rows):
                return (
                    {session or "" for _, session, _, _, reads, _ in rows if reads == "1"},
                    {
                        trx or "": Writer(_moment(started), session == "0")
                        for trx, session, started, wrote, _, _ in rows
                        if wrote == "1"
                    },
                )
            # A random time: two that read in step would keep each other from seeing a new copy.
            time.sleep(_RENEWED_SECONDS * random.uniform(1, 2))
        self.stale = True
        return set(), {}

    def close(self) -> None:
        """Ends our own transaction: otherwise later reads would see the database as of now."""
        if self._open:
            self._connection.execute("rollback")


def _moment(text: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(text or "")
