"""Reads a table's columns, key and partitions, and rejects types that the log does not support.

Also compares the table's definition with the definition at the last sync, to find changes that are
not in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from loader.cdc.catalog_changes import (
    Partition,
    describe_partition_changes,
    describe_reverted_change,
    read_fingerprints,
    read_partitions,
)
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.position import Mark
from loader.cdc.slot import build_log_name
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, Database

TEXTS = frozenset(
    (
        *("text", "varchar", "bpchar", "citext", "char", "uuid", "json", "jsonb", "xml"),
        *("inet", "cidr", "macaddr", "macaddr8", "ltree", "int4range", "int8range", "numrange"),
        *("tsrange", "tstzrange", "daterange"),
    )
)
"""Types whose values Debezium returns as strings in PostgreSQL's format."""
INTEGERS = frozenset(("int2", "int4", "int8", "oid"))
FLOATS = frozenset(("float4", "float8"))
TIMES = frozenset(("date", "timestamp", "timestamptz", "time"))
ENUM = "enum"
SUPPORTED = TEXTS | INTEGERS | FLOATS | TIMES | {"bool", "numeric", "bytea", ENUM}
UNSUPPORTED_ARRAYS = frozenset(("xml", ENUM, "time"))
"""The element types of arrays that Debezium omits or changes.

Debezium omits all arrays of `xml`, and arrays of enums that contain a null. It changes 24:00 in
arrays of `time`.
"""
DETECTABLE_ARRAYS = frozenset(("text", "varchar", "uuid", "int4", "int8", "date", "bytea"))
"""The element types of arrays for which Debezium writes a placeholder if the log omits the array.

For other element types, it writes null, so an omitted array looks like a null.
"""


@dataclass(frozen=True)
class LoggedColumn:
    """A column of a table that is read from the log.

    Attributes:
        number: the column's number in the database. A rename does not change it.
        kind: PostgreSQL's name for the type. For a domain, the base type. For an array, the type of
            its elements. For any enum, `enum`.
        is_toastable: whether the log may omit a large value (more than 2 kB) that an update does
            not change.
        is_nested: whether the column was declared as an array of arrays.
        is_complete: whether the table has REPLICA IDENTITY FULL. If so, the log contains all values
            for new changes.
    """

    number: int
    name: str
    kind: str
    declared: str = ""
    is_array: bool = False
    is_generated: bool = False
    is_toastable: bool = False
    has_default: bool = False
    is_nested: bool = False
    has_domain_elements: bool = False
    is_complete: bool = False


def has_text(column: LoggedColumn) -> bool:
    """Returns whether a column's values in the log can be converted to PostgreSQL's text format."""
    return not column.is_array and column.kind not in FLOATS


def read_logged_columns(connection: Connection, relation: str) -> list[LoggedColumn]:
    """Reads a table's columns, sorted by number.

    Args:
        relation: an SQL string literal that contains the table's quoted name.
    """
    rows = connection.rows(
        f"""
        with recursive leaves as (
            select coalesce(tree.relid::oid, root.oid) as id
            from (select {relation}::regclass::oid as oid) as root
            left join lateral pg_catalog.pg_partition_tree(root.oid) as tree on true
            where coalesce(tree.isleaf, true)
        ),

        types as (
            select
                a.attnum,
                a.attname,
                a.attgenerated,
                a.attstorage,
                pg_catalog.format_type(a.atttypid, a.atttypmod) as declared,
                a.atthasdef or a.atthasmissing or a.attidentity <> '' as has_default,
                a.attndims > 1 as nested,
                t.oid,
                t.typtype,
                t.typbasetype,
                t.typelem,
                t.typcategory,
                t.typname,
                false as is_array,
                false as of_domain
            from pg_catalog.pg_attribute as a
            join pg_catalog.pg_type as t on t.oid = a.atttypid
            where a.attrelid = {relation}::regclass
                and a.attnum > 0
                and not a.attisdropped
            union all
            select
                types.attnum,
                types.attname,
                types.attgenerated,
                types.attstorage,
                types.declared,
                types.has_default,
                types.nested,
                t.oid,
                t.typtype,
                t.typbasetype,
                t.typelem,
                t.typcategory,
                t.typname,
                types.is_array or (types.typcategory = 'A' and types.typtype <> 'd'),
                types.of_domain or (types.is_array and types.typtype = 'd')
            from types
            join pg_catalog.pg_type as t
                on t.oid = case
                    when types.typtype = 'd' then types.typbasetype
                    when types.typcategory = 'A' then types.typelem
                end
        )

        select
            attnum::text,
            attname,
            case when typtype = 'e' then '{ENUM}' else typname end,
            declared,
            is_array::text,
            (attgenerated <> '')::text,
            (attstorage <> 'p')::text,
            has_default::text,
            nested::text,
            of_domain::text,
            (
                not exists (
                    select from leaves
                    join pg_catalog.pg_class as c on c.oid = leaves.id
                    where c.relreplident <> 'f'
                )
            )::text
        from types
        where typtype <> 'd'
            and typcategory <> 'A'
        order by attnum
        """
    )
    return [
        LoggedColumn(
            int(number or 0), name or "", kind or "", declared or "", *(f == "true" for f in flags)
        )
        for number, name, kind, declared, *flags in rows
    ]


