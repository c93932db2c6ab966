"""PostgreSQL: the stored tables behind a name, and whether another server writes them.

Two kinds of rows escape the horizon. A table that was attached as a partition, or took another's
place, brings rows that were written before the last sync. Logical replication brings the
publisher's times, which no clock of this server bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loader.sources.jdbc.connection import Connection

_LONGEST = 20_000
"""Characters of a mark; a longer list of table ids is stored as one hash."""


@dataclass(frozen=True)
class Lineage:
    """The tables that hold a table's rows.

    Attributes:
        root: the table's own object id.
        tables: the ids of the table, its partitions and its children, at all depths.
        database: the object id of the database. A copy of it (``create database … template``) has
            the same table ids.
        replicated: whether rows may come from another server, with times of its clock.
    """

    root: int
    tables: frozenset[int]
    replicated: bool
    database: int = 0

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores, beside the horizon."""
        text = " ".join(map(str, sorted(self.tables)))
        if len(text) > _LONGEST:
            text = "md5:" + hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        own: dict[str, Any] = {"tables": text, "database": self.database}
        return own | ({"replicated": True} if self.replicated else {})

    def added(self, mark: Mapping[str, Any] | None) -> frozenset[int]:
        """Returns the tables added since a mark; all of them if it holds only another hash."""
        if self._elsewhere(mark):
            return self.tables
        before = str((mark or {}).get("tables") or "")
        if not before or before == self.to_mark()["tables"]:
            return frozenset()
        known = () if before.startswith("md5:") else before.split()
        return self.tables - set(map(int, known))

    def replaced(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether another table had the name at the time of a mark."""
        before = str((mark or {}).get("tables") or "")
        if self._elsewhere(mark):
            return True
        known = before and not before.startswith("md5:")
        return bool(known) and self.root not in set(map(int, before.split()))

    def _elsewhere(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a mark is of another database; older marks do not say."""
        before = (mark or {}).get("database")
        return before is not None and before != self.database

    def changed(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a mark differs from this lineage."""
        own = self.to_mark()
        return own != {name: value for name, value in (mark or {}).items() if name in _NAMES}


_NAMES = ("tables", "replicated", "database")


def lineage(connection: Connection, relation: str) -> Lineage:
    """Reads a table's lineage, as a connection's transaction sees it.

    Replication origins other than PostgreSQL's own subscriptions do not say which tables they
    write, so they count for all tables.

    Args:
        relation: the table's quoted name, as a text literal.
    """
    [(root, database, tables, replicated)] = connection.rows(
        f"""
        with recursive tree as (
            select {relation}::regclass::oid as id
            union
            select i.inhrelid
            from pg_catalog.pg_inherits as i
            join tree on i.inhparent = tree.id
        )

        select
            {relation}::regclass::oid::text,
            (
                select oid::text
                from pg_catalog.pg_database
                where datname = current_database()
            ),
            string_agg(id::text, ' '),
            (
                exists (
                    select from pg_catalog.pg_subscription_rel
                    where srrelid in (select id from tree)
                )
                or exists (
                    select from pg_catalog.pg_replication_origin
                    where roname !~ '^pg_[0-9]+'
                )
            )::text
        from tree
        """
    )
    ids = frozenset(map(int, (tables or "").split()))
    return Lineage(int(root or 0), ids, replicated == "true", int(database or 0))


def lowest(connection: Connection, tables: Iterable[int], minimum: str) -> list[str] | None:
    """Returns the minimum of each table that has rows; None if one cannot be read in full.

    A role may be able to read a parent, but not its partition.
    """
    ids = ", ".join(map(str, sorted(tables)))
    found = connection.rows(
        f"""
        select
            id::regclass::text,
            (
                pg_catalog.has_table_privilege(id, 'select')
                and not pg_catalog.row_security_active(id)
            )::text
        from unnest(array[{ids}]::oid[]) as id
        """
    )
    if any(readable != "true" for _, readable in found):
        return None
    values = [connection.rows(f"select {minimum} from {name}")[0][0] for name, _ in found]
    return [value for value in values if value is not None]
