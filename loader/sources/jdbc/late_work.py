"""Late rows from work that was open at the last sync, and the mark for the next sync."""

from __future__ import annotations

from typing import Any

from loader.rows.cursor import Cursor
from loader.sources import SourceTable, Window
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.late import WITHIN, Moment
from loader.sources.jdbc.open_work import Activity, Lookout, OpenWork


class LateWork:
    """Finds late rows by the open work; see :class:`loader.sources.jdbc.late.Late`.

    Args:
        snapshot: the snapshot to find late rows in.
    """

    def __init__(self, snapshot: Moment, lookout: Lookout) -> None:
        self.snapshot = snapshot
        self.lookout = lookout
        self.activities: dict[str, Activity] = {}
        self.remembered: dict[str, OpenWork] = {}

    def look(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads the open work, before the clock and the rows."""
        native = table.ref.native
        if native.stored and window.cursor is not None and window.cursor.type.is_time:
            seen = self.lookout.seen(connection, native.catalog or "", native.table)
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
        if reach is None or window.cursor is None or window.low is None:
            return None
        column = self.snapshot.column(table, window.cursor.name)
        literal = self.snapshot.dialect.literal
        return f"{column} >= {literal(reach)} and {column} < {literal(window.low)}"

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns what the next sync must know; None if the open work cannot be seen."""
        seen = self.activities.get(table.ref.name)
        if seen is None or seen.blind:
            return None
        until = self.snapshot.now(connection)
        self.remembered[table.ref.name] = seen.remembered(self._before(table, window), until)
        return self.remembered[table.ref.name].to_mark()

    def settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the rows that the last sync expected have arrived."""
        before, after = self._before(table, window), self.remembered.get(table.ref.name)
        return before is not None and after is not None and before.settled(after)

    def rewound(self, table: SourceTable, window: Window) -> bool:
        """Returns False: these databases do not show it."""
        return False

    def notes(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """Returns why late rows may be missed, if they may."""
        if window.cursor is None or not window.cursor.type.is_time:
            return ()
        if not table.ref.native.stored:
            return (f"in a view, {WITHIN}",)
        blind = self.activities[table.ref.name].blind
        return (f"{blind}: {WITHIN}",) if blind else ()

    def _before(self, table: SourceTable, window: Window) -> OpenWork | None:
        if table.ref.name not in self.activities or window.low is None:
            return None
        return OpenWork.from_mark(window.mark)
