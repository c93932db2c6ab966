"""What PostgreSQL's catalog says of a table, to notice what was changed and changed back.

An ALTER writes a row of the catalog anew, so that the row has another `xmin`, even if a second
ALTER undoes it. The log may have changes from between the two: under another name, in another
form, without the old key, or not at all if the table was no partition then.
"""

from __future__ import annotations

from collections.abc import Mapping

from loader.sources.jdbc.connection import Connection

_COLUMN = "column"
_TABLE = "table"
_PARTITION = "partition"
_IDENTITY = "identity"


def catalog(connection: Connection, relation: str) -> dict[str, str]:
    """Returns what to remember of a table, its columns and its partitions.

    By `column 3`, `table 16384` and `partition 16400` the transaction that has last written the
    catalog's row, and a hash of what may change without harm, such as a column's default. By
    `identity 16384` the replica identity, of what has rows.

    Args:
        relation: the quoted table, as a text literal.
    """
    rows = connection.rows(
        f"""
        with tables as (
            select root.oid as id
            from (select {relation}::regclass::oid as oid) as root
            union
            select tree.relid::oid
            from pg_catalog.pg_partition_tree({relation}::regclass) as tree
        ),

        told as (
            select
                '{_COLUMN} ' || a.attnum as name,
                a.xmin::text as written,
                concat_ws(
                    '/', a.attnotnull, a.atthasdef, a.atthasmissing, a.attidentity, a.attstattarget,
                    a.attstorage, to_jsonb(a) ->> 'attcompression', a.attacl, a.attoptions,
                    a.attinhcount, a.attislocal, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
                ) as harmless
            from pg_catalog.pg_attribute as a
            left join pg_catalog.pg_attrdef as d
                on d.adrelid = a.attrelid
                and d.adnum = a.attnum
            where a.attrelid = {relation}::regclass
                and a.attnum > 0
                and not a.attisdropped
            union all
            select
                '{_TABLE} ' || c.oid,
                c.xmin::text,
                concat_ws(
                    '/', c.relname, c.relnamespace, c.relowner, c.relfilenode, c.reltablespace,
                    c.relam, c.relnatts, c.relchecks, c.relhasindex, c.relhasrules,
                    c.relispartition, c.relhastriggers, c.relhassubclass,
                    c.relrowsecurity, c.relforcerowsecurity, c.reltoastrelid, c.relacl, c.reloptions
                )
            from tables
            join pg_catalog.pg_class as c on c.oid = tables.id
            union all
            select '{_PARTITION} ' || i.inhrelid, i.xmin::text, ''
            from tables
            join pg_catalog.pg_inherits as i on i.inhrelid = tables.id
            union all
            select '{_IDENTITY} ' || c.oid, concat_ws('/', c.relreplident, i.indexrelid), ''
            from tables
            join pg_catalog.pg_class as c on c.oid = tables.id and c.relkind = 'r'
            left join pg_catalog.pg_index as i
                on i.indrelid = c.oid
                and i.indisreplident
        )

        select name, written, substr(md5(harmless), 1, 8)
        from told
        order by name
        """
    )
    return {str(name): f"{written} {harmless}" for name, written, harmless in rows}


def undone(before: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Returns what was changed since the last sync, though it looks as before; empty if nothing.

    What came or went is not told.

    Args:
        before: what :func:`catalog` returned at the last sync.
    """
    for name in sorted(set(before) & set(found)):
        (was, same), (now, harmless) = before[name].split(" "), found[name].split(" ")
        kind, _, number = name.partition(" ")
        if kind == _IDENTITY and was != now:
            return "its replica identity was changed"
        if was == now or same != harmless:
            continue
        if kind == _COLUMN:
            return f"the column with the number {number} was altered and altered back"
        if kind == _PARTITION:
            return "a partition was detached and attached again"
        return "the table, its replica identity or a partition was altered and altered back"
    return ""
