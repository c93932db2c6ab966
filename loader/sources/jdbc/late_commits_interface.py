"""The interface for finding late rows.

Late rows were committed after the last sync, but their cursors are below the window. In PostgreSQL,
they are found by the transaction id that each row contains (`postgresql/late_commits_by_xmin.py`).
In MariaDB and MySQL, they are found with the list of open transactions
(`mysql/late_commits_by_time.py`).
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

from loader.formatting import format_duration
from loader.rows.clock_slack import DEFAULT_SLACK
from loader.rows.cursor import Cursor
from loader.sources.interface import CursorField, SourceTable, Window
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect

ONLY_WITHIN_LOOKBACK = "rows that commit late are found only within the lookback"


def describe_range(window: Window) -> str:
    """Describes which late rows are found by a window that starts below the stored cursor."""
    if window.slack is None or window.has_lookback:
        return ONLY_WITHIN_LOOKBACK
    default = format_duration(DEFAULT_SLACK)
    return (
        f"rows that commit late are found only if they are at most {default} below the stored "
        f"cursor, plus the unit to which all times are truncated. A lookback replaces the {default}"
    )


class SnapshotQueries(Protocol):
    """The snapshot methods that the search for late rows uses."""

    source: Database
    dialect: Dialect

    @property
    def wall_offset(self) -> int:
        """The UTC offset in seconds of the database's wall clock."""

    def column(self, table: SourceTable, name: str) -> str:
        """Returns SQL for the stored value of a column."""

    def ends(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """Returns SQL for the lowest and the highest cursor, with all digits."""

    def read_ends(
        self, connection: Connection, cursor: CursorField, sql: str
    ) -> list[tuple[str | None, ...]]:
        """Runs a query that selects :meth:`ends` and possibly other numbers and timestamps."""

    def read_clock(self, connection: Connection) -> dt.datetime:
        """Reads the database's clock in UTC."""


class LateCommits(Protocol):
    """A search for late rows in one snapshot. Call its methods in the order given here."""

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Prepares the search for late rows in a table.

        Raises:
            DatabaseError: if the stored cursor is no longer valid, for example because the database
                was restored.
        """

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """Returns a lower bound for the cursors of late rows, or None if there is none."""

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """Returns an SQL condition that selects late rows, or None if there cannot be any.

        Args:
            lowest: the lowest cursor of a late row; None if it has not been read.
        """

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns the checkpoint for the next sync. Must be called after the bounds are read."""

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the checkpoint must be stored even if there are no new rows."""

    def may_reuse_numbers(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the database may reuse numeric cursors.

        If so, the state stores the table's highest cursor, even if it is lower than before.
        """

    def find_complete_until(self, table: SourceTable, window: Window) -> dt.datetime | None:
        """Returns a time up to which all committed rows are in the raw table or in this window.

        The time is by the database's clock, in UTC. Returns None if it is unknown.
        """

    def find_excluded(self, table: SourceTable) -> tuple[int, str]:
        """Counts the rows that may have stopped matching the `where` option.

        These rows were written after the last sync and do not match the option, but the raw table
        may contain earlier versions that matched. Also returns SQL that selects these rows.
        """

    def list_warnings(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """Returns warnings about late rows."""
