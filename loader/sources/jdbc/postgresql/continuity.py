"""Reads PostgreSQL's open transactions and detects restores and failovers.

In PostgreSQL, `now()` returns the time at which the transaction started. If a transaction is open
during a sync and commits later, its rows may have cursors below the stored cursor, and the
condition `cursor >= stored` would miss them. Each sync therefore stores two values: `since`, the
start of the oldest open transaction just before the snapshot; and the snapshot's xmin, the id of
the oldest unfinished transaction. The next window also includes rows with `cursor >= since` whose
transaction id is this xmin or later.

The condition `not pg_visible_in_snapshot(xmin, ...)` would miss rows that were written after a
SAVEPOINT, because snapshots omit the ids of some subtransactions.

If the cursor is a number or a string, late rows may have any cursor value. With a cached sequence,
or an application that reserves blocks of numbers, a low number may be inserted late, even if no
transaction was open during the sync. Each sync therefore searches the whole table for rows with
later transaction ids (:mod:`loader.sources.jdbc.postgresql.sweep`). If the cursor is a time, this
search is necessary in two cases: if open transactions are not visible, or if logical replication
writes the table, because the times of replicated rows come from another server. In all other cases,
it only finds rows whose cursors were computed by an application.

A table without a cursor column can use the id of the transaction that wrote each row
(`cursor_field: xmin`). The next window then contains exactly the rows whose transaction id is the
stored xmin or later.

If a transaction stays open in any database of the server, xmin may remain low for hours, and each
sweep would find all rows that were written in the meantime. Each sync therefore also lists the
transaction ids above xmin that its snapshot may not see. It compiles the list before the snapshot,
from the state of each transaction, because the snapshot's own list omits subtransactions.
"""

from __future__ import annotations

import datetime as dt
import enum
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connections import Connection
from loader.spark.error_translation import ConnectionRefusedByServer

_HALF = 2**31
_WRAP = 2**32
_FEW_IDS = 100
"""The maximum number of transaction ids that a query lists; more ids are compared as a range."""
_MOST_UNSEEN = 1_000
"""The maximum number of unseen transaction ids that a checkpoint stores."""
_MOST_CHECKED = 2_000_000
"""The maximum number of transactions whose states are read."""
_USUAL_FLUSH_SECONDS = 0.3
"""The usual time between an asynchronous commit and the flush of the log."""
_STEP = dt.timedelta(minutes=1)
_OTHER_CLOCK = dt.timedelta(hours=1)
_ANY_ZONE = dt.timedelta(hours=14)

UNKNOWN_START = "1970-01-02 00:00:00"
"""The assumed start of prepared transactions. The server does not show their real start."""

XMIN = "xmin"
"""The system column with the id of the transaction that wrote a row. No user column has its name.
"""


