"""Late rows from work that was open at the last sync, and the mark for the next sync.

Also the rows that come with a table: see :mod:`loader.sources.jdbc.table_identity`.
"""

from __future__ import annotations

from typing import Any

from loader.rows.cursor import Cursor
from loader.sources import SourceTable, Window
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.late_commits import WITHIN, Moment
from loader.sources.jdbc.open_transactions import OpenTransactions, OpenWork, TransactionWatcher
from loader.sources.jdbc.table_identity import standing

_STANDS_FOR = "stands_for"


class LateWork:
    """Finds late rows by the open work; see :class:`loader.sources.jdbc.late_commits.LateCommits`.

    Args:
        snapshot: the snapshot to find late rows in.
    """

    def __init__(self, snapshot: Moment, lookout: TransactionWatcher) -> None:
        self.snapshot = snapshot
        self.lookout = lookout
        self.activities: dict[str, OpenTransactions] = {}
        self.remembered: dict[str, OpenWork] = {}
        self.standings: dict[str, str] = {}

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads the open work, before the clock and the rows."""
        native = table.ref.native
        text, schema = self.snapshot.dialect.text, native.catalog or ""
        self.standings[table.ref.name] = standing(connection, text, schema, native.table)
        if native.stored and window.cursor is not None and window.cursor.type.is_time:
            seen = self.lookout.read_activity(connection, native.catalog or "", native.table)
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
        seen, now = self.activities.get(table.ref.name), self.standings.get(table.ref.name)
        known = {_STANDS_FOR: now} if now else None
        if seen is None or seen.blind:
            return known
        until = self.snapshot.now(connection)
        self.remembered[table.ref.name] = seen.to_open_work(self._before(table, window), until)
        return {**self.remembered[table.ref.name].to_mark(), **(known or {})}

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the rows that the last sync expected have arrived."""
        now = self.standings.get(table.ref.name)
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
        told = (f"{what}: {lacks}",) * replaced
        if self._is_clock_behind(table, window):
            told += ("the database's clock was set back: all its rows are read",)
        if window.cursor is None or not window.cursor.type.is_time:
            return told
        if not table.ref.native.stored:
            return (*told, f"in a view, {WITHIN}")
        blind = self.activities[table.ref.name].blind
        return (*told, f"{blind}: {WITHIN}") if blind else told

    def _is_replaced(self, table: SourceTable, window: Window) -> bool:
        before = (window.mark or {}).get(_STANDS_FOR)
        now = self.standings.get(table.ref.name)
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
