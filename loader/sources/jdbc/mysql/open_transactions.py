"""The open work of MariaDB and MySQL: running statements, and transactions that have written.

`now()` is the start of a statement, or of its transaction; in a trigger or stored function, of the
statement that called it. Work that was open during one sync and commits after it brings rows with
cursors from before that sync, and a plain `cursor >= stored` never sees them. So each sync stores a
time that no such row can lie below (`since`), and the next window reaches back that far. Rows that
were read before are redelivered, and dropped. (PostgreSQL knows which transaction wrote a row, so
there only late rows are read: :mod:`loader.sources.jdbc.postgresql.continuity`.)

A database shows when a transaction began, but its first statement may have begun earlier, and
waited for a lock. Two facts limit how much earlier. A statement that was running at the last sync
was in its list of statements; a statement that was not running then began after that sync.

The order of reading matters: first the clock, then the process list, then InnoDB's transactions,
twice, then the rows.

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
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
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
_LONGEST_WAIT = dt.timedelta(days=1)  # MariaDB's default of lock_wait_timeout
_EVER = dt.datetime(1970, 1, 2)


@dataclass(frozen=True)
class Writer:
    """A transaction that has changed rows and stays open.

    Attributes:
        started: when it began, in UTC, in whole seconds.
        adopted: it belongs to no session (it is prepared), and `started` may be a restart.
    """

    started: dt.datetime
    adopted: bool = False


@dataclass(frozen=True)
class OpenTransactions:
    """The open work of a database, read before a table's rows; times in UTC.

    Attributes:
        clock: the database's clock before anything else was read.
        base: no statement that can still bring rows began before it; the clock if none is running.
        writers: transactions that changed rows before `clock`, and may commit after the read.
        blind: why the database does not show its open work, for messages; empty if it does.
    """

    clock: dt.datetime
    base: dt.datetime
    writers: tuple[Writer, ...] = ()
    blind: str = ""

    def to_open_work(self, before: OpenWork | None, until: dt.datetime) -> OpenWork:
        """Returns the mark for the next sync.

        Args:
            before: the mark of the last sync.
            until: the database's clock after the table's bounds were read.
        """
        opened: dict[str, dt.datetime] = {}
        for writer in self.writers:
            key = writer.started.isoformat(sep=" ")
            found = _find_first_statement(writer, key, before)
            opened[key] = min(found, opened.get(key, found))
        return OpenWork(self.clock, self.base, until, opened)


def _find_first_statement(writer: Writer, key: str, before: OpenWork | None) -> dt.datetime:
    """Returns a time before which a transaction's first statement cannot have begun."""
    if writer.adopted:
        return before.since if before else _EVER
    known = before.open.get(key) if before else None
    if before and known:
        return min(known, before.base)  # several transactions may begin in one second
    if before and writer.started >= before.clock.replace(microsecond=0):
        return before.base  # its first statement ran at the last sync, or began after it
    return writer.started - _LONGEST_WAIT


