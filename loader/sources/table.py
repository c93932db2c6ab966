"""A source's description of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from loader.names import in_the_lake

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableRef:
    """A table as a source lists it.

    Attributes:
        name: its name in specs and messages: bare in the default schema, else qualified.
        native: the connector's own handle of the table.
        kind: ``table`` or ``view``; wildcards choose tables only.
        origin: its unambiguous name in the source, if `name` may come to mean another table: with
            the schema, quoted. Empty is `name`.
    """

    name: str
    native: Any = None
    kind: str = "table"
    origin: str = ""

    @property
    def place(self) -> str:
        """Its unambiguous name in the source."""
        return self.origin or self.name

    @property
    def key(self) -> tuple[str, str]:
        """Its identity among all tables of its source."""
        return self.name, self.origin

    @property
    def lake_name(self) -> str:
        """The raw table's name; see :mod:`loader.names`."""
        return in_the_lake(self.name)


class Progress(Enum):
    """The way in which a source resumes where the last sync ended."""

    CURSOR = "cursor"
    """The loader asks for the rows at or above a cursor, and each key comes as it is now."""
    MARK = "mark"
    """The connector goes on from its mark, in its own way; rows may come again, also old ones."""
    WHOLE = "whole"
    """Every read delivers all rows."""


@dataclass(frozen=True)
class SourceTable:
    """A table's description.

    Attributes:
        ref: the table.
        schema: its columns as the DataFrame of :meth:`Snapshot.read` has them.
        primary_key: from the source's own metadata; empty if it declares none.
        keyless: why there is none although the source declares one; empty if there is no more to
            say.
        cursor_field: the cursor that the connector itself defines, if any.
        indexed: columns that lead an index, so that a window on them is cheap.
        system_cursors: possible cursors that are not among the columns.
        collated: text columns that may be the cursor and that the source does not order by bytes.
        comment: the source's comment on the table; empty if there is none.
        column_comments: the source's comments on its columns, by column.
        progress: how it goes on; only with :attr:`Progress.CURSOR` it needs a cursor.
    """

    ref: TableRef
    schema: StructType
    primary_key: tuple[str, ...] = ()
    keyless: str = ""
    cursor_field: str | None = None
    system_cursors: tuple[str, ...] = ()
    indexed: frozenset[str] = frozenset()
    collated: frozenset[str] = frozenset()
    comment: str = ""
    column_comments: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = Progress.CURSOR
