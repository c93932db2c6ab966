"""Collects codegen's facts about a table: from the spec, the source and the lake."""

from __future__ import annotations

from dataclasses import dataclass

from loader.rows.window import CursorField

# What the loader's own columns mean. Other columns have only their source's descriptions.
OWN_COLUMNS = {
    "_cq_source_name": "The source's name in loader.yml.",
    "_cq_sync_time": "When the sync that brought the row began, UTC; one time for a whole batch.",
    "_cq_batch": "The table's batch number: 1, 2, 3 and so on, one per commit.",
    "_cq_seq": "The row's position within its batch; it grows, and may leave numbers out.",
    "_cq_row_hash": "A hash of the source's columns: equal rows have equal ones.",
    "_cq_deleted": "Whether the row says that its key was deleted.",
    "_cq_generation": "Up by one where a read overrules what cursors say, as a full refresh does.",
}


@dataclass(frozen=True)
class Column:
    """A column; its description is empty if there is none."""

    name: str
    type: str
    description: str = ""


@dataclass(frozen=True)
class Table:
    """A raw table, as dbt should know it.

    Attributes:
        source: the source's name in the spec.
        asked: the table's name in the spec, which `--select` and `--history` match.
        name: the raw table's name, exactly.
        schema: its namespace.
        key: the primary key; empty if there is none.
        cursor: the cursor column; None for a full refresh without one.
        incremental: whether only changes are read; else everything is read every time.
        keeps_redeliveries: whether the spec says to append redelivered rows.
        state_in_lake: whether its cursor is in the state table beside it, where tests find it.
        description: the source's own comment on the table.
    """

    source: str
    asked: str
    name: str
    schema: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    cursor: CursorField | None = None
    incremental: bool = True
    keeps_redeliveries: bool = False
    state_in_lake: bool = True
    description: str = ""

    @property
    def full_name(self) -> str:
        """``<source>.<table>``, as in state and messages."""
        return f"{self.source}.{self.name}"

    @property
    def selectable(self) -> str:
        """The name that patterns of ``--select`` and ``--history`` match."""
        return f"{self.source}.{self.asked}"
