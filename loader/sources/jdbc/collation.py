"""Detects whether a database orders a text column by bytes, as Spark orders raw's versions.

If it does not, the database still says which value is highest, but only it can compare two values.
"""

from __future__ import annotations

from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.mysql import MySQL
from loader.sources.jdbc.postgres import PostgreSQL

_POSTGRESQL = """
    select (
        coalesce(base.typname, own.typname) in ('uuid', 'name')
        or (
            coalesce(base.typname, own.typname) in ('text', 'varchar')
            and pg_catalog.pg_encoding_to_char(d.encoding) in ('UTF8', 'LATIN1')
            and case
                when c.collname = 'default' and c.collnamespace = 'pg_catalog'::regnamespace
                    then to_jsonb(d) ->> 'datlocprovider' = 'b'
                        or (
                            coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c'
                            and d.datcollate in ('C', 'POSIX')
                        )
                else c.collprovider = 'b'
                    or (c.collprovider = 'c' and c.collcollate in ('C', 'POSIX'))
            end
        )
    )::text
    from pg_catalog.pg_attribute as a
    join pg_catalog.pg_class as r on r.oid = a.attrelid
    join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
    join pg_catalog.pg_type as own on own.oid = a.atttypid
    join pg_catalog.pg_database as d on d.datname = current_database()
    left join pg_catalog.pg_type as base on base.oid = own.typbasetype
    left join pg_catalog.pg_collation as c on c.oid = a.attcollation
    where n.nspname = {space} and r.relname = {table} and a.attname = {column}
    """

# All other collations pad with blanks, so that a tab sorts before the end of the text.
_MYSQL = """
    select case
        when collation_name like '%nopad_bin' or collation_name like '%0900_bin' then 'true'
    end
    from information_schema.columns
    where table_schema = {space} and table_name = {table} and column_name = {column}
    """


def by_bytes(connection: Connection, dialect: Dialect, space: str, table: str, column: str) -> bool:
    """Returns whether the column is certain to be ordered by its bytes in UTF-8.

    Args:
        space: the table's schema, or its catalog if the database uses catalogs instead.
    """
    query = {PostgreSQL: _POSTGRESQL, MySQL: _MYSQL}.get(type(dialect))
    if query is None:
        return False
    names = {"space": space, "table": table, "column": column}
    sql = query.format(**{name: dialect.text(value) for name, value in names.items()})
    return connection.rows(sql) == [("true",)]
