"""Reads PostgreSQL's open transactions and detects restores and failovers.

In PostgreSQL, `now()` returns the start of the transaction. If a transaction is open during a sync
and commits later, its rows may have cursors below the stored cursor. The condition `cursor >=
stored` would miss these rows. Each sync therefore stores two values: `since`, the start of the
oldest open transaction just before the snapshot, and the snapshot's xmin, the id of the oldest
unfinished transaction. The next window also includes rows with `cursor >= since` whose transaction
id is this xmin or later.

The condition `not pg_visible_in_snapshot(xmin, ...)` is not used, because snapshots omit some ids
of subtransactions. It would miss rows written after a SAVEPOINT.

If the cursor is a number or a text, late rows may have any cursor value. Cached sequences and
applications that reserve blocks of numbers insert low numbers late, even without open transactions
at the sync. Therefore the whole table is scanned for rows with later transaction ids. The scan is
also necessary for times if open transactions are hidden. It is also necessary for tables that
logical replication writes, because the times originate on another server.

A table without a cursor column can use the id of the writing transaction (`cursor_field: xmin`).
The next window then contains exactly the rows whose transaction id is the stored xmin or later.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connections import Connection
from loader.spark.error_translation import ConnectionRefusedByServer

_HALF = 2**31
_STEP = dt.timedelta(minutes=1)
_OTHER_CLOCK = dt.timedelta(hours=1)
_ANY_ZONE = dt.timedelta(hours=14)

XMIN = "xmin"
"""The system column with a row's transaction id. User columns cannot have this name."""


@dataclass(frozen=True)
class TransactionMark:
    """The state of transactions in a snapshot, stored in the mark for the next sync.

    Attributes:
        since: a lower bound in UTC for `now()` in later commits, if the clock is not set back. None
            if the role cannot read it.
        xmin: the 64-bit id of the oldest unfinished transaction in the snapshot.
        open: whether any transaction was open, so that late rows are possible.
        system: the identity and timeline of the cluster, ``7312…/1``; empty if hidden. A restored
            database has another identity or an older xmin. After a failover, the timeline differs.
        xmax: the first transaction id that is invisible to the snapshot; not stored.
        clock: the database's clock before the snapshot in UTC; empty if unknown; not stored.
        replica: whether the server is a read replica, which may lag; not stored.
    """

    since: str | None
    xmin: int
    open: bool
    system: str
    xmax: int = 0
    clock: str = ""
    replica: bool = False

    def to_mark(self) -> dict[str, Any]:
        """Returns the mark to store in the state."""
        return {
            "open": self.open,
            "since": self.since,
            "system": self.system,
            "xmin": str(self.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> TransactionMark | None:
        """Parses a stored mark. Returns None if it does not contain transactions."""
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
        """Returns a lower bound for the cursors of late rows, or None.

        There is no bound for cursors that are not times, or if the clock was set back.

        The bound has a margin of a minute, because times may be rounded and clocks corrected. After
        a failover to a server with another clock, the margin is an hour. For wall clock times, the
        maximum offset of a time zone is added. The margin is cheap, because only recently written
        rows below the window are read.
        """
        if not type_.is_time or self.since is None or self.is_clock_behind(now):
            return None
        is_same = self.compare_database(now) is DatabaseContinuity.SAME
        moment = dt.datetime.fromisoformat(self.since) - (_STEP if is_same else _OTHER_CLOCK)
        if type_ is not CursorType.TIMESTAMPTZ:
            moment -= _ANY_ZONE
        return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), type_)

    def select_written_since(self, now: TransactionMark, *, scan: bool = False) -> str:
        """Returns SQL that is true for rows whose transaction id is :attr:`xmin` or later.

        The xmin of a row has 32 bits and wraps around, so ids are compared by distance. If the
        distance may have wrapped, or the database is not the same, all rows match. The function
        `age` needs half the CPU time, but parallel workers cannot run it. It is used if no scan is
        expected and the distance is far from wrapping. Ids below 3 are not transactions; they
        indicate rows that were frozen when they were loaded.

        Args:
            scan: whether the query scans the table.
        """
        if (
            self.compare_database(now) is not DatabaseContinuity.SAME
            or not now.xmin < self.xmin + _HALF
        ):
            return "true"
        low = self.xmin % 2**32
        if not scan and now.xmax < self.xmin + _HALF // 2:
            return f"(age(xmin) <= age('{low}'::xid) or age(xmin) = {_HALF - 1})"
        distance = f"(xmin::text::bigint - {low} + {2**32}) % {2**32}"
        return f"({distance} < {_HALF} or xmin::text::bigint < 3)"

    def is_outlived(self, now: TransactionMark) -> bool:
        """Returns whether the mark is so old that transaction ids will soon wrap around."""
        return now.xmin > self.xmin + _HALF // 2

    def is_clock_behind(self, now: TransactionMark) -> bool:
        """Returns whether the clock was set back, because it is behind :attr:`since`."""
        return bool(self.since and now.clock) and now.clock < str(self.since)

    def compare_database(self, now: TransactionMark) -> DatabaseContinuity:
        """Detects a restore or failover since the mark was stored.

        Args:
            now: the current state of transactions.
        """
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
        """Returns SQL for a row's 64-bit transaction id.

        It is the newest id whose lower 32 bits equal the row's xmin. If more than 2^32 transactions
        followed, this id is too high, and the row may be reread.
        """
        text = "xmin::text::bigint"
        age = f"(({self.xmax} - {text}) & {2**32 - 1})"
        return f"(case when {text} < 3 then {text} else {self.xmax} - {age} end)"