@dataclass(frozen=True)
class TransactionMark:
    """The transaction state of a snapshot, stored in the checkpoint for the next sync.

    Attributes:
        since: a lower bound, in UTC, for `now()` in transactions that commit later, unless the
            clock is set back. None if the role cannot read it.
        xmin: the 64-bit id of the oldest unfinished transaction in the snapshot.
        open: whether any transaction was open, so that late rows are possible.
        system: the identity and timeline of the cluster, such as ``7312…/1``; empty if hidden. A
            restored database has a different identity or a lower xmin than before. After a
            failover, the timeline differs.
        xmax: the first transaction id that is invisible to the snapshot. Not stored.
        clock: the database's clock before the snapshot, in UTC; empty if unknown. Not stored.
        replica: whether the server is a read replica, which may lag. Not stored.
        log_end: the end of the server's log just after the snapshot, in bytes; 0 if unknown. Not
            stored.
        unseen: the ids below `unseen_from` that may be invisible to the snapshot.
        unseen_from: this id and all later ids may be invisible to the snapshot; 0 means xmin.
        blind: the reason why `since` is unknown, as shown in messages; empty if it is known. Not
            stored.
    """

    since: str | None
    xmin: int
    open: bool
    system: str
    xmax: int = 0
    clock: str = ""
    replica: bool = False
    log_end: int = 0
    unseen: tuple[int, ...] = ()
    unseen_from: int = 0
    blind: str = ""

    @property
    def complete_until(self) -> dt.datetime | None:
        """The start of the oldest open transaction; all earlier transactions have ended.

        None if it is unknown, for example while a transaction is prepared.
        """
        if self.since is None or self.since == UNKNOWN_START:
            return None
        return parse_utc(self.since)

    def to_mark(self) -> dict[str, Any]:
        return {
            "open": self.open,
            "since": self.since,
            "system": self.system,
            "xmin": str(self.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> TransactionMark | None:
        """Parses a stored checkpoint. Returns None if it does not contain transactions."""
        if mark is None or not {"open", "since", "system", "xmin"} <= set(mark):
            return None
        since = mark["since"]
        return cls(
            str(since) if since is not None else None,
            int(mark["xmin"]),
            bool(mark["open"]),
            str(mark["system"]),
        )

    def reach(self, type_: CursorType, now: TransactionMark) -> Cursor | None:
        """Returns a lower bound for the cursors of late rows, or None if there is none.

        There is no bound if the cursor is not a time, or if the clock was set back.

        The bound has a margin, because times may be rounded and clocks may be corrected: a minute,
        or an hour after a failover to a server with a different clock. For wall-clock times, the
        margin includes the maximum offset of a time zone. The margin costs little, because only
        recently written rows below the window are read.
        """
        if not type_.is_time or self.since is None or self.is_clock_behind(now):
            return None
        is_same = self.compare_database(now) is DatabaseContinuity.SAME
        moment = dt.datetime.fromisoformat(self.since) - (_STEP if is_same else _OTHER_CLOCK)
        if type_ is not CursorType.TIMESTAMPTZ:
            moment -= _ANY_ZONE
        return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), type_)

    def select_written_since(self, now: TransactionMark) -> str:
        """Returns an SQL condition for rows of transactions that this snapshot may not see.

        The xmin of a row has 32 bits and wraps around. A comparison with only the lower end of the
        range would be wrong for rows that were written up to 2^32 transactions ago, so both ends
        are compared. All rows match if the range may have wrapped around or if `now` is from
        another database. Parallel workers can evaluate all forms of the condition.
        """
        is_same = self.compare_database(now) is DatabaseContinuity.SAME
        if not is_same or now.xmax - self.xmin >= _WRAP:
            return "true"
        first = max(self.unseen_from, self.xmin)
        if now.xmax - first <= _FEW_IDS:
            return _match_ids((*self.unseen, *range(first, now.xmax)))
        low, high = first % _WRAP, (now.xmax - 1) % _WRAP
        ends = [f"pg_catalog.decode('{end:08x}', 'hex')" for end in (low, high)]
        parts = [f"pg_catalog.xidsend(xmin) between {ends[0]} and {ends[1]}"]
        if low > high:
            parts = [
                f"pg_catalog.xidsend(xmin) {end}" for end in (f">= {ends[0]}", f"<= {ends[1]}")
            ]
        parts += [_match_ids(self.unseen)] if self.unseen else []
        return f"({' or '.join(parts)})" if len(parts) > 1 else parts[0]

    def is_outlived(self, now: TransactionMark) -> bool:
        """Returns whether the checkpoint is so old that transaction ids will soon wrap around."""
        return now.xmin > self.xmin + _HALF // 2

    def is_clock_behind(self, now: TransactionMark) -> bool:
        """Returns whether the clock was set back, so that it is now behind :attr:`since`."""
        return bool(self.since and now.clock) and now.clock < str(self.since)

    def compare_database(self, now: TransactionMark) -> DatabaseContinuity:
        """Detects a restore or failover after the checkpoint was stored."""
        before, after = self.system.partition("/")[0], now.system.partition("/")[0]
        is_hidden = not before or not after
        if before == after and not is_hidden and self.system != now.system:
            return DatabaseContinuity.FAILED_OVER  # the transaction counter may also be lower
        if before == after and now.replica and now.xmin < self.xmin:
            return DatabaseContinuity.BEHIND
        if (before != after and not is_hidden) or now.xmin < self.xmin:
            return DatabaseContinuity.RESTORED
        return DatabaseContinuity.SAME

    def select_writer(self) -> str:
        """Returns SQL for the 64-bit id of the transaction that wrote a row.

        This is the newest id whose lower 32 bits equal the row's xmin. After more than 2^32 later
        transactions, it is too high, and the row may be reread.
        """
        text = "xmin::text::bigint"
        age = f"(({self.xmax} - {text}) & {2**32 - 1})"
        return f"(case when {text} < 3 then {text} else {self.xmax} - {age} end)"


