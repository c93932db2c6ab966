"""A plan for one table: the spec's options checked against the source, before anything is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loader.error_report import did_you_mean
from loader.errors import TableError
from loader.lake.schema_evolution import EvolutionPolicy
from loader.names import explain_refusal
from loader.rows.bookkeeping import COLUMNS
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import CursorField
from loader.sources.candidates import MARKS, candidates, marks_of_deletion
from loader.sources.interface import Progress, SourceTable
from loader.spec.options import TableOptions

INCREMENTAL = "incremental"
FULL_REFRESH = "full_refresh"
CDC = "cdc"
RESERVED = "_cq_"
"""Prefix of the loader's own tables and columns."""
# Columns that CloudQuery adds to its tables; a source may have them.
FOREIGN_COLUMNS = frozenset({"_cq_id", "_cq_parent_id", "_cq_sync_group_id"})


class NoCursorError(TableError):
    """An incremental sync needs a cursor, and a table's options name none that it has."""

    candidates: Sequence[str] = ()

    @classmethod
    def of(cls, table: SourceTable, where: str) -> NoCursorError:
        """Returns the error for one table."""
        found = candidates(table)
        error = cls(
            "an incremental sync needs a cursor, and the table's options name none",
            where=where,
            remedy=f"Set table_options.{table.ref.name}.cursor_field"
            + (f" (candidates: {', '.join(found)})" if found else "")
            + ", or sync_mode: full_refresh",
        )
        error.candidates = found
        return error

    @classmethod
    def of_all(cls, errors: Mapping[str, NoCursorError], source: str, others: str) -> NoCursorError:
        """Returns one error for many tables of a source.

        Args:
            errors: each table's own.
            others: other cursors to suggest in the remedy; may be empty.
        """
        found = Counter(name for error in errors.values() for name in error.candidates[:1])
        listed = [*(name for name, _ in found.most_common(5)), *filter(None, [others])]
        named = list(errors)
        more = f" and {len(named) - 20} more" if len(named) > 20 else ""
        return cls(
            f"{len(named)} tables have no cursor that the options name: "
            f"{', '.join(named[:20])}{more}",
            where=f"source {source}, table_options",
            remedy=f'Name cursors for all of them, `"*": {{cursor_field: [{", ".join(listed)}]}}`, '
            "of which each table takes the first that it has; or set sync_mode: full_refresh for "
            "small tables; or leave them out by skip_tables",
        )


@dataclass(frozen=True)
class TablePlan:
    """One table of one source, ready to be synced.

    Attributes:
        key: the primary key; empty if there is none.
        cursor: the cursor column; None for a full refresh without a cursor.
        mode: ``incremental``, ``full_refresh`` or ``cdc``.
        initial: where the first sync begins; None reads everything.
        deleted: the column that marks deleted rows; None if there is none.
        accepts_key_change: key and cursor columns may change their type if raw can follow.
        accepts_other_origin: raw may hold rows of another table of the source until now, as all
            rows are read in a new generation.
        formerly: earlier names of the source.
        sharers: the spec's sources that load the same raw table, in the spec's order, including
            this one.
    """

    source: str
    table: SourceTable
    options: TableOptions
    key: tuple[str, ...]
    cursor: CursorField | None
    mode: str
    initial: Cursor | None = None
    deleted: str | None = None
    accepts_key_change: bool = False
    accepts_other_origin: bool = False
    formerly: tuple[str, ...] = ()
    sharers: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other sources may load the same raw table; see :mod:`loader.sync.ownership`."""
        return self.options.shared

    @property
    def follows_log(self) -> bool:
        """Whether its changes are read from the source's log, though perhaps not in this run."""
        return self.options.sync_mode == CDC

    @property
    def names(self) -> tuple[str, ...]:
        """The source's names in raw's rows and commits and in the ledger: now and before."""
        return (self.source, *self.formerly)

    @property
    def lake_table(self) -> str:
        """The raw table's name."""
        return self.table.ref.lake_name

    @property
    def authoritative(self) -> bool:
        """Whether the source has each key once, in its current version: it declares the key itself.

        Files, connectors with a mark of their own, and tables whose key only the spec declares,
        may deliver several versions of a key at once; only the cursor tells which is the newest.
        """
        declared = self.table.primary_key
        if self.table.progress is not Progress.CURSOR:
            return False
        return bool(declared) and set(declared) <= set(self.key)

    @property
    def keeps_redeliveries(self) -> bool:
        """Whether rows are appended though raw has them already.

        Without a key, a connector that goes on from its mark cannot be asked for the same rows
        twice, so equal rows may be different ones.
        """
        keyless = self.table.progress is Progress.MARK and not self.key
        return self.options.redelivered_rows == "append" or keyless

    @property
    def name(self) -> str:
        """``<source>.<table>``, as messages show it; also the key of its state."""
        return f"{self.source}.{self.lake_table}"

    @property
    def policy(self) -> EvolutionPolicy:
        """The policy for changes of its columns."""
        return EvolutionPolicy(
            where=f"table {self.name}",
            select=self.name,
            key=self.key,
            cursor=self.cursor.name if self.cursor else None,
            freeze=self.options.schema_changes == "freeze",
            accepts_key_change=self.accepts_key_change,
            reads_everything=self.mode == FULL_REFRESH,
            source=self.source if self.is_shared else "",
        )