@dataclass(frozen=True)
class OpenWork:
    """The mark that one sync stores for the next; times in UTC.

    Attributes:
        clock, base: see :class:`OpenTransactions`.
        until: the clock after the bounds were read: no row that was seen is younger.
        open: the transactions that stayed open: by the start of each, the earliest time at which
            its first statement can have begun.
    """

    clock: dt.datetime
    base: dt.datetime
    until: dt.datetime
    open: Mapping[str, dt.datetime] = field(default_factory=dict)

    @property
    def since(self) -> dt.datetime:
        """A time that no unseen row with a cursor from `now()` can lie below."""
        return min([self.base, *self.open.values()])

    @property
    def expects(self) -> bool:
        """Whether the next sync reads more than the last second again because of it."""
        return self.since < self.clock - _ROUNDING

    def is_settled(self, now: OpenWork) -> bool:
        """Returns whether the rows that it expects have arrived; if so, `now` replaces it."""
        return self.expects and now.since > self.clock

    def reach(self, low: Cursor, wall_offset: int) -> Cursor:
        """Returns a cursor that no late row can lie below, in the cursor's type.

        The writers of a wall clock may use another zone than the database, so there are two
        bounds, and the lower one counts. The first is the newest row that was seen, minus how much
        older a late row can be. The second is the database's own wall clock, which is lower if the
        clock was set back an hour since.

        Args:
            low: where the window begins.
            wall_offset: how many seconds the database's wall clock is ahead of UTC now.
        """
        late = self.since - _ROUNDING
        if low.type is not CursorType.TIMESTAMPTZ:
            newest = dt.datetime.fromisoformat(low.text)
            age = min(self.until - late, newest - dt.datetime.min)
            late = min(late + dt.timedelta(seconds=wall_offset), newest - age)
        return Cursor.parse(late.isoformat(sep=" ", timespec="microseconds"), low.type)

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores."""
        return {
            "base": str(self.base),
            "clock": str(self.clock),
            "open": {key: str(moment) for key, moment in sorted(self.open.items())},
            "until": str(self.until),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> OpenWork | None:
        """Reads the form that the state stores; None if the mark does not have it."""
        if mark is None or not {"base", "clock", "open", "until"} <= set(mark):
            return None
        clock, base, until = (
            dt.datetime.fromisoformat(str(mark[name])) for name in ("clock", "base", "until")
        )
        opened = {key: dt.datetime.fromisoformat(str(at)) for key, at in mark["open"].items()}
        return cls(clock, base, until, opened)


class TransactionWatcher:
    """Reads the open work of a server, at most once every few seconds.

    One object serves all tables of a run, in several threads.

    Args:
        text: writes a string literal.
    """

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._reading = threading.Lock()
        self._read_at = -_KEPT_SECONDS
        self._seen: _OpenTransactions | None = None
        self._blind: str | None = None

    def read_activity(self, connection: Connection, catalog: str, table: str) -> OpenTransactions:
        """Reads the activity that a table's rows may come from; call it before reading the rows.

        Args:
            connection: a new one, on which no transaction has been seen yet.
        """
        with self._reading:
            if self._seen is None or time.monotonic() - self._read_at > _KEPT_SECONDS:
                self._read_at = time.monotonic()
                self._seen = self._read(connection)
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

    def _read(self, connection: Connection) -> _OpenTransactions:
        try:
            if self._blind is None:
                self._blind = _explain_blindness(connection)
            return (
                _OpenTransactions(blind=self._blind)
                if self._blind
                else _read_open_transactions(connection)
            )
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


def _explain_blindness(connection: Connection) -> str:
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
    return _REPLICA if read_only or _is_replica(connection) else ""


def _is_replica(connection: Connection) -> bool:
    """Returns whether the server is set up as a replica, as far as this account can see."""
    for statement in ("show all slaves status", "show replica status", "show slave status"):
        try:
            return bool(connection.rows(statement))
        except ConnectionRefusedByServer:  # not this server's syntax, or no privilege
            continue
    return False


def _read_open_transactions(connection: Connection) -> _OpenTransactions:
    [(clock_text, version)] = connection.rows("select cast(utc_timestamp(6) as char), version()")
    clock = _parse_moment(clock_text)
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
        readers, writers = copies.read_next()
        for _ in range(_READS - 1):
            if not writers:
                break
            _, again = copies.read_next()
            writers = {trx: writer for trx, writer in writers.items() if trx in again}
    if copies.stale:
        return _OpenTransactions(
            blind="information_schema.innodb_trx does not show what is open now"
        )
    began = [(session, _parse_moment(at)) for session, _, at in statements if at is not None]
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

    def read_next(self) -> tuple[set[str], dict[str, Writer]]:
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
                        trx or "": Writer(_parse_moment(started), session == "0")
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


def _parse_moment(text: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(text or "")