def _match_ids(ids: Sequence[int]) -> str:
    texts = ",".join(str(id_ % _WRAP) for id_ in ids)
    return f"xmin = any('{{{texts}}}'::xid[])" if ids else "false"


class DatabaseContinuity(enum.Enum):
    """How the database that a sync reads relates to the one that the previous sync read."""

    SAME = "same"
    BEHIND = "behind"
    FAILED_OVER = "failed over"
    RESTORED = "restored"


def parse_utc(text: str) -> dt.datetime:
    """Parses a time in UTC that has no time zone suffix."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc)


def read_activity(connection: Connection, holder: int = 0) -> TransactionMark:
    """Reads the start time of the oldest open transaction. The ids in the result are 0.

    Must be called before the snapshot is created, because a transaction that commits in between
    would be missed.

    Args:
        holder: the process id of the session that exports the snapshot. The session is ignored.
    """
    try:
        [(replica, visible)] = connection.rows(
            """
            select
                pg_catalog.pg_is_in_recovery(),
                pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'usage')
            """
        )
        if replica in _TRUE:
            why = "a read replica does not show the transactions that are open on its primary"
            return TransactionMark(None, 0, True, _read_system(connection), replica=True, blind=why)
        if visible not in _TRUE:
            why = "this role cannot see how old open transactions are (grant it pg_read_all_stats)"
            return TransactionMark(None, 0, True, _read_system(connection), blind=why)
        # The query includes background workers, because subscriptions and extensions also write.
        # A procedure may commit and then write the start time of its statement, so that time is
        # used if it is earlier. The clock must be read before the sessions, because a transaction
        # that started in between would be open in the snapshot but older than `since`.
        [(since, clock, is_open, hidden, prepared)] = connection.rows(
            f"""
            select
                timezone('UTC', least(
                    statement_timestamp(),
                    min(case when xact_start is not null then least(xact_start, query_start) end)
                )),
                timezone('UTC', clock_timestamp()),
                count(xact_start) > 0,
                count(*) filter (where state = 'disabled'),
                (
                    select count(*)
                    from pg_catalog.pg_prepared_xacts
                    where database = current_database()
                )
            from pg_catalog.pg_stat_activity
            where datname = current_database()
                and pid not in (pg_backend_pid(), {holder})
                and backend_type is distinct from 'autovacuum worker'
            """
        )
    except ConnectionRefusedByServer:  # a product that only uses PostgreSQL's protocol
        why = "this server does not show open transactions"
        return TransactionMark(None, 0, True, "", blind=why)
    now = Cursor.parse(clock or "", CursorType.TIMESTAMP).text
    if int(hidden or 0):
        why = "sessions with track_activities = off do not show how old their transactions are"
        return TransactionMark(None, 0, True, _read_system(connection), blind=why)
    if int(prepared or 0):
        return TransactionMark(UNKNOWN_START, 0, True, _read_system(connection), clock=now)
    oldest = Cursor.parse(since or "", CursorType.TIMESTAMP).text
    return TransactionMark(oldest, 0, is_open in _TRUE, _read_system(connection), clock=now)


_TRUE = ("t", "true")


def read_transaction_mark(connection: Connection, seen: TransactionMark) -> TransactionMark:
    """Adds the ids of a connection's snapshot, which must be newer than `seen`.

    Raises:
        ConnectionRefusedByServer: if the server rejects the query, which ends the transaction and
            its snapshot.
    """
    xmin, xmax = _read_snapshot_ends(connection)
    return replace(seen, xmin=xmin, xmax=xmax, open=seen.open or xmin != xmax)


def _read_snapshot_ends(connection: Connection) -> tuple[int, int]:
    """Reads the ids of a snapshot's oldest unfinished and first invisible transactions."""
    # The functions had different names before version 13.
    kind = "pg" if connection.major_version >= 13 else "txid"
    [(xmin, xmax)] = connection.rows(
        f"""
        select
            pg_catalog.{kind}_snapshot_xmin(s)::text,
            pg_catalog.{kind}_snapshot_xmax(s)::text
        from pg_catalog.{kind}_current_snapshot() as s
        """
    )
    return int(xmin or 0), int(xmax or 0)


