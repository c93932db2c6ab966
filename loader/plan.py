"""What a run intends for one table: spec and source brought together, before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from loader.cursor import Cursor, CursorType
from loader.errors import TableError
from loader.options import TableOptions
from loader.plugins import SourceSpec
from loader.sources import SourceTable, TableRef
from loader.window import CursorField

INCREMENTAL = "incremental"
FULL_REFRESH = "full_refresh"


@dataclass(frozen=True)
class Plan:
    """One table of one source, ready to be synced.

    Attributes:
        key: the primary key; empty where there is none.
        cursor: the cursor column; None for a full refresh without one.
        mode: ``incremental`` or ``full_refresh``.
    """

    source: str
    table: SourceTable
    options: TableOptions
    key: tuple[str, ...]
    cursor: CursorField | None
    mode: str

    @property
    def lake_table(self) -> str:
        """The raw table's name."""
        return self.table.ref.lake_name

    @property
    def name(self) -> str:
        """``<source>.<table>``: in messages, and the key of its state."""
        return f"{self.source}.{self.lake_table}"

    @property
    def initial(self) -> Cursor | None:
        """Where the first sync begins."""
        text = self.options.initial_cursor
        if text is None or self.cursor is None:
            return None
        return parsed(text, self.cursor.type, f"table {self.name}, initial_cursor")


def plan(
    source: str, table: SourceTable, options: TableOptions, full_refresh: bool = False
) -> Plan:
    """Checks a table's options against its columns.

    Raises:
        TableError: where the cursor or key column is missing, or of a type that has no order.
    """
    where = f"table {source}.{table.ref.name}"
    mode = FULL_REFRESH if full_refresh or options.sync_mode == FULL_REFRESH else INCREMENTAL
    name = options.cursor_field or table.cursor_field
    if name is None and mode == INCREMENTAL:
        found = candidates(table)
        raise TableError(
            "an incremental sync needs a cursor, and the table's options name none",
            where=where,
            remedy="Set table_options."
            f"{table.ref.name}.cursor_field"
            + (f" (candidates: {', '.join(found)})" if found else "")
            + ", or sync_mode: full_refresh",
        )
    cursor = None
    if name is not None:
        column = _column(table, name, where, "cursor_field")
        type_ = CursorType.of(table.schema[column].dataType)
        if type_ is None:
            shown = table.schema[column].dataType.simpleString()
            raise TableError(
                f"the column {column!r} of type {shown} cannot be a cursor",
                where=f"{where}, cursor_field",
                remedy="Choose a timestamp, date, number or string that grows with every change"
                + (f": {', '.join(candidates(table))}" if candidates(table) else ""),
            )
        cursor = CursorField(column, type_)
    key = options.primary_key if options.primary_key is not None else table.primary_key
    planned = Plan(
        source=source,
        table=table,
        options=options,
        key=tuple(_column(table, part, where, "primary_key") for part in key),
        cursor=cursor,
        mode=mode,
    )
    if planned.initial is not None and cursor is not None and options.lookback is not None:
        planned.initial.minus(options.lookback)
    return planned


def candidates(table: SourceTable) -> list[str]:
    """Columns that look like cursors, likeliest first."""

    def score(name: str) -> int:
        type_ = CursorType.of(table.schema[name].dataType)
        words = ("updated", "modified", "changed", "_at", "date", "time", "version", "seq", "id")
        if type_ is None or type_ is CursorType.STRING:
            return 0
        rank = next((len(words) - i for i, word in enumerate(words) if word in name.lower()), 0)
        return rank + (10 if type_.is_time else 0)

    return sorted((n for n in table.schema.names if score(n) > 1), key=score, reverse=True)


def chosen(spec: SourceSpec, refs: Sequence[TableRef]) -> tuple[list[TableRef], list[TableError]]:
    """The tables that a source's patterns choose, and an error for each pattern without one.

    An exact name matches without case where only one table fits; wildcards pass over views.
    """
    found: dict[str, TableRef] = {}
    errors = []
    for pattern in spec.tables:
        matches = _matching(pattern, refs)
        if not matches:
            names = [ref.name for ref in refs]
            near = difflib.get_close_matches(pattern.lower(), [n.lower() for n in names], 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            errors.append(
                TableError(
                    f"the source has no table {pattern!r}",
                    where=f"source {spec.name}, tables",
                    remedy=f"{hint}It has: {shown or 'no tables that this user can see'}",
                )
            )
        for ref in matches:
            found[ref.name] = ref
    for pattern in spec.skip_tables:
        for ref in _matching(pattern, refs):
            found.pop(ref.name, None)
    return list(found.values()), errors


def _matching(pattern: str, refs: Sequence[TableRef]) -> list[TableRef]:
    if any(mark in pattern for mark in "*?["):
        lowered = pattern.lower()
        return [
            ref for ref in refs if ref.kind == "table" and fnmatchcase(ref.name.lower(), lowered)
        ]
    exact = [ref for ref in refs if ref.name == pattern]
    if exact:
        return exact
    loose = [ref for ref in refs if ref.name.lower() == pattern.lower()]
    return loose if len(loose) == 1 else []


def _column(table: SourceTable, name: str, where: str, option: str) -> str:
    names = list(table.schema.names)
    if name in names:
        return name
    loose = [column for column in names if column.lower() == name.lower()]
    if len(loose) == 1:
        return loose[0]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise TableError(
        f"there is no column {name!r}",
        where=f"{where}, {option}",
        remedy=f"{hint}Its columns: {', '.join(names)}",
    )


def parsed(text: str, type_: CursorType, where: str) -> Cursor:
    """A cursor that a person wrote.

    Raises:
        TableError: where the text is no value of the cursor's type.
    """
    try:
        return Cursor.parse(text, type_)
    except ValueError as problem:
        raise TableError(
            f"{problem}", where=where, remedy=f"The cursor is of type {type_.value}"
        ) from None