def plan_table(
    source: str, table: SourceTable, options: TableOptions, full_refresh: bool = False
) -> TablePlan:
    """Plans one table: checks its options against its columns.

    Raises:
        TableError: if the cursor or key column is missing, or its type has no order; if a
            column has a reserved name; if deleted_field names a column that cannot mark deleted
            rows.
    """
    where = f"table {source}.{table.ref.name}"
    _free_names(table, where)
    mode = FULL_REFRESH if full_refresh else options.sync_mode
    follows_log = options.sync_mode == CDC
    # The log has an order of its own: a cursor that the spec names is for models only.
    name = None if follows_log else options.cursor_among(table.schema.names) or table.cursor_field
    if name is None and mode == INCREMENTAL and table.progress is Progress.CURSOR:
        raise NoCursorError.of(table, where)
    cursor, initial = None, None
    if name is not None:
        column = _column(table, name, where, "cursor_field", system=table.system_cursors)
        type_ = CursorType.of(table.schema[column].dataType)
        if type_ is None:
            shown = table.schema[column].dataType.simpleString()
            raise TableError(
                f"the column {column!r} of type {shown} cannot be a cursor",
                where=f"{where}, cursor_field",
                remedy="Choose a timestamp, date, number or string that grows with every change"
                + (f": {', '.join(candidates(table))}" if candidates(table) else ""),
            )
        cursor = CursorField(column, type_, column in table.collated)
        _fits(options, type_, where)
        if options.initial_cursor is not None:
            initial = parse_cursor(options.initial_cursor, type_, f"{where}, initial_cursor")
    key = options.primary_key if options.primary_key is not None else table.primary_key
    planned = TablePlan(
        source=source,
        table=table,
        options=options,
        key=tuple(_column(table, part, where, "primary_key") for part in key),
        cursor=cursor,
        mode=mode,
        initial=initial,
        deleted=_find_deleted_column(table, options, where),
    )
    if follows_log and not planned.key:
        raise TableError(
            "sync_mode: cdc needs a primary key, and the table has none"
            + (f": {table.keyless}" if table.keyless else ""),
            where=where,
            remedy=f"Declare one in the source, or set table_options.{table.ref.name}.primary_key "
            "and the table's REPLICA IDENTITY to an index on it, or to FULL",
        )
    ambiguous = bool(planned.key) and not planned.authoritative
    if ambiguous and cursor is not None and cursor.collated and cursor.name not in planned.key:
        raise TableError(
            f"the source orders the column {cursor.name} by a collation or as an enum, and only "
            "the spec declares the key: the loader cannot tell which of a key's versions is the "
            "newest",
            where=f"{where}, cursor_field",
            remedy="Choose a time or a number; or declare the primary key in the source; or, if it "
            'is a text, give it a collation that orders by bytes (PostgreSQL: "C")',
        )
    return planned


