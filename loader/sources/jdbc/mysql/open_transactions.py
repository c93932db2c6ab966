"""Reads the open transactions and running statements of MariaDB and MySQL.

`now()` returns the time at which the statement started; in a trigger or stored function, the time
at which the calling statement started. If a transaction is open during a sync and commits later,
its rows may have cursors below the stored cursor, and the condition `cursor >= stored` would miss
them. Each sync therefore stores a lower bound for their times (`since`), at which the next window
starts. Rows that are read again are dropped. (In PostgreSQL, only late rows are read below the
cursor, because each row contains the id of the transaction that wrote it. See
:mod:`loader.sources.jdbc.postgresql.continuity`.)

The database reports when a transaction started. However, the transaction's first statement may have
started earlier and waited for a lock. Two facts limit the difference: a statement that was running
at the last sync was in the process list, and any other statement started after the last sync.

The order of reads is essential: first the clock, then the process list, then InnoDB's list of
transactions (several times), and finally the rows.

- If a statement is running while the process list is read, the list shows when it started.
- If a statement starts later, its `now()` is later than the clock.
- If a statement has ended but its transaction has not, the transaction is in every copy of InnoDB's
  list. All other transactions have ended before the rows are read.

`information_schema.innodb_trx` is a copy of InnoDB's list. InnoDB refreshes the copy only if nobody
has read it for a tenth of a second. To detect a new copy, the loader alternately starts and ends a
transaction on its connection. A copy is new if it shows the current state of this transaction.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connections import Connection
from loader.spark.error_translation import ConnectionRefusedByServer

_KEPT_SECONDS = 5.0
_RENEWED_SECONDS = 0.105
_READS, _TRIES = 4, 15
_SHOWN = frozenset({"aria", "archive", "csv", "innodb", "memory", "mrg_myisam", "myisam"})
_PAST = dt.datetime.min
_REPLICA = "a replica does not show the transactions that are open on its primary"
_ROUNDING = dt.timedelta(seconds=1)
_LONGEST_WAIT = dt.timedelta(days=1)  # MariaDB's default for lock_wait_timeout
_EVER = dt.datetime(1970, 1, 2)


@dataclass(frozen=True)
class Writer:
    """An open transaction that has changed rows.

    Attributes:
        started: the transaction's start time in UTC, in whole seconds.
        is_prepared: whether the transaction is prepared and has no session. If so, `started` may be
            the time at which the server started.
    """

    started: dt.datetime
    is_prepared: bool = False


@dataclass(frozen=True)
class OpenTransactions:
    """A database's open transactions, read before the rows of a table are read. Times are in UTC.

    Attributes:
        clock: the database's clock before the other attributes were read.
        base: the start of the oldest running statement that may write to the table; `clock` if no
            statement is running.
        writers: the transactions that changed rows before `clock` and may commit later.
        blind: why open transactions are hidden, as shown in messages; empty if they are visible.
        running: like `base`, but for statements that may write to any table.
    """

    clock: dt.datetime = _PAST
    base: dt.datetime = _PAST
    writers: tuple[Writer, ...] = ()
    blind: str = ""
    running: dt.datetime = _PAST

    def to_open_work(self, before: OpenWork | None, until: dt.datetime) -> OpenWork:
        """Returns the checkpoint for the next sync.

        Args:
            before: the last sync's checkpoint; None if there is none.
            until: the database's clock after the table's bounds were read.
        """
        opened: dict[str, dt.datetime] = {}
        for writer in self.writers:
            key = writer.started.isoformat(sep=" ")
            earliest = _find_first_statement(writer, key, before)
            opened[key] = min(earliest, opened.get(key, earliest))
        return OpenWork(self.clock, self.base, until, opened)


def _find_first_statement(writer: Writer, key: str, before: OpenWork | None) -> dt.datetime:
    if writer.is_prepared:
        return before.since if before else _EVER
    earliest = before.open.get(key) if before else None
    if before and earliest:
        return min(earliest, before.base)  # transactions may start in the same second
    if before and writer.started >= before.clock.replace(microsecond=0):
        return before.base  # the statement was running at the last sync or started later
    return writer.started - _LONGEST_WAIT


@dataclass(frozen=True)
class OpenWork:
    """The transactions that were open at a sync, as stored in the checkpoint. Times are in UTC.

    Attributes:
        clock, base: see :class:`OpenTransactions`.
        until: the database's clock just after the loader first read bounds that include the newest
            row. All rows within these bounds are older.
        open: the earliest possible start of each open transaction's first statement, keyed by the
            transaction's start time.
    """

    clock: dt.datetime
    base: dt.datetime
    until: dt.datetime
    open: Mapping[str, dt.datetime] = field(default_factory=dict)

    @property
    def since(self) -> dt.datetime:
        """A lower bound for the values of `now()` in rows that are committed after the sync."""
        return min([self.base, *self.open.values()])

    @property
    def expects_late_rows(self) -> bool:
        """Whether the next sync must search for late rows that are older than a second."""
        return self.since < self.clock - _ROUNDING

    def is_settled(self, now: OpenWork) -> bool:
        """Returns whether this checkpoint's transactions have ended, so `now` can replace it."""
        return self.expects_late_rows and now.since > self.clock

    def reach(
        self, newest: Cursor, wall_offset: int, slack: dt.timedelta = dt.timedelta()
    ) -> Cursor:
        """Returns a lower bound for the cursors of late rows, as a value of the cursor's type.

        If times have no time zone, an application may write them in a time zone other than the
        database's. The result is then the lower of two bounds: the latest time that the last sync
        read minus the maximum delay of a late row; and :attr:`since` in the database's current time
        zone, which is lower after daylight saving time ends.

        Args:
            newest: the last sync's cursor.
            wall_offset: the current UTC offset in seconds of the database's wall clock.
            slack: how far a time that an application computes may be below :attr:`since`.
        """
        late = self.since - _ROUNDING - slack
        if newest.type is not CursorType.TIMESTAMPTZ:
            moment = dt.datetime.fromisoformat(newest.text)
            age = min(max(self.until - late, dt.timedelta()), moment - dt.datetime.min)
            late = min(late + dt.timedelta(seconds=wall_offset), moment - age)
        return Cursor.parse(late.isoformat(sep=" ", timespec="microseconds"), newest.type)

    def to_mark(self) -> dict[str, Any]:
        return {
            "base": str(self.base),
            "clock": str(self.clock),
            "open": {key: str(moment) for key, moment in sorted(self.open.items())},
            "until": str(self.until),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> OpenWork | None:
        """Parses a stored checkpoint. Returns None if it does not contain open transactions."""
        if mark is None or not {"base", "clock", "open", "until"} <= set(mark):
            return None
        clock, base, until = (
            dt.datetime.fromisoformat(str(mark[name])) for name in ("clock", "base", "until")
        )
        opened = {key: dt.datetime.fromisoformat(str(at)) for key, at in mark["open"].items()}
        return cls(clock, base, until, opened)


class TransactionWatcher:
    """Reads a server's open transactions and caches them for a few seconds. It is thread-safe."""

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._reading = threading.Lock()
        self._read_at = -_KEPT_SECONDS
        self._seen: OpenTransactions | None = None
        self._blind: str | None = None

    def read_activity(self, connection: Connection, catalog: str, table: str) -> OpenTransactions:
        """Reads the transactions that may write to a table. Must be called before reading its rows.

        Args:
            connection: a connection that has not started a transaction.
        """
        with self._reading:
            if self._seen is None or time.monotonic() - self._read_at > _KEPT_SECONDS:
                self._read_at = time.monotonic()
                self._seen = self._read(connection)
            activity = self._seen
        if activity.blind:
            return activity
        rows = connection.rows(
            "select engine from information_schema.tables "
            f"where table_schema = {self._text(catalog)} and table_name = {self._text(table)}"
        )
        engine = (rows[0][0] or "") if rows else ""
        if engine.lower() not in _SHOWN:
            why = f"the storage engine {engine or '?'} does not show open transactions"
            return OpenTransactions(blind=why)
        is_innodb = engine.lower() == "innodb"
        return activity if is_innodb else replace(activity, base=activity.running)

    def _read(self, connection: Connection) -> OpenTransactions:
        """Reads the transactions that may write to an InnoDB table."""
        try:
            if self._blind is None:
                self._blind = _explain_blindness(connection)
            if self._blind:
                return OpenTransactions(blind=self._blind)
            return _read_open_transactions(connection)
        except ConnectionRefusedByServer as error:
            why = "this server does not show open transactions"
            if "PROCESS" in str(error):
                why = "this account cannot see open transactions (grant it PROCESS)"
            return OpenTransactions(blind=why)


def _explain_blindness(connection: Connection) -> str:
    """Returns the reason why this server hides some open transactions, or an empty string."""
    settings = {
        (name or "").lower(): (value or "").upper()
        for name, value in connection.rows(
            "show global variables where variable_name in "
            "('innodb_read_only', 'read_only', 'wsrep_on')"
        )
    }
    if settings.pop("wsrep_on", "OFF") != "OFF":
        return "a Galera node does not show the open transactions of other nodes"
    read_only = set(settings.values()) - {"OFF"}
    return _REPLICA if read_only or _is_replica(connection) else ""


def _is_replica(connection: Connection) -> bool:
    """Returns whether the server is a replica; false if the account may not read this."""
    for statement in ("show all slaves status", "show replica status", "show slave status"):
        try:
            return bool(connection.rows(statement))
        except ConnectionRefusedByServer:  # a different syntax, or a missing privilege
            continue
    return False


def _read_open_transactions(connection: Connection) -> OpenTransactions:
    [(clock_text, version)] = connection.rows("select cast(utc_timestamp(6) as char), version()")
    clock = _parse_moment(clock_text)
    # MySQL reports a statement's age in whole seconds, so two seconds are added.
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
        return OpenTransactions(blind=_REPLICA)
    with closing(_Copies(connection)) as copies:
        readers, writers = copies.read_next()
        for _ in range(_READS - 1):
            if not writers:
                break
            _, again = copies.read_next()
            writers = {trx: writer for trx, writer in writers.items() if trx in again}
    if copies.stale:
        return OpenTransactions(
            blind="information_schema.innodb_trx does not show the current transactions"
        )
    began = [(session, _parse_moment(at)) for session, _, at in statements if at is not None]
    return OpenTransactions(
        clock,
        base=min([clock, *(at for session, at in began if session not in readers)]),
        writers=tuple(writers.values()),
        running=min([clock, *(at for _, at in began)]),
    )


class _Copies:
    """Reads new copies of InnoDB's list of transactions.

    Attributes:
        stale: whether all attempts returned an old copy. This happens if other sessions read the
            list so often that InnoDB does not refresh it.
    """

    def __init__(self, connection: Connection) -> None:
        self.stale = False
        self._connection = connection
        self._open = False

    def read_next(self) -> tuple[set[str], dict[str, Writer]]:
        """Returns the ids of read-only sessions, and the writing transactions keyed by id."""
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
            if self._open == any(is_own == "1" for *_, is_own in rows):
                return (
                    {session or "" for _, session, _, _, reads, _ in rows if reads == "1"},
                    {
                        trx or "": Writer(_parse_moment(started), session == "0")
                        for trx, session, started, wrote, _, _ in rows
                        if wrote == "1"
                    },
                )
            # The pause is random, because two readers that took turns would prevent every refresh.
            time.sleep(_RENEWED_SECONDS * random.uniform(1, 2))
        self.stale = True
        return set(), {}

    def close(self) -> None:
        """Ends the transaction, so that later reads on the connection see newer rows."""
        if self._open:
            self._connection.execute("rollback")


def _parse_moment(text: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(text or "")
