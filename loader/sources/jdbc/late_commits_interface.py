"""The interface for late rows: rows below the window that were committed after the last sync.

PostgreSQL stores in each row which transaction wrote it (`postgresql/late_commits_by_xmin.py`).
MariaDB and MySQL list the transactions that are open (`mysql/late_commits_by_time.py`).
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

from loader.rows.cursor import Cursor
from loader.sources.interface import CursorField, SourceTable, Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect

ONLY_WITHIN_LOOKBACK = "rows that commit late are found within the lookback only"


class SnapshotQueries(Protocol):
    """The methods of a snapshot that the search for late rows needs."""

    source: Database
    dialect: Dialect

    @property
    def wall_offset(self) -> int:
        """How many seconds the database's wall clock is ahead of UTC."""

    def column(self, table: SourceTable, name: str) -> str:
        """Returns SQL for the stored value of a column."""

    def ends(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """Returns SQL for the lowest and the highest cursor, with all digits."""

    def read_clock(self, connection: Connection) -> dt.datetime:
        """Reads the database's clock, in UTC."""


class LateCommits(Protocol):
    """Finds the late rows in one snapshot of a database; call the methods in this order."""

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Reads facts about a table for the other methods; call it first.

        Raises:
            DatabaseError: if the stored cursor does not match the database any more.
        """

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """Returns a lower bound for the cursors of late rows; None if there is none."""

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """Returns SQL that is true for late rows; None if there can be none.

        Args:
            lowest: the lowest cursor of a late row, if it has been read.
        """

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns the mark to store for the next sync; call it after the bounds are read."""

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether to store the mark even if there are no new rows."""

    def may_reuse_numbers(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the database may reuse numbers.

        If so, the state stores the highest number in the table, even if it is lower than before.
        """

    def list_warnings(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """Returns warnings about late rows that do not stop the sync."""
