"""Detects changes to a table's definition that are missing from the log.

- If a partition is attached or detached, its rows are added to or removed from the table, but the
  log contains no such change. The log also lacks the changes to a detached partition.
- If an ALTER is reverted by a second ALTER, changes in between may be logged with other column
  names or formats, or without the old value of the key.

Each ALTER rewrites a row in PostgreSQL's catalog, which changes the row's `xmin`. So each sync
stores fingerprints of the catalog rows, and the next sync compares them with the current
fingerprints.
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
    """Returns fingerprints of a table and its columns, indexes and partitions.

    A fingerprint consists of the id of the last transaction that wrote the catalog row, and a hash
    of the properties that do not affect logged changes, such as a column's default. The keys are:

    - `column 3`, `index 16390`, `partition 16400`: the catalog row with this number or id.
    - `table 16384`: the table's row type. A rename rewrites it, but a GRANT does not.
    - `identity 16384`: the replica identity of a table or leaf partition.
    - `files`: a hash of the names of the data files, which changes if the table is rewritten.

    Args:
        relation: an SQL string literal that contains the table's quoted name.
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


def describe_reverted_change(before: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Describes an ALTER that was reverted since the last sync. Returns "" if there is none.

    Ignores columns, indexes and partitions that were added or removed.

    Args:
        before: the result of :func:`read_fingerprints` at the last sync.
    """
    for name in sorted(set(before) & set(current)):
        kind = name.partition(" ")[0]
        if kind == _IDENTITY and before[name] != current[name]:
            return "its replica identity was changed"
        if kind == _INDEX and _is_rewritten(name, before, current):
            return "its replica identity was changed and changed back"
        if kind == _PARTITION and _is_rewritten(name, before, current):
            return "a partition was detached and attached again"
        if kind == _TABLE and _is_rewritten(name, before, current):
            return "the table or a partition was renamed and renamed back"
    columns = _list_rewritten_columns(before, current)
    if len(columns) > 1 or (columns and before.get(_FILES) != current.get(_FILES)):
        return f"a column was altered and then altered back: {', '.join(columns)}"
    return ""


def has_rewritten_columns(before: Mapping[str, str], current: Mapping[str, str]) -> bool:
    """Returns whether a column may have been renamed and renamed back since the last sync.

    Only the column names in the log can prove this: in the catalog, two renames look like two
    `alter column … set statistics`.
    """
    return bool(_list_rewritten_columns(before, current))


def _list_rewritten_columns(before: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    names = sorted(set(before) & set(current))
    return [
        name for name in names if name.startswith(_COLUMN) and _is_rewritten(name, before, current)
    ]


def _is_rewritten(name: str, before: Mapping[str, str], current: Mapping[str, str]) -> bool:
    """Returns whether a catalog row was rewritten by an ALTER that affects logged changes."""
    (old_xmin, old_harmless), (new_xmin, new_harmless) = (
        before[name].split(" "),
        current[name].split(" "),
    )
    return old_xmin != new_xmin and old_harmless == new_harmless


@dataclass(frozen=True)
class Partition:
    """A partition of a table, at any level.

    Attributes:
        parent: the id of the table to which the partition is attached.
        is_leaf: whether the partition stores rows.
        created_attached: whether one transaction created and attached the partition. If so, no
            earlier transaction wrote to the partition.
        transaction, command: the transaction and the command that attached the partition.
    """

    name: str
    parent: str
    is_leaf: bool
    created_attached: bool
    transaction: int
    command: int


def read_partitions(connection: Connection, relation: str) -> dict[str, Partition]:
    """Returns all partitions of a table, keyed by id. Empty if the table is not partitioned.

    Args:
        relation: an SQL string literal that contains the table's quoted name.
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
            str(name),
            str(parent),
            is_leaf == "true",
            created_attached == "true",
            int(xmin or 0),
            int(cmin or 0),
        )
        for oid, name, parent, is_leaf, created_attached, xmin, cmin in rows
    }


def describe_partition_changes(
    connection: Connection, before: Collection[str], current: Mapping[str, Partition]
) -> str:
    """Describes a partition change that added or removed rows. Returns "" if there is none.

    Args:
        before: the ids of the partitions at the last sync.
    """
    if set(before) - set(current):
        return "a partition was detached or dropped"
    for oid, partition in current.items():
        if oid in before or not partition.is_leaf:
            continue
        rows = _build_unlogged_query(oid, before, current)
        if connection.rows(f"select 1 where exists ({rows})"):
            return f"the partition {partition.name} was attached"
    return ""


def _build_unlogged_query(
    oid: str, before: Collection[str], current: Mapping[str, Partition]
) -> str:
    """Returns a query for rows that a new partition may have contained before it was attached.

    If one transaction created and attached the partition, these are the rows that this transaction
    wrote before it attached the partition. Rows that it locked are included, because a lock
    overwrites the number of the command that wrote the row. Otherwise, all rows are included.
    """
    leaf = current[oid]
    rows, command = f"select from {leaf.name}", leaf.command
    while oid in current and oid not in before:
        ancestor = current[oid]
        if not ancestor.created_attached:
            return rows
        if ancestor.transaction == leaf.transaction:
            command = max(command, ancestor.command)
        oid = ancestor.parent
    return (
        f"{rows} where xmin = '{leaf.transaction}'::xid "
        f"and (cmin::text::bigint < {command} or xmax <> '0'::xid)"
    )
