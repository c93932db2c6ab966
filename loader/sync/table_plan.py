"""Plans one table: checks the spec's options against the columns of the source's table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loader.errors import TableError, did_you_mean
from loader.lake.schema_evolution import EvolutionPolicy
from loader.names import explain_refusal
from loader.rows.bookkeeping import COLUMNS
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import CursorField
from loader.sources.candidates import MARKS, suggest_cursors, suggest_deletion_columns
from loader.sources.interface import Progress, SourceTable
from loader.sources.masked_source import check_roles
from loader.spec.options import TableOptions

INCREMENTAL = "incremental"
FULL_REFRESH = "full_refresh"
CDC = "cdc"
RESERVED = "_cq_"
"""The prefix of the loader's tables and columns."""
# Columns that CloudQuery adds to its tables. A source may contain them.
FOREIGN_COLUMNS = frozenset({"_cq_id", "_cq_parent_id", "_cq_sync_group_id"})


class NoCursorError(TableError):
    """The error for an incremental sync whose options name no cursor that the table has."""

    candidates: Sequence[str] = ()

    @classmethod
    def of(cls, table: SourceTable, where: str) -> NoCursorError:
        names = suggest_cursors(table)
        error = cls(
            "an incremental sync needs a cursor, but the table's options name none",
            where=where,
            remedy=f"Set table_options.{table.ref.name}.cursor_field"
            + (f" (candidates: {', '.join(names)})" if names else "")
            + ", or sync_mode: full_refresh",
        )
        error.candidates = names
        return error

    @classmethod
    def of_all(
        cls, errors: Mapping[str, NoCursorError], source: str, more_cursors: str
    ) -> NoCursorError:
        """Builds one error for many tables of a source.

        Args:
            more_cursors: an additional cursor to suggest; empty if there is none.
        """
        counts = Counter(name for error in errors.values() for name in error.candidates[:1])
        suggestions = [*(name for name, _ in counts.most_common(5)), *filter(None, [more_cursors])]
        tables = list(errors)
        more = f" and {len(tables) - 20} more" if len(tables) > 20 else ""
        return cls(
            f"{len(tables)} tables have none of the cursors in their options: "
            f"{', '.join(tables[:20])}{more}",
            where=f"source {source}, table_options",
            remedy="Set cursors for all of them, "
            f'`"*": {{cursor_field: [{", ".join(suggestions)}]}}`: each table uses the first '
            "column of the list that it has; or set sync_mode: full_refresh for small tables; or "
            "exclude them with skip_tables",
        )


