"""Finds late rows in MariaDB and MySQL.

Rows of transactions that were open at the last sync may have times below the stored cursor
(:mod:`loader.sources.jdbc.mysql.open_transactions`). If the table was replaced, its rows may also
be below the cursor: TRUNCATE restarts auto-increment numbers, RENAME may install a table with older
rows, and a server may reuse numbers after a restore or a failover. Each sync therefore stores the
identity of the table and its server. If the identity changes, the next sync rereads all rows of the
table.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable
from typing import Any

from loader.rows.clock_slack import find_slack, limit_reach
from loader.rows.cursor import Cursor
from loader.sources.interface import SourceTable, Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.late_commits_interface import SnapshotQueries, describe_range
from loader.sources.jdbc.mysql.open_transactions import (
    OpenTransactions,
    OpenWork,
    TransactionWatcher,
)
from loader.spark.error_translation import ConnectionRefusedByServer

_IDENTITY = "stands_for"
"""The name of the checkpoint's entry for the table's identity."""


class MysqlLateCommits:
    """Implements :class:`~loader.sources.jdbc.late_commits_interface.LateCommits`."""

    def __init__(self, snapshot: SnapshotQueries, watcher: TransactionWatcher) -> None:
        self.snapshot = snapshot
        self.watcher = watcher
        self.activities: dict[str, OpenTransactions] = {}
        self.open_work: dict[str, OpenWork] = {}
        self.identities: dict[str, str] = {}

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads the open transactions. Must be called before the clock and the rows are read."""
        native = table.ref.native
        text, schema = self.snapshot.dialect.text, native.catalog or ""
        self.identities[table.ref.name] = read_identity(connection, text, schema, native.table)
        if native.stored and window.cursor is not None and window.cursor.type.is_time:
            activity = self.watcher.read_activity(connection, native.catalog or "", native.table)
            self.activities[table.ref.name] = activity

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        before = self._read_last_mark(table, window)
        return self._find_reach(before, window) if before is not None else None

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        reach = lowest or self.reach(table, window)
        if window.cursor is None or window.low is None:
            return None
        if self._is_replaced(table, window) or self._is_clock_behind(table, window):
            return "1 = 1"
        if reach is None:
            return None
        column = self.snapshot.column(table, window.cursor.name)
        literal = self.snapshot.dialect.literal
        return f"{column} >= {literal(reach)} and {column} < {literal(window.low)}"

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns the checkpoint for the next sync, or None if there is nothing to store.

        Args:
            window: a window whose upper bound is its highest cursor.
        """
        activity = self.activities.get(table.ref.name)
        identity = self.identities.get(table.ref.name)
        mark = {_IDENTITY: identity} if identity else None
        if activity is None or activity.blind:
            return mark
        before, stored = self._read_last_mark(table, window), window.stored_cursor
        until = self.snapshot.read_clock(connection)
        is_newer = window.high and stored and window.high.order > stored.order
        if before is not None and not is_newer:
            until = before.until  # the newest row has not changed since the last checkpoint
        open_work = activity.to_open_work(before, until)
        self.open_work[table.ref.name] = open_work
        return {**open_work.to_mark(), **(mark or {})}

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        identity = self.identities.get(table.ref.name)
        if identity and window.low is not None and (window.mark or {}).get(_IDENTITY) != identity:
            return True
        if self._is_clock_behind(table, window):
            return True
        before, after = self._read_last_mark(table, window), self.open_work.get(table.ref.name)
        if before is None or after is None:
            return False
        return before.is_settled(after) or self._may_rise(before, after, window)

    def may_reuse_numbers(self, table: SourceTable, window: Window) -> bool:
        is_time = window.cursor is not None and window.cursor.type.is_time
        return not is_time and self._is_replaced(table, window)

    def find_complete_until(self, table: SourceTable, window: Window) -> dt.datetime | None:
        """Returns None, because the database does not record which transaction wrote a row."""
        return None

    def find_excluded(self, table: SourceTable) -> tuple[int, str]:
        """Returns a count of 0, because the database does not record which rows were written."""
        return 0, ""

    def list_warnings(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        is_replaced = self._is_replaced(table, window)
        what = (
            "the table was replaced since the last sync (TRUNCATE, RENAME, an ALTER that rebuilt "
            "it, another server)"
            if table.ref.native.stored
            else "the view or its server was replaced since the last sync"
        )
        effect = (
            "all its rows are read; rows that it no longer has stay in the raw table until a full "
            "refresh"
        )
        notes = (f"{what}: {effect}",) * is_replaced
        if self._is_clock_behind(table, window):
            notes += ("the database's clock was set back: all its rows are read",)
        if window.cursor is None or not window.cursor.type.is_time:
            return notes
        if not table.ref.native.stored:
            kind = "query" if table.ref.native.query else "view"
            return (*notes, f"in a {kind}, {describe_range(window)}")
        blind = self.activities[table.ref.name].blind
        return (*notes, f"{blind}: {describe_range(window)}") if blind else notes

    def _find_reach(self, open_work: OpenWork, window: Window) -> Cursor | None:
        newest = window.stored_cursor or window.low
        if newest is None:
            return None
        slack = dt.timedelta(seconds=find_slack(window))
        return limit_reach(open_work.reach(newest, self.snapshot.wall_offset, slack), window)

    def _may_rise(self, before: OpenWork, after: OpenWork, window: Window) -> bool:
        """Returns whether the next sync needs the new checkpoint to start at the cursor.

        With the old checkpoint, it would read rows below the stored cursor; with the new one, it
        would not.
        """
        stored = window.stored_cursor
        old, new = (self._find_reach(work, window) for work in (before, after))
        if stored is None or old is None or new is None:
            return False
        return bool(old.order < stored.order <= new.order)

    def _is_replaced(self, table: SourceTable, window: Window) -> bool:
        before = (window.mark or {}).get(_IDENTITY)
        now = self.identities.get(table.ref.name)
        return bool(before and now and window.low is not None) and before != now

    def _is_clock_behind(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the database's clock has been set back since the last sync."""
        before = self._read_last_mark(table, window)
        if before is None or self.activities[table.ref.name].blind:
            return False
        return self.activities[table.ref.name].clock < before.clock

    def _read_last_mark(self, table: SourceTable, window: Window) -> OpenWork | None:
        if table.ref.name not in self.activities or window.low is None:
            return None
        return OpenWork.from_mark(window.mark)