def read_unseen(connection: Connection) -> tuple[tuple[int, ...], int]:
    """Lists the transactions that a snapshot may not see. Must be called before creating it.

    The list includes transactions that were rolled back, because a subtransaction that has just
    started looks like one that was rolled back.

    Returns:
        :attr:`TransactionMark.unseen` and :attr:`TransactionMark.unseen_from`. The latter is 0 if
        there are too many transactions, or if the server does not show their states.
    """
    xmin, xmax = _read_snapshot_ends(connection)
    if xmin == xmax:
        return (), xmax
    if xmax - xmin > _MOST_CHECKED:
        return (), 0
    try:
        rows = connection.rows(
            f"""
            select id::text
            from generate_series({xmin}::bigint, {xmax - 1}) as id
            where pg_catalog.txid_status(id) is distinct from 'committed'
            limit {_MOST_UNSEEN + 1}
            """
        )
    except ConnectionRefusedByServer:
        return (), 0
    if len(rows) > _MOST_UNSEEN:
        return (), 0
    return tuple(int(id_ or 0) for (id_,) in rows), xmax


def read_log_end(connection: Connection) -> int:
    """Returns the length of the server's log in bytes; 0 if the server does not show it."""
    try:
        [(position,)] = connection.rows(
            """
            select pg_catalog.pg_wal_lsn_diff(
                case
                    when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
                    else pg_catalog.pg_current_wal_insert_lsn()
                end,
                '0/0'
            )::bigint
            """
        )
    except ConnectionRefusedByServer:
        return 0
    return int(position or 0)


def wait_for_flush(
    connection: Connection,
    seen: TransactionMark,
    seconds: float,
    connect: Callable[[], AbstractContextManager[Connection]],
) -> bool:
    """Waits until a crash of the server can no longer undo the transactions that a snapshot saw.

    If commits are asynchronous, a crash can undo transactions whose rows were already visible. The
    server then reuses their ids, and the next sync would miss the rows of transactions that receive
    these ids.

    The server flushes its log at each synchronous commit, and soon after any other transaction
    ends. If only unfinished transactions wrote to the log, the server may wait for 15 seconds. The
    loader therefore commits an empty transaction, which uses one id.

    Args:
        connection: the connection to query, which may be in a transaction.
        connect: opens a connection for the empty transaction.

    Returns:
        Whether the server has flushed its log up to `seen.log_end`; True if that is unknown.
    """
    if seen.replica or not seen.log_end:
        return True  # a primary sends only the flushed part of its log to a replica
    began, has_committed = time.monotonic(), False
    while True:
        [(position,)] = connection.rows(
            """
            select
                pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), '0/0')::bigint
            """
        )
        passed = time.monotonic() - began
        if int(position or 0) >= seen.log_end:
            return True
        if passed >= seconds:
            return False
        if passed >= _USUAL_FLUSH_SECONDS and not has_committed:
            has_committed = True
            function = "pg_current_xact_id" if connection.major_version >= 13 else "txid_current"
            with connect() as other:
                other.rows(f"select pg_catalog.{function}()")
        time.sleep(0.02)


def _read_system(connection: Connection) -> str:
    """Returns the identity and timeline of the cluster; an empty string if they are hidden.

    On a primary, the timeline is taken from the name of the current log file, because the server's
    last checkpoint still shows the old timeline for some minutes after a failover.
    """
    try:
        [(identity,)] = connection.rows(
            """
            select
                s.system_identifier::text || '/' || (
                    case
                        when pg_catalog.pg_is_in_recovery() then c.timeline_id
                        else (
                            'x' || left(
                                pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),
                                8
                            )
                        )::bit(32)::int
                    end
                )::text
            from pg_catalog.pg_control_system() as s, pg_catalog.pg_control_checkpoint() as c
            """
        )
    except ConnectionRefusedByServer:
        return ""
    return identity or ""
