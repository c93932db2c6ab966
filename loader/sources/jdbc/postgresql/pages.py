"""Cuts a table of PostgreSQL into ranges of its pages: as even as its rows, and nothing is counted.

A row version is on one page, and a snapshot sees one version of a row, so the ranges deliver each
row once, in the order of the table itself. Each reader scans its own pages.
"""

from __future__ import annotations

from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect

PLACE = "strandline_ctid"
"""The name under which a subquery shows where a row is."""

COLUMN = f"ctid as {PLACE}"

_ORDERED = 0.95
"""From this correlation on, the table is in the order of its cursor, and so are the files."""


def page_cuts(
    connection: Connection, dialect: Dialect, relation: str, cursor: str | None, count: int
) -> list[str]:
    """Returns conditions on :data:`PLACE` for `count` readers; empty if this is not the way.

    It is not for partitioned tables, for other kinds of storage and for PostgreSQL before 14,
    which scans the whole table for a range of pages; nor if the rows are not in the order of the
    cursor: files that each hold all cursors would be read by every later sync.

    Args:
        relation: the table's qualified and quoted name.
        cursor: the cursor column's name; None if there is none.

    Raises:
        DatabaseError: if the server only speaks PostgreSQL's protocol.
    """
    own = dialect.text(relation)
    found = connection.rows(
        f"""
        select
            pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int,
            (
                select s.correlation
                from pg_catalog.pg_stats as s
                where s.schemaname = n.nspname
                    and s.tablename = c.relname
                    and s.attname = {dialect.text(cursor or "")}
            )
        from pg_catalog.pg_class as c
        join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
        join pg_catalog.pg_am as a on a.oid = c.relam
        where c.oid = {own}::regclass
            and c.relkind = 'r'
            and a.amname = 'heap'
            and not exists (select from pg_catalog.pg_inherits where inhparent = c.oid)
            and current_setting('server_version_num')::int >= 140000
        """
    )
    if not found:
        return []
    connection.rows(f"select ctid::text from {relation} limit 1")
    [(pages, correlation)] = found
    if cursor is not None and abs(float(correlation or 0)) < _ORDERED:
        return []
    cuts = sorted({int(pages or 0) * part // count for part in range(1, count)} - {0})
    marks = [f"{PLACE} >= '({cut},0)'::tid" for cut in cuts]
    ends = [f"{PLACE} < '({cut},0)'::tid" for cut in cuts]
    if not cuts:
        return []
    return [
        ends[0],
        *(f"{low} and {high}" for low, high in zip(marks, ends[1:], strict=False)),
        marks[-1],
    ]