_PLAIN = re.compile(r"[A-Za-z0-9_]+")
"""Matches names that InnoDB does not encode."""


def read_identity(
    connection: Connection, text: Callable[[str], str], schema: str, table: str
) -> str:
    """Returns the identity of a table: its server's identity and InnoDB's table id.

    The table id changes if the table is recreated, or rewritten by an ALTER. If the account lacks
    the PROCESS privilege, or if the table uses a different engine, the creation time is used
    instead of the table id. A partitioned table is identified only by its server, because its
    partitions change. A view is identified by its name and its SQL.
    """
    servers = connection.rows(
        "show global variables where variable_name in ('server_uid', 'server_uuid')"
    )
    parts = [" ".join(value or "" for _, value in servers)]
    where = f"table_schema = {text(schema)} and table_name = {text(table)}"
    tables = connection.rows(
        f"select engine, create_time, create_options from information_schema.tables where {where}"
    )
    for engine, created, options in tables:
        if engine is None:
            parts.append(_hash_view(connection, where))
            continue
        if "partitioned" in (options or ""):
            continue
        number = None
        if engine.lower() == "innodb" and _PLAIN.fullmatch(f"{schema}{table}"):
            number = _read_innodb_id(connection, text(f"{schema}/{table}"))
        parts.append(number or created or "")
    return " ".join(parts).strip()


def _hash_view(connection: Connection, where: str) -> str:
    """Returns a hash of a view's name and SQL, or an empty string if the table is not a view."""
    rows = connection.rows(
        "select concat(table_schema, '.', table_name, view_definition) "
        f"from information_schema.views where {where}"
    )
    # The loader computes the hash, because databases in FIPS mode forbid md5.
    hashes = [
        hashlib.md5(sql.encode(), usedforsecurity=False) for (sql,) in rows if sql is not None
    ]
    return "".join(digest.hexdigest() for digest in hashes)


def _read_innodb_id(connection: Connection, name: str) -> str | None:
    for listed in ("innodb_sys_tables", "innodb_tables"):  # MariaDB, MySQL
        try:
            rows = connection.rows(
                f"select table_id from information_schema.{listed} where name = {name}"
            )
        except ConnectionRefusedByServer:
            continue
        return rows[0][0] if rows else None
    return None