@dataclass(frozen=True)
class TablePlan:
    """The plan for one table of one source.

    Attributes:
        cursor: the cursor column; None for a full refresh without a cursor.
        mode: ``incremental``, ``full_refresh`` or ``cdc``.
        initial: the cursor at which the first sync starts; None to read all rows.
        deleted: the column that flags deleted rows; None if there is none.
        accepts_key_change: whether the types of key and cursor columns may be widened.
        accepts_other_origin: whether the raw table may have been loaded from another table of the
            source. This is allowed if all rows are reread into a new generation.
        formerly: the former names of the source.
        sharers: all sources that load the same raw table, ordered as in the spec.
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
        """Returns whether other sources may load the raw table (:mod:`loader.sync.ownership`)."""
        return self.options.shared

    @property
    def follows_log(self) -> bool:
        """Returns whether the spec has `sync_mode: cdc`, even if this run is a full refresh."""
        return self.options.sync_mode == CDC

    @property
    def names(self) -> tuple[str, ...]:
        """The current and former names of the source. The lake may contain any of them."""
        return (self.source, *self.formerly)

    @property
    def lake_table(self) -> str:
        return self.table.ref.lake_name

    @property
    def is_authoritative(self) -> bool:
        """Returns whether the source itself declares the key, so it has one version of each key.

        This is false for files, for connectors with a checkpoint, and for tables whose key is only
        declared in the spec. These sources may return several versions of a key, and only the
        cursor shows which is the newest.
        """
        declared = self.table.primary_key
        if self.table.progress is not Progress.CURSOR:
            return False
        return bool(declared) and set(declared) <= set(self.key)

    @property
    def keeps_redeliveries(self) -> bool:
        """Returns whether redelivered rows are appended.

        A connector with a checkpoint returns each record only once. So if its table has no key,
        rows that match may be different records.
        """
        keyless = self.table.progress is Progress.MARK and not self.key
        return self.options.redelivered_rows == "append" or keyless

    @property
    def name(self) -> str:
        """The name ``<source>.<table>``, used in messages and as the key of the state."""
        return f"{self.source}.{self.lake_table}"

    @property
    def policy(self) -> EvolutionPolicy:
        return EvolutionPolicy(
            where=f"table {self.name}",
            select=self.name,
            key=self.key,
            cursor=self.cursor.name if self.cursor else None,
            freeze=self.options.schema_changes == "freeze",
            accepts_key_change=self.accepts_key_change,
            reads_everything=self.mode == FULL_REFRESH,
            source=self.source if self.is_shared else "",
            excluded=self.table.excluded,
        )


def plan_table(
    source: str, table: SourceTable, options: TableOptions, full_refresh: bool = False
) -> TablePlan:
    """Plans one table.

    Raises:
        TableError: if the cursor or a key column does not exist, if the values of the cursor cannot
            be ordered, if a column has a reserved name, or if the type of `deleted_field` is
            unsuitable.
    """
    where = f"table {source}.{table.ref.name}"
    _check_names(table, where)
    mode = FULL_REFRESH if full_refresh else options.sync_mode
    follows_log = options.sync_mode == CDC
    # The log already orders the changes, so only dbt models use a cursor from the spec.
    name = None if follows_log else options.choose_cursor(table.schema.names) or table.cursor_field
    if name is None and mode == INCREMENTAL and table.progress is Progress.CURSOR:
        raise NoCursorError.of(table, where)
    cursor, initial = None, None
    if name is not None:
        column = _find_column(table, name, where, "cursor_field", system=table.system_cursors)
        type_ = CursorType.of(table.schema[column].dataType)
        if type_ is None:
            type_name = table.schema[column].dataType.simpleString()
            raise TableError(
                f"the column {column!r} of type {type_name} cannot be a cursor",
                where=f"{where}, cursor_field",
                remedy="Choose a timestamp, date, number or string that increases with every change"
                + (f": {', '.join(suggest_cursors(table))}" if suggest_cursors(table) else ""),
            )
        cursor = CursorField(column, type_, column in table.collated)
        _check_lookback(options, type_, where)
        if options.initial_cursor is not None:
            initial = parse_cursor(options.initial_cursor, type_, f"{where}, initial_cursor")
    key = options.primary_key if options.primary_key is not None else table.primary_key
    planned = TablePlan(
        source=source,
        table=table,
        options=options,
        key=tuple(_find_column(table, part, where, "primary_key") for part in key),
        cursor=cursor,
        mode=mode,
        initial=initial,
        deleted=_find_deleted_column(table, options, where),
    )
    check_roles(table, planned.key, cursor.name if cursor else None, planned.deleted, where)
    if follows_log and not planned.key:
        raise TableError(
            "sync_mode: cdc needs a primary key, but the table has none"
            + (f": {table.no_key_reason}" if table.no_key_reason else ""),
            where=where,
            remedy=f"Declare one in the source, or set table_options.{table.ref.name}.primary_key "
            "and the table's REPLICA IDENTITY to an index on it, or to FULL",
        )
    has_versions = bool(planned.key) and not planned.is_authoritative
    if has_versions and cursor is not None and cursor.collated and cursor.name not in planned.key:
        raise TableError(
            f"the source orders the column {cursor.name} by a collation or as an enum, and only "
            "the spec declares the key: the loader cannot tell which of a key's versions is the "
            "newest",
            where=f"{where}, cursor_field",
            remedy="Choose a time or a number; or declare the primary key in the source; or, if it "
            'is a string column, set a collation that orders by bytes (PostgreSQL: "C")',
        )
    return planned


def _find_deleted_column(table: SourceTable, options: TableOptions, where: str) -> str | None:
    if options.deleted_field is None:
        return None
    candidates_ = suggest_deletion_columns(table)
    listed = f" (candidates: {', '.join(candidates_)})" if candidates_ else ""
    name = _find_column(table, options.deleted_field, where, "deleted_field", listed)
    data_type = table.schema[name].dataType
    if not isinstance(data_type, MARKS):
        raise TableError(
            f"the column {name!r} of type {data_type.simpleString()} cannot mark deleted rows",
            where=f"{where}, deleted_field",
            remedy="Choose a boolean (true: deleted), a date or time (not null), or a number "
            f"(not 0){listed}",
        )
    return name


def _check_names(table: SourceTable, where: str) -> None:
    refusal = explain_refusal(table.ref.lake_name)
    if refusal is not None:
        raise TableError(
            f"the raw table cannot have this name: {refusal}",
            where=where,
            remedy="Read it through a view with another name in the source",
        )
    if table.ref.lake_name.lower().startswith(RESERVED):
        raise TableError(
            f"the raw table would be called {table.ref.lake_name}, and names that start with "
            f"{RESERVED} are reserved for the loader",
            where=where,
            remedy="Read it through a view with another name in the source",
        )
    for name in table.schema.names:
        reserved = name.lower().startswith(RESERVED)
        if reserved and name.lower() not in FOREIGN_COLUMNS:
            reason = "which the loader writes itself"
            if name.lower() not in COLUMNS:
                reason = f"and names that start with {RESERVED} are reserved for the loader"
            raise TableError(
                f"the source has a column {name!r}, {reason}",
                where=where,
                remedy="Rename it, or read the other columns through a view in the source",
            )


def _check_lookback(options: TableOptions, type_: CursorType, where: str) -> None:
    lookback = options.lookback
    if lookback is None:
        return
    fits = lookback.seconds is not None if type_.is_time else lookback.steps is not None
    if fits and (type_.is_time or type_.is_number):
        return
    if type_.is_time:
        remedy = "Use a duration, for example '10 minutes'"
    elif type_.is_number:
        remedy = "Use a whole number: the distance below the cursor at which to start"
    else:
        remedy = "Remove it: string cursors do not support a lookback"
    raise TableError(
        f"{lookback.text!r} does not fit a cursor of type {type_.value}",
        where=f"{where}, lookback",
        remedy=remedy,
    )


def _find_column(
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
    matches = [column for column in names if column.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    raise TableError(
        f"there is no column {name!r}",
        where=f"{where}, {option}",
        remedy=f"{did_you_mean(name, [*system, *names])} Its columns: {', '.join(names)}{more}"
        + "".join(f", and the cursor {each}" for each in system if each not in names),
    )


def parse_cursor(text: str, type_: CursorType, where: str) -> Cursor:
    """Parses a cursor from the spec or the command line.

    Raises a TableError if the string is not a value of the cursor's type.
    """
    try:
        return Cursor.parse(text, type_)
    except ValueError:
        raise TableError(
            f"{text!r} is not a value of the column's type, {type_.value}",
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
    CursorType.STRING: "any string",
}
