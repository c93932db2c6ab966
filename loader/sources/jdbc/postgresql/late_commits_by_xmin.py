"""Finds PostgreSQL's late rows: rows below a window that the last sync may not have seen.

Where they come from: :mod:`loader.sources.jdbc.postgresql.continuity` and
:mod:`loader.sources.jdbc.postgresql.lineage`.
"""

from __future__ import annotations

from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import BY_HAND
from loader.sources.interface import SourceTable, Window, parse_bound
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.late_commits_interface import WITHIN, Moment
from loader.sources.jdbc.postgresql.continuity import DatabaseContinuity, TransactionMark
from loader.sources.jdbc.postgresql.lineage import Lineage, find_lowest, read_lineage
from loader.spark.error_translation import DatabaseError


class PostgresLateCommits:
    """Implements :class:`~loader.sources.jdbc.late_commits_interface.LateCommits` by xmin.

    Args:
        snapshot: the snapshot to find late rows in.
        transactions: the snapshot's; None if its database has none.
        blind: why the age of open transactions is unknown; empty if it is known.
    """

    def __init__(self, snapshot: Moment, transactions: TransactionMark | None, blind: str) -> None:
        self.snapshot = snapshot
        self.transactions = transactions
        self.blind = blind
        self.lineages: dict[str, Lineage] = {}
        self.added: dict[str, str] = {}

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads what the other methods need to know about a table; call it first.

        Raises:
            DatabaseError: if the table's cursors no longer mean the same.
        """
        if self.transactions is None:
            return
        name = self.snapshot.dialect.text(self.snapshot.source.relation(table.ref.native))
        self.lineages[table.ref.name] = read_lineage(connection, name)
        self._refuse_reused_numbers(table, window)
        if not table.ref.native.stored:
            return
        self.added[table.ref.name] = self._select_added(connection, table, window)

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns the mark for the next sync."""
        if self.transactions is None:
            return None
        own = self.lineages[table.ref.name].to_mark()
        if not table.ref.native.stored:  # a view may be recreated at any time, and is the same
            own = {name: own[name] for name in ("database", "view") if name in own}
        return {**self.transactions.to_mark(), **own}

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """Returns SQL that is true for late rows; None if there are none to look for.

        Looks for times from the start of the oldest open transaction on. If nothing tells how low
        cursors can be, checks who wrote each row, unless a lookback limits it. Once the lowest
        cursor is known (`lowest`), the cursor's index finds the rows again.
        """
        before, now = self._read_comparable_mark(table, window), self.transactions
        if self._has_moved(table, window):
            return "true"
        if before is None or now is None or window.cursor is None:
            return None
        column = self.snapshot.column(table, window.cursor.name)
        literal = self.snapshot.dialect.literal
        reach = self.reach(table, window)
        written = before.select_written_since(now, scan=reach is None)
        quiet = now.xmax <= before.xmin  # no transaction has written anything since
        same = before.compare_database(now) is DatabaseContinuity.SAME
        parts = [self.added[table.ref.name]]
        if reach is not None:
            above = f"{column} >= {literal(reach)}"
            parts.append(above if table.ref.native.writers else f"{above} and {written}")
        elif not same or not (quiet or (window.has_lookback and not before.is_clock_behind(now))):
            parts.append(written)
        found = " or ".join(f"({part})" for part in parts if part)
        if found and lowest is not None:
            above = f"{column} >= {literal(lowest)}"
            return above if window.is_exhaustive else f"{above} and ({found})"
        return found or None

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """Returns a cursor that no row of a transaction in flight can lie below, if known."""
        before, now = self._read_comparable_mark(table, window), self.transactions
        if before is None or now is None or window.cursor is None:
            return None
        if table.ref.native.writers:
            ids = [before.xmin]
            if _is_set_by_hand(window) and window.low is not None:
                ids.append(int(window.low.text))
            return Cursor(str(min(ids)), CursorType.INTEGER)
        return None if self._is_replicated(table, window) else before.reach(window.cursor.type, now)

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether to store the mark even if there are no new rows.

        Without it the next sync would read again what this one has read, or would not know what
        is in flight now: after `loader state set` there is no mark.
        """
        if self.transactions is None or window.low is None:
            return False
        before = self._read_last_mark(window)
        if before is None or _is_set_by_hand(window):
            return True
        if not table.ref.native.stored:
            return self._has_moved(table, window)
        if self.lineages[table.ref.name].is_changed(window.mark):
            return True
        if before.compare_database(
            self.transactions
        ) is not DatabaseContinuity.SAME or before.is_outlived(self.transactions):
            return True
        if before.is_clock_behind(self.transactions):
            return True
        if table.ref.native.writers:
            return before.xmin <= int(window.low.text) < self.transactions.xmin
        return before.open and not self.transactions.open

    def rewound(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the database may reuse numbers; if so, its highest one is stored."""
        before, now = self._read_last_mark(window), self.transactions
        if before is None or now is None or window.cursor is None:
            return False
        may_reuse = before.compare_database(now) is DatabaseContinuity.FAILED_OVER or (
            self._has_moved(table, window)
            and self.lineages[table.ref.name].is_redefined(window.mark)
        )
        return may_reuse and not window.cursor.type.is_time

    def notes(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """Returns warnings about late rows; the sync goes on."""
        is_time = window.cursor is not None and window.cursor.type.is_time
        if not self.snapshot.dialect.shares_snapshots:
            return ()
        if not table.ref.native.stored:
            redefined = self.lineages[table.ref.name].is_redefined(window.mark)
            what = "the view is another one than at" if redefined else "this is not the database of"
            moved = (
                f"{what} the last sync: all its rows are read; rows that it lacks stay in raw "
                "until a full refresh"
            )
            late = f"in a view or a table of another server, {WITHIN}"
            return (moved, late) if self._has_moved(table, window) else (late,)
        notes = []
        before = self._read_comparable_mark(table, window)
        continuity = (
            before.compare_database(self.transactions)
            if before and self.transactions
            else DatabaseContinuity.SAME
        )
        if continuity is DatabaseContinuity.BEHIND:
            notes.append(
                "this replica is behind the database that was read last: what it lacks comes with "
                "a later run"
            )
        elif continuity is not DatabaseContinuity.SAME:
            notes.append(
                f"the database was {continuity.value} since the last sync: rows written from the "
                "last sync on are read again; rows that it lost stay in raw until a full refresh"
            )
        elif before and self.lineages[table.ref.name].is_replaced(window.mark):
            notes.append(
                "columns have changed places since the last sync: all its rows are read"
                if self.lineages[table.ref.name].has_renamed_column(window.mark)
                else "another table has taken its name since the last sync: all its rows are read; "
                "rows that it lacks stay in raw until a full refresh"
            )
        if before and self.transactions and before.is_clock_behind(self.transactions) and is_time:
            notes.append("the database's clock was set back: all rows written since are looked for")
        exact = self.transactions is not None and not window.has_lookback
        if self.blind and is_time:
            scans = "each sync scans the table for rows that commit late"
            notes.append(f"{self.blind}: {scans if exact else WITHIN}")
        elif window.has_lookback and before and is_time and self._is_replicated(table, window):
            notes.append(f"logical replication writes this table: {WITHIN}")
        return tuple(notes)

    def _read_comparable_mark(self, table: SourceTable, window: Window) -> TransactionMark | None:
        """Returns the mark of the last sync, if it says which rows of a table come late."""
        return self._read_last_mark(window) if table.ref.native.stored else None

    def _read_last_mark(self, window: Window) -> TransactionMark | None:
        """Returns the mark of the last sync, if it can be compared with this one's."""
        if window.low is None or self.transactions is None:
            return None
        before = TransactionMark.from_mark(window.mark)
        if before is None or before.compare_database(self.transactions) is DatabaseContinuity.SAME:
            return before
        # In another database, only a cursor that was set by hand counts.
        return None if _is_set_by_hand(window) else before

    def _has_moved(self, table: SourceTable, window: Window) -> bool:
        """Returns whether a view is another one than at the last sync, or of another database.

        It is unknown which of its rows are older than that.
        """
        before = self._read_last_mark(window)
        if (
            table.ref.native.stored
            or before is None
            or self.transactions is None
            or _is_set_by_hand(window)
        ):
            return False
        continuity = before.compare_database(self.transactions)
        lineage = self.lineages[table.ref.name]
        another = lineage.elsewhere(window.mark) or lineage.is_redefined(window.mark)
        return another or continuity in (
            DatabaseContinuity.RESTORED,
            DatabaseContinuity.FAILED_OVER,
        )

    def _is_replicated(self, table: SourceTable, window: Window) -> bool:
        """Returns whether rows come from another server, or did at the last sync."""
        now = self.lineages[table.ref.name].replicated
        return now or bool((window.mark or {}).get("replicated"))

    def _select_added(self, connection: Connection, table: SourceTable, window: Window) -> str:
        """Returns SQL for the rows of partitions and tables added since the last sync.

        The rows of a new partition mostly lie in the window, and cost nothing. If they do not, a
        condition on their lowest cursor lets the database still use the index for the others.
        """
        tables = self.lineages[table.ref.name].list_added(window.mark)
        if not tables or window.cursor is None or self._read_comparable_mark(table, window) is None:
            return ""
        if tables == self.lineages[table.ref.name].tables:
            return "true"
        condition = f"tableoid in ({', '.join(map(str, sorted(tables)))})"
        type_ = window.cursor.type
        if table.ref.native.writers or type_ is CursorType.STRING:
            return condition
        lowest_of = self.snapshot.ends(table, window.cursor)[0]
        values = find_lowest(connection, tables, lowest_of)
        if values is None:
            return condition
        cursors = [
            c for c in (parse_bound(v, type_, table, window) for v in values) if c is not None
        ]
        bottom = min(cursors, key=lambda cursor: cursor.order, default=None)
        if bottom is None or (window.low is not None and bottom.order >= window.low.order):
            return ""
        column = self.snapshot.column(table, window.cursor.name)
        return f"{condition} and {column} >= {self.snapshot.dialect.literal(bottom)}"

    def _refuse_reused_numbers(self, table: SourceTable, window: Window) -> None:
        before = self._read_last_mark(window)
        if before is None or self.transactions is None or window.cursor is None:
            return
        continuity = before.compare_database(self.transactions)
        elsewhere = self.lineages[table.ref.name].elsewhere(window.mark)
        if elsewhere and self._has_moved(table, window) and continuity is DatabaseContinuity.SAME:
            continuity = DatabaseContinuity.RESTORED  # another one on the same server
        if continuity is DatabaseContinuity.BEHIND and not window.cursor.type.is_time:
            raise DatabaseError(
                "this read replica is behind the database that was read last, so the cursor "
                f"{window.cursor.name} would skip what it still lacks",
                where=f"table {self.snapshot.source.name}.{table.ref.lake_name}",
                remedy="Run again once it has caught up",
            )
        by_writer = table.ref.native.writers
        if continuity is DatabaseContinuity.RESTORED and not window.cursor.type.is_time:
            what = "this is not the database of the last sync: it was restored or replaced"
        elif continuity is DatabaseContinuity.FAILED_OVER and by_writer:
            what = "the database failed over since the last sync"
        else:
            return
        name = f"{self.snapshot.source.name}.{table.ref.lake_name}"
        shown = window.low.text if window.low else "?"
        accept = "" if by_writer else f"; or accept it with `loader state set {name} {shown}`"
        raise DatabaseError(
            f"{what}; it may reuse values of {window.cursor.name} that are below the stored "
            f"cursor, {shown}",
            where=f"table {name}",
            remedy=f"`loader run --full-refresh --select {name}`{accept}",
        )


def _is_set_by_hand(window: Window) -> bool:
    """Returns whether the cursor was set by hand since the mark was stored."""
    return bool((window.mark or {}).get(BY_HAND))
