"""Fingerprints a table in PostgreSQL's catalog, to detect changes that were reverted later.

An ALTER rewrites a row of the catalog, so the row has another `xmin`, even if a second ALTER undoes
it. The log may have changes from between the two: under another name, in another form, without the
old key, or not at all if the table was no partition then.
"""

from __future__ import annotations

from collections.abc import Mapping

from loader.sources.jdbc.connection import Connection

_COLUMN = "column"
_TABLE = "table"
_INDEX = "index"
_PARTITION = "partition"
_IDENTITY = "identity"
_FILES = "files"


def catalog(connection: Connection, relation: str) -> dict[str, str]:
    """Returns a fingerprint of a table, its columns, indexes and partitions.

    By `column 3`, `index 16390` and `partition 16400` the transaction that has last written the
    catalog's row, and a hash of what may change without harm, such as a column's default. By
    `table 16384` that of the table's row type, which is written if its name or schema changes, and
    not by a GRANT. By `identity 16384` the replica identity, of what has rows. By `files` what
    changes if rows are rewritten.

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
            select '{_TABLE} ' || c.oid, t.xmin::text, concat_ws('/', t.typowner, t.typacl)
            from tables
            join pg_catalog.pg_class as c on c.oid = tables.id
            join pg_catalog.pg_type as t on t.oid = c.reltype
            union all
            select
                '{_INDEX} ' || i.indexrelid,
                i.xmin::text,
                concat_ws(
                    '/', i.indisclustered, i.indisvalid, i.indcheckxmin, i.indisready, i.indislive
                )
            from tables
            join pg_catalog.pg_index as i on i.indrelid = tables.id
            union all
            select
                '{_FILES}',
                md5(string_agg(c.relfilenode::text, ',' order by c.oid)),
                ''
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
    """Returns what was altered since the last sync but looks unchanged; empty if nothing.

    Columns, indexes and partitions that were added or removed are not reported.

    Args:
        before: the result of :func:`catalog` at the last sync.
    """
    for name in sorted(set(before) & set(found)):
        kind = name.partition(" ")[0]
        if kind == _IDENTITY and before[name] != found[name]:
            return "its replica identity was changed"
        if kind == _INDEX and _rewritten(name, before, found):
            return "its replica identity was changed and changed back"
        if kind == _PARTITION and _rewritten(name, before, found):
            return "a partition was detached and attached again"
        if kind == _TABLE and _rewritten(name, before, found):
            return "the table or a partition was renamed and renamed back"
    columns = _columns(before, found)
    if len(columns) > 1 or (columns and before.get(_FILES) != found.get(_FILES)):
        return f"{', '.join(columns)} was altered and altered back"
    return ""


def has_changed(before: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Returns whether a column may have had another name for a while; only the log shows it.

    Nothing else does: `alter column … set statistics` looks the same, if it is said twice.
    """
    return bool(_columns(before, found))


def _columns(before: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    both = sorted(set(before) & set(found))
    return [n for n in both if n.startswith(_COLUMN) and _rewritten(n, before, found)]


def _rewritten(name: str, before: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Returns whether a row of the catalog was rewritten with the same contents."""
    (was, same), (now, harmless) = before[name].split(" "), found[name].split(" ")
    return was != now and same == harmless
