"""The open transactions of PostgreSQL at a sync, and whether the database is still the same.

In PostgreSQL, `now()` is the start of the transaction. If a transaction is open during a sync and
commits later, its rows have cursors below the stored cursor, so `cursor >= stored` misses them.
Each sync therefore stores the start of the oldest open transaction (`since`), read just before the
snapshot, and the xmin of the snapshot: the oldest transaction that had not ended. The next window
also reads rows with `cursor >= since` that were written by a transaction at or after this xmin.

The condition `not pg_visible_in_snapshot(xmin, ...)` is not used, because it misses rows written in
a SAVEPOINT: a snapshot does not list all ids of subtransactions.

If the cursor is a number or a text, late rows may have any cursor. Cached sequences and
applications that reserve blocks of numbers insert low numbers late, even if no transaction was open
at the sync. So the whole table is scanned for rows by the transaction that wrote them. The same
applies to times if open transactions are hidden, and to tables that logical replication writes,
because their times are from another server.

A table without a cursor column can use the transaction that wrote each row (`cursor_field: xmin`).
The next window then contains exactly the rows written by transactions at or after the stored xmin.
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
"""The system column with the transaction that wrote a row; no user column can have this name."""


@dataclass(frozen=True)
class TransactionMark:
    """The transactions of a snapshot, stored in the mark for the next sync.

    Attributes:
        since: a UTC time below which no later commit has a `now()`, unless the clock is set back;
            None if the role or server does not show it.
        xmin: the oldest transaction that had not ended in the snapshot (64 bits).
        open: whether any transaction was open, so that late rows are possible.
        system: the identity and timeline of the cluster, ``7312…/1``. A restored database has
            another identity or an older xmin; after a failover, the timeline differs. Empty if
            hidden.
        xmax: the first transaction that the snapshot does not see at all; not stored.
        clock: the clock of the database before the snapshot, in UTC; not stored. Empty if unknown.
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
        """Returns the mark as the state stores it."""
        return {
            "open": self.open,
            "since": self.since,
            "system": self.system,
            "xmin": str(self.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> TransactionMark | None:
        """Parses a stored mark; None if it has no transactions."""
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
        """Returns a lower bound for the cursors of late rows; None if it is unknown.

        It is unknown for cursors that are not times, and if the clock was set back.

        The bound has a margin of a minute, because times may be rounded and clocks corrected; of an
        hour after a failover to a server with another clock; and for wall clock times, additionally
        of the largest offset of a time zone. The margin costs little, because only recently written
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
        """Returns SQL that is true for rows written by a transaction at or after :attr:`xmin`.

        The xmin of a row has 32 bits and wraps around, so it is compared by distance. If the
        distance may have wrapped, or the database is not the same, all rows match. The function
        `age` needs half the CPU time, but parallel workers cannot run it. It is used if no scan is
        expected and the distance is far from wrapping. Ids below 3 are not transactions: they mark
        rows that were frozen when they were loaded.

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
        """Returns whether the ids since the mark are so many that they will soon wrap around."""
        return now.xmin > self.xmin + _HALF // 2

    def is_clock_behind(self, now: TransactionMark) -> bool:
        """Returns whether the clock is behind :attr:`since`, so that it was set back."""
        return bool(self.since and now.clock) and now.clock < str(self.since)

    def compare_database(self, now: TransactionMark) -> DatabaseContinuity:
        """Detects a restore or failover since the mark was stored.

        Args:
            now: the current transactions.
        """
        before, after = self.system.partition("/")[0], now.system.partition("/")[0]
        is_hidden = not before or not after
        if before == after and not is_hidden and self.system != now.system:
            return DatabaseContinuity.FAILED_OVER  # the transaction counter may be lower, too
        if before == after and now.replica and now.xmin < self.xmin:
            return DatabaseContinuity.BEHIND
        if (before != after and not is_hidden) or now.xmin < self.xmin:
            return DatabaseContinuity.RESTORED
        return DatabaseContinuity.SAME

    def select_writer(self) -> str:
        """Returns SQL for the 64-bit id of the transaction that wrote a row.

        This is the newest id with the 32 bits of the row's xmin. If more than 2^32 transactions
        followed, the id is too high, and the row may be read again.
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
        since: see :class:`TransactionMark`; None if the role or server does not show it.
        open: whether any transaction is open.
        system: the identity and timeline of the cluster; empty if hidden.
        blind: why `since` is unknown, for messages; empty if it is known.
        clock: the clock of the database, in UTC; empty if unknown.
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

    Call it before the snapshot is taken. Otherwise a transaction that commits in between would be
    missed.

    Args:
        holder: the process id of the loader's session that exports the snapshot.
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
        # procedure may commit and then still write the time of its statement, so the start of the
        # statement counts if it is earlier. The start of a prepared transaction is unknown.
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
    except ConnectionRefusedByServer:  # uses PostgreSQL's protocol, but is not PostgreSQL
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
    """Reads the transactions of the snapshot that a connection uses.

    Args:
        seen: the activity before the snapshot.

    Raises:
        ConnectionRefusedByServer: if the server refuses the query, which also ends the transaction
            and its snapshot.
    """
    # Before version 13, the same functions had other names.
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
    """Reads the identity and timeline of the cluster; empty if a managed service hides them.

    On a primary, the timeline is read from the name of the current log file. After a failover, the
    last checkpoint has the old timeline for some minutes.
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
