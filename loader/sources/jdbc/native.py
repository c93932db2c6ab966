"""Where a table of a database is, and what must be known to read it."""

from __future__ import annotations

from dataclasses import dataclass

from loader.sources.jdbc.doubtful import Doubt


@dataclass(frozen=True)
class Native:
    """Where a table is: its catalog, schema and name, exactly as the database has them.

    Attributes:
        stored: its rows lie in this database: no view, no foreign table.
        columns: the columns' names.
        writers: whether the last of them is PostgreSQL's system column `xmin`.
        comment: the database's comment on the table.
        doubts: columns with values that the lake may be unable to hold.
        types: what columns are read as in place of the types that Spark would choose.
    """

    catalog: str | None
    schema: str | None
    table: str
    stored: bool = True
    columns: tuple[str, ...] = ()
    writers: bool = False
    comment: str = ""
    doubts: tuple[Doubt, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
