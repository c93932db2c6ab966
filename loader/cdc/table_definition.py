"""Reads a table's columns, key and partitions, and checks that the log has the columns' values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from loader.cdc.catalog_changes import (
    Partition,
    describe_moves,
    describe_reverted_change,
    read_fingerprints,
    read_partitions,
)
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.position import Mark
from loader.cdc.slot import name_in_log
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
"""Types whose values Debezium passes on as PostgreSQL writes them."""
INTEGERS = frozenset(("int2", "int4", "int8", "oid"))
FLOATS = frozenset(("float4", "float8"))
TIMES = frozenset(("date", "timestamp", "timestamptz", "time"))
ENUM = "enum"
KNOWN = TEXTS | INTEGERS | FLOATS | TIMES | {"bool", "numeric", "bytea", ENUM}
NOT_IN_ARRAYS = frozenset(("xml", ENUM, "time"))
"""Types of whose arrays Debezium leaves out all (`xml`), those with a null (enums), or 24:00."""
FILLED = frozenset(("text", "varchar", "uuid", "int4", "int8", "date", "bytea"))
"""Types of which Debezium shows that the log leaves out an unchanged array; else it has a null."""


@dataclass(frozen=True)
class LoggedColumn:
    """A column of a table that is read from the log.

    Attributes:
        number: its number in the database, which outlives a change of its name.
        name: as the database has it.
        kind: PostgreSQL's name for its type; a domain's is its base type's, an array's its
            elements'. `enum` for all enums.
        declared: its type as it was declared.
        array: whether it is an array.
        generated: whether the database computes it.
        toastable: whether the log may leave out its value if an update does not change it (values
            of more than 2 kB).
        complete: whether it does not, from now on, as the table has REPLICA IDENTITY FULL.
        default: whether it has a default value.
        nested: whether it was declared as an array of arrays.
        of_domain: whether it is an array whose elements are of a domain.
    """

    number: int
    name: str
    kind: str
    declared: str = ""
    array: bool = False
    generated: bool = False
    toastable: bool = False
    default: bool = False
    nested: bool = False
    of_domain: bool = False
    complete: bool = False


def has_text(column: LoggedColumn) -> bool:
    """Returns whether the log has what PostgreSQL would write of each of a column's values."""
    return not column.array and column.kind not in FLOATS


