"""PostgreSQL's transaction horizon: what transactions in flight at one sync bring to the next.

`now()` is a transaction's start. A transaction that was open during a sync and commits after it
brings rows with cursors below the one that was stored; a plain `cursor >= stored` never sees
them. So each sync remembers, from the moment before its snapshot, how old the oldest open
transaction was (`since`), and the snapshot's xmin: the oldest transaction that was not over. The
next window also reads rows with `cursor >= since` that a transaction at or after that xmin wrote.

Not `not pg_visible_in_snapshot(xmin, ...)`: it loses rows written inside a SAVEPOINT, whose
subtransaction ids a snapshot need not list.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loader.cursor import Cursor, CursorType
from loader.sources.connection import Connection, DatabaseError

_HALF = 2**31


@dataclass(frozen=True)
class Horizon:
    """What one sync remembers for the next.

    Attributes:
        since: UTC time that bounds from below every `now()` still to come.
        xmin: the oldest transaction that the snapshot did not see the end of (64 bits).
        open: whether any transaction was open, so that rows may really come late.
        system: the cluster's identity; a restored or failed-over database has another.
    """

    since: str
    xmin: int
    open: bool
    system: str

    def to_mark(self) -> dict[str, Any]:
        """As the state keeps it."""
        return {
            "open": self.open,
            "since": self.since,
            "system": self.system,
            "xmin": str(self.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> Horizon | None:
        """As the state kept it; None where it did not."""
        if mark is None or not {"open", "since", "system", "xmin"} <= set(mark):
            return None
        return cls(str(mark["since"]), int(mark["xmin"]), bool(mark["open"]), str(mark["system"]))

    def reach(self, type_: CursorType, wall_offset: int) -> Cursor | None:
        """The lowest cursor that a late row can carry, in the cursor's type.

        None for cursors that are not times: there only a lookback helps.
        """
        if not type_.is_time:
            return None
        moment = dt.datetime.fromisoformat(self.since)
        if type_ is not CursorType.TIMESTAMPTZ:
            moment += dt.timedelta(seconds=wall_offset)
        return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), type_)

    def written_since(self, now: Horizon) -> str:
        """SQL that is true of rows written by a transaction at or after :attr:`xmin`.

        A row's xmin has 32 bits and wraps around, so it is compared by distance. Where the
        distance could have wrapped, or the database is not the same any more, all rows pass: more
        is read again, nothing is missed. Ids below 3 are not transactions' (frozen by a load).
        """
        if self.system != now.system or not self.xmin <= now.xmin < self.xmin + _HALF:
            return "true"
        low = self.xmin % 2**32
        distance = f"(xmin::text::bigint - {low} + {2**32}) % {2**32}"
        return f"({distance} < {_HALF} or xmin::text::bigint < 3)"


@dataclass(frozen=True)
class Activity:
    """The open transactions of a database, read before a snapshot is taken; see Horizon."""

    since: str
    open: bool
    system: str


def activity(connection: Connection) -> Activity | None:
    """How old the oldest open transaction is; None where this role or server cannot tell.

    It must be read before the snapshot: it is not part of it, and a transaction that commits in
    between would slip through.
    """
    try:
        [(visible,)] = connection.rows(
            """
            select not pg_catalog.pg_is_in_recovery()
                and pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'usage')
            """
        )
        if visible not in ("t", "true"):
            return None
        # A prepared transaction's start is not recorded, only when it was prepared.
        [(since, is_open, prepared)] = connection.rows(
            """
            select
                timezone('UTC', least(clock_timestamp(), min(xact_start))),
                count(xact_start) > 0,
                (
                    select count(*)
                    from pg_catalog.pg_prepared_xacts
                    where database = current_database()
                )
            from pg_catalog.pg_stat_activity
            where datname = current_database()
                and pid <> pg_backend_pid()
                and backend_type = 'client backend'
            """
        )
    except DatabaseError:  # databases that speak PostgreSQL's protocol, but are not PostgreSQL
        return None
    if int(prepared or 0):
        return Activity("1970-01-01 00:00:00", True, _system(connection))
    oldest = Cursor.parse(since or "", CursorType.TIMESTAMP).text
    return Activity(oldest, is_open in ("t", "true"), _system(connection))


def horizon(connection: Connection, seen: Activity) -> Horizon:
    """The horizon of the snapshot that a connection reads, with the activity seen before it."""
    [(xmin, xmax)] = connection.rows(
        """
        select
            pg_catalog.pg_snapshot_xmin(s)::text,
            pg_catalog.pg_snapshot_xmax(s)::text
        from pg_catalog.pg_current_snapshot() as s
        """
    )
    return Horizon(
        since=seen.since,
        xmin=int(xmin or 0),
        open=seen.open or xmin != xmax,
        system=seen.system,
    )


def _system(connection: Connection) -> str:
    """The cluster and its timeline; empty where a managed service hides them."""
    try:
        [(identity,)] = connection.rows(
            """
            select s.system_identifier::text || '/' || c.timeline_id::text
            from pg_catalog.pg_control_system() as s, pg_catalog.pg_control_checkpoint() as c
            """
        )
    except DatabaseError:
        return ""
    return identity or ""
