"""Rows of PostgreSQL below a window that the last sync may not have seen; the mark for the next.

What brings them: :mod:`loader.sources.jdbc.postgresql.horizon` and
:mod:`loader.sources.jdbc.postgresql.lineage`.
"""

from __future__ import annotations

from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import BY_HAND
from loader.runtime.database_errors import DatabaseError
from loader.sources import SourceTable, Window, edge
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.late import WITHIN, Moment
from loader.sources.jdbc.postgresql.horizon import Fate, Horizon
from loader.sources.jdbc.postgresql.lineage import Lineage, lineage, lowest


class LateRows:
    """What one snapshot knows of late rows.

    Args:
        snapshot: whose tables they are.
        horizon: of that snapshot; None where its database has none.
        blind: why it does not know how old open transactions are, where it does not.
    """

    def __init__(self, snapshot: Moment, horizon: Horizon | None, blind: str) -> None:
        self.snapshot = snapshot
        self.horizon = horizon
        self.blind = blind
        self.lineages: dict[str, Lineage] = {}
        self.added: dict[str, str] = {}

    def look(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Asks what all else needs to know of a table; to be called before all else.

        Raises:
            DatabaseError: where its cursor means something else now.
        """
        if self.horizon is None or not table.ref.native.stored:
            return
        self._same_database(table, window)
        name = self.snapshot.dialect.text(self.snapshot.source.relation(table.ref.native))
        self.lineages[table.ref.name] = lineage(connection, name)
        self.added[table.ref.name] = self._added(connection, table, window)

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """What the next sync must know."""
        if self.horizon is None or not table.ref.native.stored:
            return None
        return {**self.horizon.to_mark(), **self.lineages[table.ref.name].to_mark()}

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """SQL that is true of such rows; None where there are none to look for.

        Times are sought from the oldest transaction's on. Where nothing tells how low cursors can
        be, all rows are asked who wrote them, unless a lookback bounds it. Once the lowest has
        been found, `lowest`, the cursor's index finds them again.
        """
        before, now = self._before(table, window), self.horizon
        if before is None or now is None or window.cursor is None:
            return None
        column = self.snapshot.column(table, window.cursor.name)
        literal = self.snapshot.dialect.literal
        reach = self.reach(table, window)
        written = before.written_since(now)
        quiet = now.xmax <= before.xmin  # no transaction has written anything since
        same = before.fate(now) is Fate.SAME
        parts = [self.added[table.ref.name]]
        if reach is not None:
            above = f"{column} >= {literal(reach)}"
            parts.append(above if table.ref.native.writers else f"{above} and {written}")
        elif not same or not (quiet or window.bounded):
            parts.append(written)
        found = " or ".join(f"({part})" for part in parts if part)
        if found and lowest is not None:
            above = f"{column} >= {literal(lowest)}"
            return above if window.whole else f"{above} and ({found})"
        return found or None

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """A cursor that no row of a transaction in flight can lie below; None where none is."""
        before = self._before(table, window)
        if before is None or window.cursor is None:
            return None
        if table.ref.native.writers:
            ids = [before.xmin]
            if _by_hand(window) and window.low is not None:
                ids.append(int(window.low.text))
            return Cursor(str(min(ids)), CursorType.INTEGER)
        return None if self._replicated(table, window) else before.reach(window.cursor.type)

    def settled(self, table: SourceTable, window: Window) -> bool:
        """Whether the mark is worth storing though nothing is new.

        Without it the next sync would read again what this one has read, or would not know what
        is in flight now: after `loader state set` there is no mark.
        """
        if self.horizon is None or not table.ref.native.stored or window.low is None:
            return False
        before = self._before(table, window)
        if before is None or _by_hand(window):
            return True
        if self.lineages[table.ref.name].changed(window.mark):
            return True
        if before.fate(self.horizon) is not Fate.SAME or before.outlived(self.horizon):
            return True
        if table.ref.native.writers:
            return before.xmin <= int(window.low.text) < self.horizon.xmin
        return before.open and not self.horizon.open

    def rewound(self, table: SourceTable, window: Window) -> bool:
        """Whether the database may give out numbers again; then its highest one counts."""
        before, now = self._before(table, window), self.horizon
        if before is None or now is None or window.cursor is None:
            return False
        return before.fate(now) is Fate.FAILED_OVER and not window.cursor.type.is_time

    def notes(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """What a user should know of late rows, though the sync goes on."""
        is_time = window.cursor is not None and window.cursor.type.is_time
        if not self.snapshot.dialect.shares_snapshots:
            return ()
        if not table.ref.native.stored:
            return (f"of a view, {WITHIN}",) if is_time else ()
        notes = []
        before = self._before(table, window)
        fate = before.fate(self.horizon) if before and self.horizon else Fate.SAME
        if fate is not Fate.SAME:
            notes.append(
                f"the database was {fate.value} since the last sync: what was written from the "
                "last sync on is read again; what it lost stays in raw until a full refresh"
            )
        elif before and self.lineages[table.ref.name].replaced(window.mark):
            notes.append(
                "another table has taken its name since the last sync: all its rows are read; "
                "what it lacks stays in raw until a full refresh"
            )
        exact = self.horizon is not None and not window.bounded
        if self.blind and is_time:
            scans = "each sync scans the table for rows that commit late"
            notes.append(f"{self.blind}: {scans if exact else WITHIN}")
        elif window.bounded and before and is_time and self._replicated(table, window):
            notes.append(f"logical replication writes this table: {WITHIN}")
        return tuple(notes)

    def _before(self, table: SourceTable, window: Window) -> Horizon | None:
        """The horizon of the last sync, where it can be held against this one's."""
        if not table.ref.native.stored or window.low is None or self.horizon is None:
            return None
        before = Horizon.from_mark(window.mark)
        if before is None or before.fate(self.horizon) is Fate.SAME:
            return before
        # Of another database only the cursor is told, by whoever has set it.
        return None if _by_hand(window) else before

    def _replicated(self, table: SourceTable, window: Window) -> bool:
        """Whether rows come from another server, or did at the last sync."""
        now = self.lineages[table.ref.name].replicated
        return now or bool((window.mark or {}).get("replicated"))

    def _added(self, connection: Connection, table: SourceTable, window: Window) -> str:
        """SQL of the rows that came with tables which were not there at the last sync.

        The rows of a new partition mostly lie in the window, and cost nothing. Where they do not,
        their lowest cursor keeps the index of the others in use.
        """
        tables = self.lineages[table.ref.name].added(window.mark)
        if not tables or window.cursor is None or self._before(table, window) is None:
            return ""
        if tables == self.lineages[table.ref.name].tables:
            return "true"
        condition = f"tableoid in ({', '.join(map(str, sorted(tables)))})"
        type_ = window.cursor.type
        if table.ref.native.writers or type_ is CursorType.STRING:
            return condition
        lowest_of = self.snapshot.ends(table, window.cursor)[0]
        values = lowest(connection, tables, lowest_of)
        if values is None:
            return condition
        cursors = [c for c in (edge(v, type_, table, window) for v in values) if c is not None]
        bottom = min(cursors, key=lambda cursor: cursor.order, default=None)
        if bottom is None or (window.low is not None and bottom.order >= window.low.order):
            return ""
        column = self.snapshot.column(table, window.cursor.name)
        return f"{condition} and {column} >= {self.snapshot.dialect.literal(bottom)}"

    def _same_database(self, table: SourceTable, window: Window) -> None:
        before = self._before(table, window)
        if before is None or self.horizon is None or window.cursor is None:
            return
        fate = before.fate(self.horizon)
        by_writer = table.ref.native.writers
        if fate is Fate.RESTORED and not window.cursor.type.is_time:
            what = "the database is not the one of the last sync: restored, or another one"
        elif fate is Fate.FAILED_OVER and by_writer:
            what = "the database failed over since the last sync"
        else:
            return
        name = f"{self.snapshot.source.name}.{table.ref.lake_name}"
        shown = window.low.text if window.low else "?"
        accept = "" if by_writer else f"; or accept it with `loader state set {name} {shown}`"
        raise DatabaseError(
            f"{what}; it may give out values of {window.cursor.name} again that are below the "
            f"stored cursor, {shown}",
            where=f"table {name}",
            remedy=f"`loader run --full-refresh --select {name}`{accept}",
        )


def _by_hand(window: Window) -> bool:
    """Whether somebody has set the cursor since the mark was stored."""
    return bool((window.mark or {}).get(BY_HAND))
