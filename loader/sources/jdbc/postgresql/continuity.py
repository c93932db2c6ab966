"""Finds PostgreSQL's late rows: those of transactions that were in flight at the last sync.

`now()` is a transaction's start. A transaction that was open during a sync and commits after it
brings rows with cursors below the one that was stored; a plain `cursor >= stored` never sees
them. So each sync stores two things: the start of the oldest transaction that was open just
before its snapshot (`since`), and the snapshot's xmin, the oldest transaction that had not ended.
The next window also reads rows with `cursor >= since` that a transaction at or after that xmin
wrote.

`not pg_visible_in_snapshot(xmin, ...)` will not do: it loses rows written inside a SAVEPOINT, whose
subtransaction ids a snapshot need not list.

If the cursor is a number or a text, no time limits how low a late one can be: sequences with a
cache, and applications that draw blocks of numbers, bring low ones long after, even if no
transaction was open at the sync. So every row is checked for the transaction that wrote it, which
needs a scan and nothing else. The same is true of times if the open transactions cannot be seen,
and of tables that logical replication writes, with times of another server's transactions.

A table without a cursor column can use the transaction that wrote each row (`cursor_field: xmin`).
Then the next window is exact, and needs no clock: the rows written by transactions at or after the
xmin that was remembered.
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
"""The system column with the transaction that wrote a row; no user column can have its name."""


@dataclass(frozen=True)
class TransactionMark:
    """The mark that one sync stores for the next.

    Attributes:
        since: a UTC time that no `now()` still to come can lie below, as long as the clock is not
            set back; None if this role or server cannot tell.
        xmin: the oldest transaction that had not ended in the snapshot (64 bits).
        open: whether any transaction was open, so that rows may really come late.
        system: the cluster's identity and timeline, ``7312…/1``: a restored database has another
            identity or an older xmin, a failed-over one another timeline. Empty if hidden.
        xmax: the first transaction of which the snapshot sees nothing; not stored.
        clock: the database's clock before the snapshot, in UTC; not stored. Empty if unknown.
        replica: whether it is a read replica, which may lag; not stored.
    """

    since: str | None
    xmin: int
    open: bool
    system: str
    xmax: int = 0
    clock: str = ""
    replica: bool = False

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores."""
        return {
            "open": self.open,
            "since": self.since,
            "system": self.system,
            "xmin": str(self.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> TransactionMark | None:
        """Reads the form that the state stores; None if the mark does not have it."""
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
        """Returns a cursor that no late row can lie below, in the cursor's type; None if unknown.

        Unknown for cursors that are not times, and if the clock is behind what it was. Subtracts a
        minute: a column with fewer digits rounds, and a clock may have been set back and have
        caught up since; an hour if another server's clock is the one that counts now; for a wall
        clock, also the largest offset of any zone. The margin costs little: below the window, only
        rows written since are read.
        """
        if not type_.is_time or self.since is None or self.is_clock_behind(now):
            return None
        same = self.compare_database(now) is DatabaseContinuity.SAME
        moment = dt.datetime.fromisoformat(self.since) - (_STEP if same else _OTHER_CLOCK)
        if type_ is not CursorType.TIMESTAMPTZ:
            moment -= _ANY_ZONE
        return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), type_)

    def select_written_since(self, now: TransactionMark, *, scan: bool = False) -> str:
        """Returns SQL that is true for rows written by a transaction at or after :attr:`xmin`.

        A row's xmin has 32 bits and wraps around, so it is compared by distance. If the distance
        could have wrapped, or the database is no longer the same, all rows pass: more is read
        again, nothing is missed. PostgreSQL's own distance, from the next id back, takes half the
        CPU, but is not computed by parallel workers; it counts as long as it is far from wrapping.
        Ids below 3 are not transactions (rows frozen by a load).

        Args:
            scan: the table is scanned for them.
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
        """Returns whether there were so many transactions since that ids will soon be ambiguous."""
        return now.xmin > self.xmin + _HALF // 2

    def is_clock_behind(self, now: TransactionMark) -> bool:
        """Returns whether the clock was set back since, as far as it shows."""
        return bool(self.since and now.clock) and now.clock < str(self.since)

    def compare_database(self, now: TransactionMark) -> DatabaseContinuity:
        """Detects a restore or failover between two syncs, as far as it shows."""
        before, after = self.system.partition("/")[0], now.system.partition("/")[0]
        hidden = not before or not after
        if before == after and not hidden and self.system != now.system:
            return DatabaseContinuity.FAILED_OVER  # its transaction counter may have gone back, too
        if before == after and now.replica and now.xmin < self.xmin:
            return DatabaseContinuity.BEHIND
        if (before != after and not hidden) or now.xmin < self.xmin:
            return DatabaseContinuity.RESTORED
        return DatabaseContinuity.SAME

    def select_writer(self) -> str:
        """Returns SQL for the transaction that wrote a row, in 64 bits.

        It is the newest transaction that matches the row's 32 bits: a row older than 2^32
        transactions seems younger than it is, and may be read again.
        """
        text = "xmin::text::bigint"
        age = f"(({self.xmax} - {text}) & {2**32 - 1})"
        return f"(case when {text} < 3 then {text} else {self.xmax} - {age} end)"


class DatabaseContinuity(enum.Enum):
    """The continuity of a database between two syncs: the same, behind, failed over or restored."""

    SAME = "same"
    BEHIND = "behind"
    FAILED_OVER = "failed over"
    RESTORED = "restored"


@dataclass(frozen=True)
class ServerActivity:
    """The open transactions of a database, read before a snapshot: see :class:`TransactionMark`.

    Attributes:
        since: None if this role or server cannot tell.
        blind: why it cannot, for messages; empty if it can.
        clock: the database's clock, in UTC; empty if unknown.
        replica: whether it is a read replica.
    """

    since: str | None
    open: bool
    system: str
    blind: str = ""
    clock: str = ""
    replica: bool = False


def read_activity(connection: Connection, holder: int = 0) -> ServerActivity:
    """Reads how old the oldest open transaction is.

    Call it before taking the snapshot, which does not cover it: otherwise a transaction that
    commits in between would slip through.

    Args:
        holder: the process id of our own session that will take the snapshot.
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
        # PostgreSQL records when a transaction was prepared, but not when it started. Not only
        # clients write: workers of subscriptions and extensions do, too. A procedure that commits
        # begins transactions that are younger than its statement, whose time it may still write.
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
    except ConnectionRefusedByServer:  # speaks PostgreSQL's protocol, but is not PostgreSQL
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
    """Returns the transactions of the snapshot that a connection reads, and the activity before it.

    Raises:
        ConnectionRefusedByServer: if the server refuses the query. Its transaction, and with it the
            snapshot, is lost.
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
    """Returns the cluster's identity and timeline; empty if a managed service hides them.

    A primary's timeline is that of the log it writes: its last checkpoint may have another one for
    minutes after a failover.
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
