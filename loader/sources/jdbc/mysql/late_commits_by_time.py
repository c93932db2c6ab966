"""MariaDB and MySQL: late rows, from work that was open at the last sync or of a replaced table.

A table that was emptied by TRUNCATE restarts its numbers, one that was renamed into another's place
brings rows from before the last sync, and a server that was restored or failed over gives out
numbers again. None of these rows need lie above the stored cursor. So each sync stores the identity
of the table and its server; if it changes, all rows of the table are read once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from loader.rows.cursor import Cursor
from loader.sources.interface import SourceTable, Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.late_commits_interface import WITHIN, Moment
from loader.sources.jdbc.mysql.open_transactions import (
    OpenTransactions,
    OpenWork,
    TransactionWatcher,
)
from loader.spark.error_translation import ConnectionRefusedByServer

_STANDS_FOR = "stands_for"


class MysqlLateCommits:
    """Implements :class:`~loader.sources.jdbc.late_commits_interface.LateCommits` by time.

    Args:
        snapshot: the snapshot to find late rows in.
    """

    def __init__(self, snapshot: Moment, watcher: TransactionWatcher) -> None:
        self.snapshot = snapshot
        self.watcher = watcher
        self.activities: dict[str, OpenTransactions] = {}
        self.remembered: dict[str, OpenWork] = {}
        self.identities: dict[str, str] = {}

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads the open work, before the clock and the rows."""
        native = table.ref.native
        text, schema = self.snapshot.dialect.text, native.catalog or ""
        self.identities[table.ref.name] = read_identity(connection, text, schema, native.table)
        if native.stored and window.cursor is not None and window.cursor.type.is_time:
            seen = self.watcher.read_activity(connection, native.catalog or "", native.table)
            self.activities[table.ref.name] = seen

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """Returns a cursor that no late row can lie below."""
        before = self._before(table, window)
        if before is None or window.low is None:
            return None
        return before.reach(window.low, self.snapshot.wall_offset)

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """Returns SQL for the range below the window in which late rows can lie."""
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
        """Returns the mark for the next sync; None if open work is not visible."""
        seen, now = self.activities.get(table.ref.name), self.identities.get(table.ref.name)
        known = {_STANDS_FOR: now} if now else None
        if seen is None or seen.blind:
            return known
        until = self.snapshot.read_clock(connection)
        self.remembered[table.ref.name] = seen.to_open_work(self._before(table, window), until)
        return {**self.remembered[table.ref.name].to_mark(), **(known or {})}

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the rows that the last sync expected have arrived."""
        now = self.identities.get(table.ref.name)
        if now and window.low is not None and (window.mark or {}).get(_STANDS_FOR) != now:
            return True
        if self._is_clock_behind(table, window):
            return True
        before, after = self._before(table, window), self.remembered.get(table.ref.name)
        return before is not None and after is not None and before.is_settled(after)

    def rewound(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the table's numbers may have restarted."""
        is_time = window.cursor is not None and window.cursor.type.is_time
        return not is_time and self._is_replaced(table, window)

    def notes(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """Returns why late rows may be missed, if they may."""
        replaced = self._is_replaced(table, window)
        what = (
            "the table was replaced since the last sync (TRUNCATE, RENAME, an ALTER that rebuilt "
            "it, another server)"
            if table.ref.native.stored
            else "the view is another one than at the last sync, or of another server"
        )
        lacks = "all its rows are read; rows that it lacks stay in raw until a full refresh"
        notes = (f"{what}: {lacks}",) * replaced
        if self._is_clock_behind(table, window):
            notes += ("the database's clock was set back: all its rows are read",)
        if window.cursor is None or not window.cursor.type.is_time:
            return notes
        if not table.ref.native.stored:
            return (*notes, f"in a view, {WITHIN}")
        blind = self.activities[table.ref.name].blind
        return (*notes, f"{blind}: {WITHIN}") if blind else notes

    def _is_replaced(self, table: SourceTable, window: Window) -> bool:
        before = (window.mark or {}).get(_STANDS_FOR)
        now = self.identities.get(table.ref.name)
        return bool(before and now and window.low is not None) and before != now

    def _is_clock_behind(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the clock is behind that of the last sync: rows may have any time."""
        before = self._before(table, window)
        if before is None or self.activities[table.ref.name].blind:
            return False
        return self.activities[table.ref.name].clock < before.clock

    def _before(self, table: SourceTable, window: Window) -> OpenWork | None:
        if table.ref.name not in self.activities or window.low is None:
            return None
        return OpenWork.from_mark(window.mark)


_PLAIN = re.compile(r"[A-Za-z0-9_]+")
"""Names that InnoDB's own list of tables has as they are."""


def read_identity(
    connection: Connection, text: Callable[[str], str], schema: str, table: str
) -> str:
    """Returns the identity behind a name: the server, and InnoDB's id of the table.

    An id changes whenever a table is recreated, also by an ALTER that rewrites it. Reading it takes
    the privilege PROCESS; without it, and for other engines, the creation time is used. Of a
    partitioned table only the server is known: it gets new partitions every day. A view is
    identified by its name and its SQL.

    Args:
        text: writes a string literal.
    """
    servers = connection.rows(
        "show global variables where variable_name in ('server_uid', 'server_uuid')"
    )
    found = [" ".join(value or "" for _, value in servers)]
    where = f"table_schema = {text(schema)} and table_name = {text(table)}"
    tables = connection.rows(
        f"select engine, create_time, create_options from information_schema.tables where {where}"
    )
    for engine, created, options in tables:
        if engine is None:
            found.append(_hash_view(connection, where))
            continue
        if "partitioned" in (options or ""):
            continue
        number = None
        if engine.lower() == "innodb" and _PLAIN.fullmatch(f"{schema}{table}"):
            number = _read_innodb_id(connection, text(f"{schema}/{table}"))
        found.append(number or created or "")
    return " ".join(found).strip()


def _hash_view(connection: Connection, where: str) -> str:
    """Returns a hash of a view's name and SQL; empty if it is no view."""
    rows = connection.rows(
        "select concat(table_schema, '.', table_name, view_definition) "
        f"from information_schema.views where {where}"
    )
    # Not by the database's own md5, which some do not allow (FIPS).
    hashes = [
        hashlib.md5(sql.encode(), usedforsecurity=False) for (sql,) in rows if sql is not None
    ]
    return "".join(one.hexdigest() for one in hashes)


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
