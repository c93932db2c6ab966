"""PostgreSQL: the stored tables behind a name, and whether another server writes them.

The transactions that were open do not explain two kinds of rows. A table that was attached as a
partition, or took another's place, brings rows that were written before the last sync. Logical
replication brings the publisher's times, which no clock of this server bounds.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loader.sources.jdbc.connections import Connection

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
        columns: number and type of each column. A column that was dropped and added again, or that
            took the name of another, has another number.
        replicated: whether rows may come from another server, with times of its clock.
        view: a hash of a view's name and definition; empty for tables.
        view_in_path: the same of its definition as the session's search_path shows it, which marks
            of earlier versions have.
    """

    root: int
    tables: frozenset[int]
    replicated: bool
    database: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    view: str = ""
    view_in_path: str = ""

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores, beside the transactions."""
        text = " ".join(map(str, sorted(self.tables)))
        if len(text) > _LONGEST:
            text = "md5:" + hash_text(text)
        own: dict[str, Any] = {"tables": text, "database": self.database}
        if self.columns:
            own["columns"] = " ".join(f"{name}:{kind}" for name, kind in self._named.items())
        own |= {"view": self.view} if self.view else {}
        return own | ({"replicated": True} if self.replicated else {})

    def list_added(self, mark: Mapping[str, Any] | None) -> frozenset[int]:
        """Returns the tables added since a mark; all of them if it holds only another hash."""
        if self.elsewhere(mark) or self.has_renamed_column(mark):
            return self.tables
        before = str((mark or {}).get("tables") or "")
        if not before or before == self.to_mark()["tables"]:
            return frozenset()
        known = () if before.startswith("md5:") else before.split()
        return self.tables - set(map(int, known))

    def is_replaced(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether another table had the name at the time of a mark."""
        before = str((mark or {}).get("tables") or "")
        if self.elsewhere(mark) or self.has_renamed_column(mark):
            return True
        known = before and not before.startswith("md5:")
        return bool(known) and self.root not in set(map(int, before.split()))

    def has_renamed_column(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a column has its name from another one since a mark.

        Or whether it was rewritten as another kind of text: other changes of a type show in what
        Spark reads, and raw follows them.
        """
        stored = str((mark or {}).get("columns") or "").split()
        before = dict(one.split(":") for one in stored)
        for name, kind in self._named.items():
            number, _, type_ = kind.partition(".")
            then, _, old = before.get(name, kind).partition(".")
            if number != then or (type_ != old and {type_, old} <= _TEXTS):
                return True
        return False

    @cached_property
    def _named(self) -> dict[str, str]:
        """The columns, by a short hash of each name."""
        return {f"{zlib.crc32(name.encode()):08x}": kind for name, kind in self.columns.items()}

    def elsewhere(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a mark is of another database; older marks do not say."""
        before = (mark or {}).get("database")
        return before is not None and before != self.database

    def is_redefined(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a mark is of a view with another name or SQL; older marks do not say."""
        before = (mark or {}).get("view")
        return before not in (None, self.view, self.view_in_path)

    def is_changed(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a mark differs from this lineage."""
        own = self.to_mark()
        return own != {name: value for name, value in (mark or {}).items() if name in _NAMES}


_TEXTS = {"25", "1042", "1043"}
"""The object ids of text, char and varchar."""

_NAMES = ("tables", "replicated", "database", "columns", "view")


def hash_text(text: str) -> str:
    """Returns a short hash; not the database's md5, which some do not allow (FIPS)."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def read_lineage(connection: Connection, relation: str) -> Lineage:
    """Reads a table's lineage, as a connection's transaction sees it.

    How a view's definition names tables depends on the search_path, so it is asked for with one
    that is always the same; it is then as it was, as each step takes the result of the one before.

    Replication origins other than PostgreSQL's own subscriptions do not say which tables they
    write, so they count for all tables.

    Args:
        relation: the table's quoted name, as a text literal.
    """
    [(root, database, columns, tables, views, replicated)] = connection.texts(
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
            (
                select json_object_agg(attname, attnum || '.' || atttypid)
                from pg_catalog.pg_attribute
                where attrelid = {relation}::regclass and attnum > 0 and not attisdropped
            ),
            string_agg(id::text, ' '),
            (
                select
                    json_build_array(
                        name || fixed, name || shown, set_config('search_path', path, true)
                    )
                from (
                    select
                        name,
                        shown,
                        path,
                        pg_catalog.pg_get_viewdef(
                            case set_config('search_path', 'pg_catalog', true)
                                when 'pg_catalog' then id
                            end
                        ) as fixed
                    from (
                        select
                            c.oid as id,
                            n.nspname || '.' || c.relname as name,
                            pg_catalog.pg_get_viewdef(c.oid) as shown,
                            current_setting('search_path') as path
                        from pg_catalog.pg_class as c
                        join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                        where c.oid = {relation}::regclass and c.relkind in ('v', 'm')
                        offset 0
                    ) as found
                    offset 0
                ) as definitions
            ),
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
    numbers = json.loads(columns or "{}")
    shown = json.loads(views)[:2] if views else ("", "")
    view, in_path = (hash_text(text) if text else "" for text in shown)
    own = int(database or 0)
    return Lineage(int(root or 0), ids, replicated == "true", own, numbers, view, in_path)


def find_lowest(connection: Connection, tables: Iterable[int], minimum: str) -> list[str] | None:
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