def read_logged_columns(connection: Connection, relation: str, where: str) -> list[LoggedColumn]:
    """Reads a table's columns, in order.

    Args:
        relation: the quoted table, as a text literal.

    Raises:
        TableError: if the log does not have the values of one, or not as the JDBC reader has them.
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
    found = [
        LoggedColumn(
            int(number or 0), name or "", kind or "", declared or "", *(f == "true" for f in flags)
        )
        for number, name, kind, declared, *flags in rows
    ]
    for column in found:
        _refuse_column(column, where)
    return found


def _refuse_column(column: LoggedColumn, where: str) -> None:
    if column.generated:
        raise TableError(
            f"the log does not have the generated column {column.name}",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table by a cursor (sync_mode: incremental)",
        )
    left_out = column.array and (column.of_domain or column.kind in NOT_IN_ARRAYS)
    if column.nested or left_out or column.kind not in KNOWN:
        raise TableError(
            f"the log does not have the values of {column.name} ({column.declared}) as a query "
            "has them",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table by a cursor (sync_mode: incremental)",
        )
    if column.array and column.toastable and not column.complete and column.kind not in FILLED:
        raise TableError(
            f"an update may leave {column.name} ({column.kind}[]) as it is, and the log would not "
            "tell that from null",
            where=f"{where}, sync_mode: cdc",
            remedy="Run `alter table … replica identity full`: the log then has all of each row",
        )


def describe_alteration(before: Mapping[str, str], columns: Sequence[LoggedColumn]) -> str:
    """Returns how rows have changed without changes in the log; empty if they have not.

    Args:
        before: the result of :func:`list_by_number` at the last sync.
    """
    gone = set(before) - {str(column.number) for column in columns}
    for column in columns:
        was = before.get(str(column.number))
        if was is None:
            if before and column.default:
                return f"the column {column.name} was added with a default"
            if any(before[number].startswith(f"{column.name} ") for number in gone):
                return f"another column is called {column.name} now"
        elif was != _describe(column):
            return f"the column {was} was altered"
    return ""


def describe_misnaming(
    names: Collection[str], before: Mapping[str, str], columns: Sequence[LoggedColumn]
) -> str:
    """Returns why values in the log are not found by the columns' names; empty if they are.

    Args:
        names: the columns' names in changes since the last sync.
        before: the result of :func:`list_by_number` at the last sync.
    """
    now = {column.name for column in columns}
    for name in sorted(set(names) - now):
        if not any(known.startswith(f"{name} ") for known in before.values()):
            return f"the column {name} came and was renamed or dropped"
    # A number that is neither here nor there: a column that came and went, perhaps by a name that
    # a later one has now.
    last = max(map(int, before), default=0)
    here = {column.number for column in columns if column.number > last}
    if before and here and max(here) - last > len(here):
        return "a column came and was dropped"
    return ""


def list_by_number(columns: Sequence[LoggedColumn]) -> dict[str, str]:
    """Returns names and types of columns by their numbers."""
    return {str(column.number): _describe(column) for column in columns}


def _describe(column: LoggedColumn) -> str:
    return f"{column.name} {column.declared}"


class Definitions:
    """The current definitions of tables.

    Attributes:
        catalogs: the catalog's fingerprint of each table (`read_fingerprints`), by name.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.catalogs: dict[str, Mapping[str, str]] = {}

    def list_key(self, table: SourceTable) -> Sequence[str]:
        """Returns a table's key, as the spec or the database declares it."""
        given = self.database.read_options(table.ref).primary_key
        names = {name.lower(): name for name in table.schema.names}
        return [names.get(k.lower(), k) for k in given] if given else table.primary_key

    def list_key_columns(self, table: SourceTable) -> list[LoggedColumn]:
        """Returns the columns of its key, in the key's order."""
        found = {column.name: column for column in self.read_columns(table)}
        places = {name.lower(): i for i, name in enumerate(table.schema.names)}
        native = (table.ref.native.columns[places[name.lower()]] for name in self.list_key(table))
        return [found[name] for name in native]

    def read_columns(self, table: SourceTable) -> list[LoggedColumn]:
        """Returns its columns, in the order of its schema.

        Raises:
            TableError: if they are not those that the run began with, or the log lacks values.
        """
        where = self.where(table)
        with self.database.connect(where) as connection:
            found = {
                c.name: c for c in read_logged_columns(connection, self._relation(table), where)
            }
        if set(found) != set(table.ref.native.columns):
            raise self.alteration_error(table)
        columns = [found[name] for name in table.ref.native.columns]
        for index in table.ref.native.as_texts:
            if not has_text(columns[index]):
                raise TableError(
                    f"the log does not have the text of {columns[index].name} "
                    f"({columns[index].declared}) as the database writes it",
                    where=f"{where}, column_types",
                    remedy="Remove it there, or read the table by a cursor (sync_mode: "
                    "incremental)",
                )
        return columns

    def alteration_error(self, table: SourceTable) -> TableError:
        """Returns the error of a table that was altered during the run."""
        return TableError(
            "its columns were changed during the run", where=self.where(table), remedy="Run again"
        )

    def refuse_replaced_values(
        self, table: SourceTable, columns: Sequence[LoggedColumn], spool: ChangeSpool
    ) -> None:
        """Refuses changes with values that Debezium has replaced by null.

        Raises:
            TableError: if there are any; names the column.
        """
        for column in columns:
            if spool.replaced.has_replaced_values(name_in_log(table), column.name):
                raise TableError(
                    f"Debezium has no form for a value of {column.name} ({column.declared}), which "
                    "the log has",
                    where=f"{self.where(table)}, sync_mode: cdc",
                    remedy="Read the table by a cursor (sync_mode: incremental)",
                )

    def read_partitions(
        self, table: SourceTable, mark: Mark | None
    ) -> tuple[Mapping[str, Partition], str]:
        """Returns a table's partitions, and why the log lacks some of their changes."""
        with self.database.connect(self.where(table)) as connection:
            fingerprints = read_fingerprints(connection, self._relation(table))
            self.catalogs[table.ref.name] = fingerprints
            found = read_partitions(connection, self._relation(table))
            if mark is None:
                return found, ""
            return found, describe_moves(
                connection, mark.partitions, found
            ) or describe_reverted_change(mark.catalog, fingerprints)

    def _relation(self, table: SourceTable) -> str:
        return self.database.dialect.text(self.database.relation(table.ref.native))

    def where(self, table: SourceTable) -> str:
        """Returns its name in errors."""
        return f"table {self.database.name}.{table.ref.name}"
