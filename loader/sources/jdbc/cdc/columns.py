"""A table's columns as PostgreSQL's catalog has them, and whether the log has their values."""

from __future__ import annotations

from dataclasses import dataclass

from loader.errors import TableError
from loader.sources.jdbc.connection import Connection

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
KNOWN = TEXTS | INTEGERS | FLOATS | TIMES | {"bool", "numeric", "bytea"}


@dataclass(frozen=True)
class LoggedColumn:
    """A column of a table that is read from the log.

    Attributes:
        number: its number in the database, which outlives a change of its name.
        name: as the database has it.
        kind: PostgreSQL's name for its type; a domain's is its base type's, an array's its
            elements'. `enum` for all enums.
        array: whether it is an array.
        generated: whether the database computes it.
        toastable: whether the log may leave out its value if an update does not change it.
    """

    number: int
    name: str
    kind: str
    array: bool = False
    generated: bool = False
    toastable: bool = False


def logged_columns(connection: Connection, relation: str, where: str) -> list[LoggedColumn]:
    """Reads a table's columns, in order.

    Args:
        relation: the quoted table, as a text literal.

    Raises:
        TableError: if the log does not have the values of one, or not as the JDBC reader has them.
    """
    rows = connection.rows(
        f"""
        with recursive types as (
            select
                a.attnum,
                a.attname,
                a.attgenerated,
                a.attstorage,
                t.oid,
                t.typtype,
                t.typbasetype,
                t.typelem,
                t.typcategory,
                t.typname,
                false as is_array
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
                t.oid,
                t.typtype,
                t.typbasetype,
                t.typelem,
                t.typcategory,
                t.typname,
                types.is_array or types.typcategory = 'A'
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
            case when typtype = 'e' then 'enum' else typname end,
            is_array::text,
            (attgenerated <> '')::text,
            (attstorage <> 'p')::text
        from types
        where typtype <> 'd'
            and typcategory <> 'A'
        order by attnum
        """
    )
    found = [
        LoggedColumn(
            int(number or 0),
            name or "",
            kind or "",
            array == "true",
            generated == "true",
            toastable == "true",
        )
        for number, name, kind, array, generated, toastable in rows
    ]
    for column in found:
        _refuse(column, where)
    return found


def _refuse(column: LoggedColumn, where: str) -> None:
    if column.generated:
        raise TableError(
            f"the log does not have the generated column {column.name}",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table by a cursor (sync_mode: incremental)",
        )
    if column.kind not in KNOWN and column.kind != "enum":
        raise TableError(
            f"the log does not have the values of {column.name} ({column.kind}"
            f"{'[]' if column.array else ''}) as a query has them",
            where=f"{where}, sync_mode: cdc",
            remedy="Read the table by a cursor (sync_mode: incremental)",
        )
