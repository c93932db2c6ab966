"""Detects attached and detached partitions of PostgreSQL, whose rows are not in the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loader.sources.jdbc.connection import Connection


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


def partitions(connection: Connection, relation: str) -> dict[str, Partition]:
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
