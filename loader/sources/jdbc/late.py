"""Rows below a window that the last sync may not have seen: what every database is asked of them.

PostgreSQL knows who wrote a row (:mod:`loader.sources.jdbc.postgresql.late_rows`); others tell what
was open while a table was read (:mod:`loader.sources.jdbc.late_work`).
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

from loader.rows.cursor import Cursor
from loader.sources import CursorField, SourceTable, Window
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect

WITHIN = "rows that commit late are found within the lookback only"


class Moment(Protocol):
    """The snapshot whose late rows are asked for."""

    source: Database
    dialect: Dialect
    wall_offset: int

    def column(self, table: SourceTable, name: str) -> str:
        """SQL of a column, as the database has it."""

    def ends(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """SQL of the lowest and the highest cursor."""

    def now(self, connection: Connection) -> dt.datetime:
        """The database's clock, in UTC."""


class Late(Protocol):
    """What one snapshot of a database knows of late rows; asked in this order."""

    def look(self, connection: Connection, table: SourceTable, window: Window) -> None:
        """Asks what all else needs to know of a table; to be called before all else."""

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        """A cursor that no late row can lie below; None where none is known."""

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """SQL that is true of late rows; None where there are none to look for.

        Args:
            lowest: the lowest cursor among them, once it is found.
        """

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """What the next sync must know; asked once the bounds are read."""

    def settled(self, table: SourceTable, window: Window) -> bool:
        """Whether the mark is worth storing though nothing is new."""

    def rewound(self, table: SourceTable, window: Window) -> bool:
        """Whether the database may give out numbers again; then its highest one counts."""

    def notes(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        """What a user should know of late rows, though the sync goes on."""