class DatabaseContinuity(enum.Enum):
    """The relation between the databases of two syncs."""

    SAME = "same"
    BEHIND = "behind"
    FAILED_OVER = "failed over"
    RESTORED = "restored"


@dataclass(frozen=True)
class ServerActivity:
    """The open transactions of a database, read before a snapshot.

    Attributes:
        since: see :class:`TransactionMark`; None if the role cannot read it.
        open: whether any transaction is open.
        system: the identity and timeline of the cluster; empty if unreadable.
        blind: the reason, for messages, why `since` is unknown; empty if it is known.
        clock: the database's clock in UTC; empty if unknown.
        replica: whether the server is a read replica.
    """

    since: str | None
    open: bool
    system: str
    blind: str = ""
    clock: str = ""
    replica: bool = False


def read_activity(connection: Connection, holder: int = 0) -> ServerActivity:
    """Reads the start of the oldest open transaction.

    Must be called before the snapshot is created. Otherwise, a transaction that commits between the
    two steps would be missed.

    Args:
        holder: the process id of the session that exports the snapshot; this session is ignored.
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
            return ServerActivity(None, True, _read_system(connection), why, replica=True)
        if visible not in _TRUE:
            why = "this role cannot see how old open transactions are (grant it pg_read_all_stats)"
            return ServerActivity(None, True, _read_system(connection), why)
        # The query includes background workers, because subscriptions and extensions also write. A
        # procedure may commit and afterwards write the start time of its statement, so an earlier
        # statement start is used. The start of a prepared transaction is unknown.
        [(since, clock, is_open, hidden, prepared)] = connection.rows(
            f"""
            select
                timezone('UTC', least(
                    clock_timestamp(),
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
    except ConnectionRefusedByServer:  # another product with PostgreSQL's protocol
        return ServerActivity(None, True, "", "this server does not show open transactions")
    now = Cursor.parse(clock or "", CursorType.TIMESTAMP).text
    if int(hidden or 0):
        why = "sessions with track_activities = off do not show how old their transactions are"
        return ServerActivity(None, True, _read_system(connection), why)
    if int(prepared or 0):
        return ServerActivity("1970-01-02 00:00:00", True, _read_system(connection), clock=now)
    oldest = Cursor.parse(since or "", CursorType.TIMESTAMP).text
    return ServerActivity(oldest, is_open in _TRUE, _read_system(connection), clock=now)


_TRUE = ("t", "true")


def read_transaction_mark(connection: Connection, seen: ServerActivity) -> TransactionMark:
    """Reads the state of transactions in a connection's snapshot.

    Args:
        seen: the activity before the snapshot.

    Raises:
        ConnectionRefusedByServer: if the server rejects the query. This also ends the transaction
            and its snapshot.
    """
    # The functions had other names before version 13.
    kind = "pg" if connection.major_version >= 13 else "txid"
    [(xmin, xmax)] = connection.rows(
        f"""
        select
            pg_catalog.{kind}_snapshot_xmin(s)::text,
            pg_catalog.{kind}_snapshot_xmax(s)::text
        from pg_catalog.{kind}_current_snapshot() as s
        """
    )
    return TransactionMark(
        since=seen.since,
        xmin=int(xmin or 0),
        open=seen.open or xmin != xmax,
        system=seen.system,
        xmax=int(xmax or 0),
        clock=seen.clock,
        replica=seen.replica,
    )


def _read_system(connection: Connection) -> str:
    """Reads the identity and timeline of the cluster. Returns "" if they are hidden.

    On a primary, the timeline is read from the name of the current log file. For some minutes
    after a failover, the last checkpoint still has the old timeline.
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
