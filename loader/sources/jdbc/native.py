"""Where a table is in a database, and what the connector needs to read it."""

from __future__ import annotations

from dataclasses import dataclass

from loader.sources.jdbc.doubtful import Doubt


@dataclass(frozen=True)
class Native:
    """A table's catalog, schema and name, exactly as the database has them.

    Attributes:
        stored: its rows are stored in this database: it is not a view or a foreign table.
        columns: the columns' names.
        writers: whether the last column is PostgreSQL's system column `xmin`.
        comment: the database's comment on the table.
        doubts: columns with values that the lake may be unable to hold.
        clocks: positions of the columns that are times of day.
        types: columns, and the types to read them as instead of those that Spark would choose.
    """

    catalog: str | None
    schema: str | None
    table: str
    stored: bool = True
    columns: tuple[str, ...] = ()
    writers: bool = False
    comment: str = ""
    doubts: tuple[Doubt, ...] = ()
    clocks: tuple[int, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
