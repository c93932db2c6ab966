"""PostgreSQL: the stored tables behind a name, and who writes them.

Two things bring rows that no transaction since the last sync wrote, or whose times no clock here
bounds: a table that was attached as a partition or put in another's place brings its rows as they
are, and logical replication brings the publisher's times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loader.sources.jdbc.connection import Connection

_LONGEST = 20_000
"""Characters of a mark; the ids of more tables than that are kept as one hash."""


@dataclass(frozen=True)
class Lineage:
    """The tables that hold a table's rows.

    Attributes:
        root: the table's own object id.
        tables: the ids of the table, its partitions and its children, at all depths.
        replicated: whether rows may come from another server, with times of its clock.
    """

    root: int
    tables: frozenset[int]
    replicated: bool

    def to_mark(self) -> dict[str, Any]:
        """As the state keeps it, beside the horizon."""
        text = " ".join(map(str, sorted(self.tables)))
        if len(text) > _LONGEST:
            text = "md5:" + hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        return {"tables": text} | ({"replicated": True} if self.replicated else {})

    def added(self, mark: Mapping[str, Any] | None) -> frozenset[int]:
        """The tables that were not there at a mark, as far as it knows; all where it does not."""
        before = str((mark or {}).get("tables") or "")
        if not before or before == self.to_mark()["tables"]:
            return frozenset()
        known = () if before.startswith("md5:") else before.split()
        return self.tables - set(map(int, known))

    def replaced(self, mark: Mapping[str, Any] | None) -> bool:
        """Whether another table had the name at a mark."""
        before = str((mark or {}).get("tables") or "")
        known = before and not before.startswith("md5:")
        return bool(known) and self.root not in set(map(int, before.split()))

    def changed(self, mark: Mapping[str, Any] | None) -> bool:
        """Whether a mark says something else."""
        own = self.to_mark()
        return own != {name: value for name, value in (mark or {}).items() if name in _NAMES}


_NAMES = ("tables", "replicated")


def lineage(connection: Connection, relation: str) -> Lineage:
    """The lineage of a table as a connection's transaction sees it.

    Replication origins of others than PostgreSQL's own subscriptions do not say which tables they
    write: they count for all.

    Args:
        relation: its name, quoted and as a text literal.
    """
    [(root, tables, replicated)] = connection.rows(
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
    return Lineage(int(root or 0), ids, replicated == "true")


def lowest(connection: Connection, tables: Iterable[int], minimum: str) -> list[str] | None:
    """A minimum in each of some tables that has any rows.

    None where they cannot be asked: a partition may be closed to those who may read its parent.
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
