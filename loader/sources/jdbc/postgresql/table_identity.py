"""Detects changes in the set of PostgreSQL tables that store a table's rows.

Open transactions are not the only cause of late rows:

- A table that is attached as a partition, or renamed to replace another table, may contain rows
  that were written before the last sync.
- Rows from logical replication have times from the publisher's clock, which may be earlier than the
  start of every local transaction.
- Renaming an enum label changes values in rows without any transaction writing these rows.
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

_FIRST_USER_ID = 16384
"""The lowest object id of types that users create."""
_LONGEST = 20_000
"""The maximum length of a list in a checkpoint. A longer list is stored as a hash."""


@dataclass(frozen=True)
class TableIdentity:
    """The tables that store the rows of a table.

    Attributes:
        tables: the object ids of the table and of all its partitions and child tables.
        replicated: whether logical replication may write rows, so that their times may be from
            another server's clock.
        database: the object id of the database. It distinguishes copies (``create database …
            template``), which have the same table ids.
        columns: the number and type of each column, keyed by name. The number changes if the column
            is recreated, or if another column is given its name.
        view: a hash of the name and definition of a view; empty for tables.
        view_in_path: the same hash, but with the definition as formatted for the session's
            search_path. Older checkpoints contain this hash.
        labels: values that are not stored in rows: the labels of the columns' enums, keyed by the
            enum's object id; and the expressions of virtual columns, keyed by column number.
        bytes: the size of the stored rows, without their TOAST tables.
        clock: the database's clock, in seconds since 1970.
    """

    root: int
    tables: frozenset[int]
    replicated: bool
    database: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    view: str = ""
    view_in_path: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    bytes: int = field(default=0, compare=False)
    clock: float = field(default=0.0, compare=False)

    def to_mark(self) -> dict[str, Any]:
        text = " ".join(map(str, sorted(self.tables)))
        if len(text) > _LONGEST:
            text = "md5:" + hash_text(text)
        mark: dict[str, Any] = {"tables": text, "database": self.database}
        if self.columns:
            mark["columns"] = " ".join(f"{name}:{kind}" for name, kind in self._named.items())
        mark |= {"view": self.view} if self.view else {}
        labels = " ".join(f"{name}:{hash_}" for name, hash_ in self._label_hashes.items())
        mark["labels"] = "md5:" + hash_text(labels) if len(labels) > _LONGEST else labels
        return mark | ({"replicated": True} if self.replicated else {})

    def list_added(self, mark: Mapping[str, Any] | None) -> frozenset[int]:
        """Returns the tables that were added after a checkpoint was stored.

        Returns all tables if this is another database, if the table was a view, if a column's name
        now refers to another column, or if the checkpoint contains only a hash of the tables and
        that hash differs.
        """
        if self.is_in_other_database(mark) or self.has_renamed_column(mark):
            return self.tables
        before = str((mark or {}).get("tables") or "")
        if not before:
            return self.tables if "database" in (mark or {}) else frozenset()
        if before == self.to_mark()["tables"]:
            return frozenset()
        stored_ids = () if before.startswith("md5:") else before.split()
        return self.tables - set(map(int, stored_ids))

    def is_replaced(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether the table was replaced by another one after a checkpoint was stored."""
        before = str((mark or {}).get("tables") or "")
        if self.is_in_other_database(mark) or self.has_renamed_column(mark):
            return True
        has_ids = before and not before.startswith("md5:")
        return bool(has_ids) and self.root not in set(map(int, before.split()))

    def has_renamed_column(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a column's name now refers to a different column than in a checkpoint.

        A change from one text type to another, which rewrites the column's values, also counts.
        Other type changes are detected from the column's type in Spark.
        """
        stored = str((mark or {}).get("columns") or "").split()
        before = dict(column.split(":") for column in stored)
        for name, kind in self._named.items():
            number, _, type_ = kind.partition(".")
            old_number, _, old_type = before.get(name, kind).partition(".")
            if number != old_number or (type_ != old_type and {type_, old_type} <= _TEXTS):
                return True
        return False

    def has_changed_labels(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether :attr:`labels` changed after a checkpoint. Added labels do not count.

        If the checkpoint has no entry for labels, returns whether there are any now.
        """
        before = (mark or {}).get("labels")
        if not mark or before is None:
            return bool(mark and self.labels)
        if before.startswith("md5:"):
            return bool(before != self.to_mark()["labels"])
        hashes = dict(label.split(":") for label in before.split())
        return any(hashes.get(name, hash_) != hash_ for name, hash_ in self._label_hashes.items())

    @cached_property
    def _label_hashes(self) -> dict[str, str]:
        return {name: f"{zlib.crc32(text.encode()):08x}" for name, text in self.labels.items()}

    @cached_property
    def _named(self) -> dict[str, str]:
        """The columns, keyed by a hash of their names."""
        return {f"{zlib.crc32(name.encode()):08x}": kind for name, kind in self.columns.items()}

    def is_in_other_database(self, mark: Mapping[str, Any] | None) -> bool:
        before = (mark or {}).get("database")
        return before is not None and before != self.database

    def is_redefined(self, mark: Mapping[str, Any] | None) -> bool:
        """Returns whether a view was a table in a checkpoint, or had another name or definition."""
        before = (mark or {}).get("view")
        was_table = bool((mark or {}).get("tables"))
        if before is None:
            return bool(self.view) and was_table
        return before not in (self.view, self.view_in_path)

    def is_changed(self, mark: Mapping[str, Any] | None) -> bool:
        before = {name: value for name, value in (mark or {}).items() if name in _NAMES}
        return self.to_mark() != before


_TEXTS = {"25", "1042", "1043"}
"""The object ids of text, char and varchar."""

_NAMES = ("tables", "replicated", "database", "columns", "view", "labels")


def hash_text(text: str) -> str:
    """Returns the md5 hash of a string. Databases in FIPS mode cannot compute it."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def read_table_identity(connection: Connection, relation: str) -> TableIdentity:
    """Reads the identity of a table, within the connection's transaction.

    The text of a view's definition depends on the search_path, so a fixed one is used. Each
    subquery uses the previous one's result, so that the search_path is set before the definition is
    read and restored afterwards.

    PostgreSQL records which tables a subscription writes, but not which tables other replication
    origins write. If there is any other origin, every table counts as replicated.

    Args:
        relation: the quoted name of the table, as a string literal; ``null`` for a query, which is
            identified only by its database.
    """
    is_virtual = "attgenerated = 'v'" if connection.major_version >= 18 else "false"
    [(root, database, columns, tables, size, clock, views, replicated)] = connection.text_rows(
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
                select
                    json_build_array(
                        json_object_agg(attname, attnum || '.' || atttypid),
                        bool_or(atttypid >= {_FIRST_USER_ID} or {is_virtual})
                    )
                from pg_catalog.pg_attribute
                where attrelid = {relation}::regclass and attnum > 0 and not attisdropped
            ),
            string_agg(id::text, ' '),
            sum(pg_catalog.pg_relation_size(id))::bigint::text,
            extract(epoch from clock_timestamp())::text,
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
    numbers, has_labels = json.loads(columns or "[]")
    shown = json.loads(views)[:2] if views else ("", "")
    view, in_path = (hash_text(text) if text else "" for text in shown)
    database_id = int(database or 0)
    return TableIdentity(
        int(root or 0),
        ids,
        replicated == "true",
        database_id,
        numbers or {},
        view,
        in_path,
        _read_labels(connection, relation, is_virtual) if has_labels else {},
        int(size or 0),
        float(clock or 0),
    )


def _read_labels(connection: Connection, relation: str, is_virtual: str) -> Mapping[str, str]:
    rows = connection.text_rows(
        f"""
        with recursive attributes as (
            select attrelid, attnum, atttypid, {is_virtual} as is_virtual
            from pg_catalog.pg_attribute
            where attrelid = {relation}::regclass and attnum > 0 and not attisdropped
        ),

        types as (
            select atttypid as id
            from attributes
            union
            select part.id
            from types
            join pg_catalog.pg_type as t on t.oid = types.id
            left join pg_catalog.pg_range as r on r.rngtypid = t.oid
            left join pg_catalog.pg_attribute as a
                on a.attrelid = t.typrelid
                and a.attnum > 0
                and not a.attisdropped
            cross join lateral (
                values (t.typelem), (t.typbasetype), (r.rngsubtype), (a.atttypid)
            ) as part (id)
            where part.id >= {_FIRST_USER_ID}
        )

        select 'e' || oid, enumlabel::text
        from pg_catalog.pg_enum
        where enumtypid in (select id from types)
        union all
        select 'c' || a.attnum, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
        from attributes as a
        join pg_catalog.pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.is_virtual
        order by 1
        """
    )
    return {str(name): str(label) for name, label in rows}


def find_lowest(connection: Connection, tables: Iterable[int], minimum: str) -> list[str] | None:
    """Returns the minimum of each table that is not empty.

    Returns None if the role cannot read all rows. The role may have the privilege to read a parent
    table but not its partitions.
    """
    ids = ", ".join(map(str, sorted(tables)))
    privileges = connection.rows(
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
    if any(is_readable != "true" for _, is_readable in privileges):
        return None
    values = [connection.rows(f"select {minimum} from {name}")[0][0] for name, _ in privileges]
    return [value for value in values if value is not None]