def _find_deleted_column(table: SourceTable, options: TableOptions, where: str) -> str | None:
    if options.deleted_field is None:
        return None
    found = marks_of_deletion(table)
    named = f" (candidates: {', '.join(found)})" if found else ""
    name = _column(table, options.deleted_field, where, "deleted_field", named)
    data_type = table.schema[name].dataType
    if not isinstance(data_type, MARKS):
        raise TableError(
            f"the column {name!r} of type {data_type.simpleString()} cannot mark deleted rows",
            where=f"{where}, deleted_field",
            remedy="Choose a boolean (true: deleted), a date or time (not null), or a number "
            f"(not 0){named}",
        )
    return name


def _free_names(table: SourceTable, where: str) -> None:
    wrong = explain_refusal(table.ref.lake_name)
    if wrong is not None:
        raise TableError(
            f"the raw table cannot have this name: {wrong}",
            where=where,
            remedy="Read it through a view of another name in the source",
        )
    if table.ref.lake_name.lower().startswith(RESERVED):
        raise TableError(
            f"the raw table would be called {table.ref.lake_name}, and names that begin with "
            f"{RESERVED} are the loader's own",
            where=where,
            remedy="Read it through a view of another name in the source",
        )
    for name in table.schema.names:
        reserved = name.lower().startswith(RESERVED)
        if reserved and name.lower() not in FOREIGN_COLUMNS:
            says = "which the loader writes itself"
            if name.lower() not in COLUMNS:
                says = f"and names that begin with {RESERVED} are the loader's own"
            raise TableError(
                f"the source has a column {name!r}, {says}",
                where=where,
                remedy="Rename it, or read the others through a view in the source",
            )


def _fits(options: TableOptions, type_: CursorType, where: str) -> None:
    """Refuses a lookback that does not fit the cursor's type."""
    lookback = options.lookback
    if lookback is None:
        return
    fits = lookback.seconds is not None if type_.is_time else lookback.steps is not None
    if fits and (type_.is_time or type_.is_number):
        return
    if type_.is_time:
        remedy = "Write a duration, for example '10 minutes'"
    elif type_.is_number:
        remedy = "Write a whole number: how far below the cursor to begin"
    else:
        remedy = "Remove it: string cursors do not support a lookback"
    raise TableError(
        f"{lookback.text!r} does not fit a cursor of type {type_.value}",
        where=f"{where}, lookback",
        remedy=remedy,
    )


def _column(
    table: SourceTable,
    name: str,
    where: str,
    option: str,
    more: str = "",
    system: Sequence[str] = (),
) -> str:
    names = list(table.schema.names)
    if name in names:
        return name
    loose = [column for column in names if column.lower() == name.lower()]
    if len(loose) == 1:
        return loose[0]
    raise TableError(
        f"there is no column {name!r}",
        where=f"{where}, {option}",
        remedy=f"{did_you_mean(name, [*system, *names])} Its columns: {', '.join(names)}{more}"
        + "".join(f", and the cursor {one}" for one in system if one not in names),
    )


def parse_cursor(text: str, type_: CursorType, where: str) -> Cursor:
    """Parses a cursor that the user wrote.

    Raises:
        TableError: if the text is not a value of the cursor's type.
    """
    try:
        return Cursor.parse(text, type_)
    except ValueError:
        raise TableError(
            f"{text!r} is not a cursor of the column's type, {type_.value}",
            where=where,
            remedy=f"Write it as {_EXAMPLES[type_]}",
        ) from None


_EXAMPLES = {
    CursorType.INTEGER: "42",
    CursorType.DECIMAL: '"1.50"',
    CursorType.DOUBLE: '"1.5"',
    CursorType.DATE: '"2025-01-31"',
    CursorType.TIMESTAMP: '"2025-01-31 12:00:00" or "2025-01-31"',
    CursorType.TIMESTAMPTZ: '"2025-01-31 12:00:00+00:00" (without an offset: UTC)',
    CursorType.STRING: "any text",
}
