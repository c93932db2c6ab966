"""A digest of a few rows, computed by PostgreSQL: the same rows have the same digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from loader.sources import Digest
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect

MANY = 1000
"""Of more rows than this no digest is made: reading and comparing them costs no more."""

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
    [(foreign, size)] = connection.rows(_parts(dialect.text(relation)))
    if int(foreign or 0) or (not indexed and int(size or 0) > _SCANNED):
        return None
    if rows is None:
        # Not by a limit in the query below: with one, a table may be scanned instead of its index.
        [(count,)] = connection.rows(f"select count(*) from {relation}{where}")
        rows = int(count or 0)
    if rows > MANY:
        return None
    hashed = f"select md5(row({', '.join(columns)})::text) as hash from {relation}{where}"
    [(count, text)] = connection.rows(
        f"select count(*), string_agg(hash, '' order by hash) from ({hashed}) as few"
    )
    return Digest(int(count or 0), hashlib.sha256((text or "").encode()).hexdigest())


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
        select count(*) filter (where c.relkind = 'f'), sum(pg_catalog.pg_relation_size(c.oid))
        from parts as p
        join pg_catalog.pg_class as c on c.oid = p.oid
        """
