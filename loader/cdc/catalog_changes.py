"""Detects changes of a table in PostgreSQL's catalog whose rows or values the log does not have.

Partitions come and go with rows that were never logged. And a change may have been reverted later.

An ALTER rewrites a row of the catalog, so the row has another `xmin`, even if a second ALTER undoes
it. The log may have changes from between the two: under another name, in another form, without the
old key, or not at all if the table was no partition then. So a table is stored with a fingerprint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loader.sources.jdbc.interface import Connection

_COLUMN = "column"
_TABLE = "table"
_INDEX = "index"
_PARTITION = "partition"
_IDENTITY = "identity"
_FILES = "files"


def read_fingerprints(connection: Connection, relation: str) -> dict[str, str]:
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

        fingerprints as (
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
        from fingerprints
        order by name
        """
    )
    return {str(name): f"{written} {harmless}" for name, written, harmless in rows}


def describe_reverted_change(before: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Returns what was altered since the last sync but looks unchanged; empty if nothing.

    Columns, indexes and partitions that were added or removed are not reported.

    Args:
        before: the result of :func:`read_fingerprints` at the last sync.
    """
    for name in sorted(set(before) & set(found)):
        kind = name.partition(" ")[0]
        if kind == _IDENTITY and before[name] != found[name]:
            return "its replica identity was changed"
        if kind == _INDEX and _is_rewritten(name, before, found):
            return "its replica identity was changed and changed back"
        if kind == _PARTITION and _is_rewritten(name, before, found):
            return "a partition was detached and attached again"
        if kind == _TABLE and _is_rewritten(name, before, found):
            return "the table or a partition was renamed and renamed back"
    columns = _list_rewritten_columns(before, found)
    if len(columns) > 1 or (columns and before.get(_FILES) != found.get(_FILES)):
        return f"{', '.join(columns)} was altered and altered back"
    return ""


def has_changed(before: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Returns whether a column may have had another name for a while; only the log shows it.

    Nothing else does: `alter column … set statistics` looks the same, if it is said twice.
    """
    return bool(_list_rewritten_columns(before, found))


def _list_rewritten_columns(before: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    both = sorted(set(before) & set(found))
    return [n for n in both if n.startswith(_COLUMN) and _is_rewritten(n, before, found)]


def _is_rewritten(name: str, before: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Returns whether a row of the catalog was rewritten with the same contents."""
    (was, same), (now, harmless) = before[name].split(" "), found[name].split(" ")
    return was != now and same == harmless


@dataclass(frozen=True)
class Partition:
    """A table below a partitioned one.

    Attributes:
        name: as SQL needs it.
        parent: the id of the table that it is a partition of.
        leaf: whether it has rows of its own.
        born: whether it was created and became a partition in one transaction, so that no other
            transaction has written to it before.
        transaction, command: what made it a partition.
    """

    name: str
    parent: str
    leaf: bool
    born: bool
    transaction: int
    command: int


def read_partitions(connection: Connection, relation: str) -> dict[str, Partition]:
    """Returns all partitions of a table by their ids; empty if it is not partitioned.

    Args:
        relation: the quoted table, as a text literal.
    """
    rows = connection.rows(
        f"""
        select
            c.oid::text,
            c.oid::regclass::text,
            i.inhparent::text,
            tree.isleaf::text,
            (y.xmin = i.xmin)::text,
            i.xmin::text,
            i.cmin::text
        from pg_catalog.pg_partition_tree({relation}::regclass) as tree
        join pg_catalog.pg_class as c on c.oid = tree.relid
        join pg_catalog.pg_type as y on y.oid = c.reltype
        join pg_catalog.pg_inherits as i on i.inhrelid = c.oid
        where c.oid <> {relation}::regclass
        """
    )
    return {
        str(oid): Partition(
            str(name), str(parent), leaf == "true", born == "true", int(xmin or 0), int(cmin or 0)
        )
        for oid, name, parent, leaf, born, xmin, cmin in rows
    }


def describe_moves(
    connection: Connection, before: Collection[str], found: Mapping[str, Partition]
) -> str:
    """Returns how rows have come or gone with partitions; empty if they have not.

    Args:
        before: the ids of the partitions at the last sync.
    """
    if set(before) - set(found):
        return "a partition was detached or dropped"
    for oid, partition in found.items():
        if oid in before or not partition.leaf:
            continue
        rows = _select_unlogged(oid, before, found)
        if connection.rows(f"select 1 where exists ({rows})"):
            return f"the partition {partition.name} was attached"
    return ""


def _select_unlogged(oid: str, before: Collection[str], found: Mapping[str, Partition]) -> str:
    """Returns a query for rows that a new partition may have had before it became one.

    All rows, unless it was created and attached in one transaction: then that transaction's, as
    far as it wrote them by earlier commands. (A lock on a row hides the command's number.)
    """
    leaf = found[oid]
    rows, command = f"select from {leaf.name}", leaf.command
    while oid in found and oid not in before:
        above = found[oid]
        if not above.born:
            return rows
        if above.transaction == leaf.transaction:
            command = max(command, above.command)
        oid = above.parent
    return (
        f"{rows} where xmin = '{leaf.transaction}'::xid "
        f"and (cmin::text::bigint < {command} or xmax <> '0'::xid)"
    )