def _refuse_column(column: LoggedColumn, where: str) -> None:
    if column.is_generated:
        raise TableError(
            f"the log does not contain the generated column {column.name}",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table with a cursor (sync_mode: incremental)",
        )
    unsupported_array = column.is_array and (
        column.has_domain_elements or column.kind in UNSUPPORTED_ARRAYS
    )
    if column.is_nested or unsupported_array or column.kind not in SUPPORTED:
        raise TableError(
            f"the values of {column.name} ({column.declared}) in the log differ from those in a "
            "query",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table with a cursor (sync_mode: incremental)",
        )
    if (
        column.is_array
        and column.is_toastable
        and not column.is_complete
        and column.kind not in DETECTABLE_ARRAYS
    ):
        raise TableError(
            f"if an update does not change {column.name} ({column.kind}[]), its value is "
            "indistinguishable from null in the log",
            where=f"{where}, sync_mode: cdc",
            remedy="Run `alter table … replica identity full`: the log then contains whole rows",
        )


def describe_alteration(before: Mapping[str, str], columns: Sequence[LoggedColumn]) -> str:
    """Describes an ALTER that changed values without logging them. Returns "" if there was none.

    Args:
        before: the result of :func:`list_by_number` at the last sync.
    """
    dropped = set(before) - {str(column.number) for column in columns}
    for column in columns:
        stored = before.get(str(column.number))
        if stored is None:
            if before and column.has_default:
                return f"the column {column.name} was added with a default"
            if any(before[number].startswith(f"{column.name} ") for number in dropped):
                return f"another column now has the name {column.name}"
        elif stored != _describe_column(column):
            return f"the column {stored} was altered"
    return ""


def describe_selection(excluded: Collection[str], columns: Sequence[LoggedColumn]) -> str:
    """Describes the columns that the spec no longer excludes. Returns "" if there are none.

    Args:
        excluded: the numbers of the columns that were excluded at the last sync.
    """
    names = [column.name for column in columns if str(column.number) in excluded]
    return f"{', '.join(names)} was excluded by the `columns` option until now" if names else ""


def describe_unknown_names(
    names: Collection[str], before: Mapping[str, str], columns: Sequence[LoggedColumn]
) -> str:
    """Explains a column name in the log that belongs to no column. Returns "" if there is none.

    Args:
        names: the column names in the changes since the last sync.
        before: the result of :func:`list_by_number` at the last sync, including excluded columns.
        columns: the current columns, including excluded columns.
    """
    current = {column.name for column in columns}
    for name in sorted(set(names) - current):
        if not any(stored.startswith(f"{name} ") for stored in before.values()):
            return f"the column {name} was added and then renamed or dropped"
    # A missing number belongs to a column that was added and dropped since the last sync. A newer
    # column may have the same name.
    highest = max(map(int, before), default=0)
    added = {column.number for column in columns if column.number > highest}
    if before and added and max(added) - highest > len(added):
        return "a column was added and dropped"
    return ""


