"""A digest of rows, computed by PostgreSQL: the same rows have the same digest."""

from __future__ import annotations

from collections.abc import Sequence

from loader.sources import Digest
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect

MANY = 1_000_000
"""Of more rows than this no digest is made: their hashes would take the database 32 MB and more."""

_SCANNED = 64 * 1024 * 1024
"""A table of more bytes is not scanned for this: only if an index leads to the rows."""


def digest_of(
    connection: Connection,
    dialect: Dialect,
    relation: str,
    columns: Sequence[str],
    where: str,
    rows: int | None,
    indexed: bool,
) -> Digest | None:
    """Returns a digest of rows; None if they are many, or expensive to find.

    None, too, if some are in another server: a foreign partition has snapshots of its own. The
    text of a row tells null from an empty text, and where each column ends.

    Args:
        relation: the table's qualified and quoted name.
        columns: SQL for each column, as the database has it.
        where: which rows, with the word itself; empty for all.
        rows: how many they are; None if that is not known.
        indexed: whether an index leads to them.
    """
    allowed = "" if indexed else f" and size <= {_SCANNED}"
    counted = f"(select count(*) from {relation}{where})" if rows is None else str(rows)
    hashed = f"select md5(row({', '.join(columns)})::text) as hash from {relation}{where}"
    # Each step is taken only if the one before allows it: `offset 0` keeps them apart. The rows are
    # not limited to so many: with a limit, a table may be scanned instead of its index.
    [(count, text)] = connection.texts(
        f"""
        select
            rows,
            case when rows <= {MANY} then (
                select count(*) || ' ' || encode(
                    sha256(convert_to(coalesce(string_agg(hash, '' order by hash), ''), 'UTF8')),
                    'hex'
                )
                from ({hashed}) as few
            ) end
        from (
            select case when foreign_parts = 0{allowed} then {counted} end as rows
            from ({_parts(dialect.text(relation))}) as parts
            offset 0
        ) as found
        """
    )
    if count is None or text is None:
        return None
    number, _, digest = text.partition(" ")
    return Digest(int(number), digest)


def _parts(relation: str) -> str:
    """Returns SQL for the number of foreign tables among a table's parts, and for their bytes."""
    return f"""
        with recursive parts (oid) as (
            select {relation}::regclass::oid
            union all
            select i.inhrelid
            from pg_catalog.pg_inherits as i
            join parts as p on p.oid = i.inhparent
        )
        select
            count(*) filter (where c.relkind = 'f') as foreign_parts,
            sum(pg_catalog.pg_relation_size(c.oid)) as size
        from parts as p
        join pg_catalog.pg_class as c on c.oid = p.oid
        """
