"""A table as its source has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader.names import in_the_lake

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableRef:
    """A table as a source lists it.

    Attributes:
        name: its name in specs and messages: bare in the default schema, else qualified.
        native: whatever the connector needs to find it again.
        kind: ``table`` or ``view``; wildcards choose tables only.
    """

    name: str
    native: Any = None
    kind: str = "table"

    @property
    def lake_name(self) -> str:
        """The raw table's name; see :mod:`loader.names`."""
        return in_the_lake(self.name)


@dataclass(frozen=True)
class SourceTable:
    """A table's description.

    Attributes:
        ref: the table.
        schema: its columns as the DataFrame of :meth:`Snapshot.read` has them.
        primary_key: from the source's own metadata; empty where it declares none.
        cursor_field: the cursor that the connector defines by itself, if any.
        indexed: columns that lead an index, so that a window on them is cheap.
        collated: text columns, of those that may be the cursor, which the source does not order by
            their bytes.
        comment: what the source says that the table is; empty where it says nothing.
        column_comments: likewise, by column.
    """

    ref: TableRef
    schema: StructType
    primary_key: tuple[str, ...] = ()
    cursor_field: str | None = None
    indexed: frozenset[str] = frozenset()
    collated: frozenset[str] = frozenset()
    comment: str = ""
    column_comments: Mapping[str, str] = field(default_factory=dict)