def list_by_number(columns: Sequence[LoggedColumn]) -> dict[str, str]:
    """Maps each column's number to its name and type."""
    return {str(column.number): _describe_column(column) for column in columns}


def _describe_column(column: LoggedColumn) -> str:
    return f"{column.name} {column.declared}"


class TableDefinitions:
    """Reads the current definitions of tables.

    Attributes:
        catalogs: maps each table's name to its fingerprints (`read_fingerprints`).
        excluded: maps each table's name to the columns that the spec excludes.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.catalogs: dict[str, Mapping[str, str]] = {}
        self.excluded: dict[str, Sequence[LoggedColumn]] = {}

    def list_key(self, table: SourceTable) -> Sequence[str]:
        """Returns a table's key. The spec's declaration overrides the database's."""
        declared = self.database.read_options(table.ref).primary_key
        names = {name.lower(): name for name in table.schema.names}
        return (
            [names.get(name.lower(), name) for name in declared] if declared else table.primary_key
        )

    def list_key_columns(self, table: SourceTable) -> list[LoggedColumn]:
        columns = {column.name: column for column in self.read_columns(table)}
        indexes = {name.lower(): i for i, name in enumerate(table.schema.names)}
        native_names = (
            table.ref.native.columns[indexes[name.lower()]] for name in self.list_key(table)
        )
        return [columns[name] for name in native_names]

    def read_columns(self, table: SourceTable) -> list[LoggedColumn]:
        """Returns a table's columns, ordered as in its schema.

        Also stores the excluded columns in `excluded`.

        Raises:
            TableError: if the columns changed during the run, if the log lacks their values, or if
                the values in the log differ from the values that the JDBC reader returns.
        """
        where, native = self.get_location(table), table.ref.native
        with self.database.connect(where) as connection:
            by_name = {
                c.name: c for c in read_logged_columns(connection, self._quote_relation(table))
            }
        if set(by_name) != {name for name, *_ in native.layout}:
            raise self.build_alteration_error(table)
        columns = [by_name.pop(name) for name in native.columns]
        self.excluded[table.ref.name] = list(by_name.values())
        for column in columns:
            _refuse_column(column, where)
        for index in table.ref.native.as_texts:
            if not has_text(columns[index]):
                raise TableError(
                    f"the log does not contain the text of {columns[index].name} "
                    f"({columns[index].declared}) as the database writes it",
                    where=f"{where}, column_types",
                    remedy="Remove the column from column_types, or read the table with a cursor "
                    "(sync_mode: incremental)",
                )
        return columns

    def build_alteration_error(self, table: SourceTable) -> TableError:
        return TableError(
            "its columns were changed during the run",
            where=self.get_location(table),
            remedy="Run again",
        )

    def refuse_replaced_values(
        self, table: SourceTable, columns: Sequence[LoggedColumn], spool: ChangeSpool
    ) -> None:
        """Raises a TableError if Debezium replaced a value in the changes with null."""
        for column in columns:
            if spool.log.has_replaced_values(build_log_name(table), column.name):
                raise TableError(
                    f"Debezium cannot convert a value of {column.name} ({column.declared}) in the "
                    "log",
                    where=f"{self.get_location(table)}, sync_mode: cdc",
                    remedy="Read the table with a cursor (sync_mode: incremental)",
                )

    def read_partitions(
        self, table: SourceTable, mark: Mark | None
    ) -> tuple[Mapping[str, Partition], str]:
        """Returns a table's partitions, and a reason to reload the table, or "" if there is none.

        Also stores the table's fingerprints in `catalogs`.
        """
        with self.database.connect(self.get_location(table)) as connection:
            fingerprints = read_fingerprints(connection, self._quote_relation(table))
            self.catalogs[table.ref.name] = fingerprints
            partitions = read_partitions(connection, self._quote_relation(table))
            if mark is None:
                return partitions, ""
            return partitions, describe_partition_changes(
                connection, mark.partitions, partitions
            ) or describe_reverted_change(mark.catalog, fingerprints)

    def _quote_relation(self, table: SourceTable) -> str:
        return self.database.dialect.text(self.database.relation(table.ref.native))

    def get_location(self, table: SourceTable) -> str:
        return f"table {self.database.name}.{table.ref.name}"
