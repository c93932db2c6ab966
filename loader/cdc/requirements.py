"""Checks the requirements for reading a database's log, and writes the SQL that meets them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.cdc.slot import SourceSlot, build_publication_sql, name_in_log
from loader.errors import TableError
from loader.names import is_wildcard
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection
from loader.spark.error_translation import DatabaseError

_OLDEST = 140000


@dataclass(frozen=True)
class Lack:
    """Something that is missing.

    Attributes:
        what: a sentence without its full stop.
        remedy: SQL, or what else to do.
    """

    what: str
    remedy: str


@dataclass(frozen=True)
class UnmetRequirements:
    """The requirements that a source does not meet, as errors.

    Attributes:
        server: the error of the server or the role; nothing else was checked then.
        tables: the errors of tables that cannot be followed, by name.
        unpublishable: the errors of tables that this role cannot add to the publication, by name.
        publication: the error of the publication.
    """

    server: TableError | None = None
    tables: Mapping[str, TableError] = field(default_factory=dict)
    unpublishable: Mapping[str, TableError] = field(default_factory=dict)
    publication: TableError | None = None


def find_unmet_requirements(
    connection: Connection,
    slot: SourceSlot,
    tables: Sequence[SourceTable],
    key: Callable[[SourceTable], Sequence[str]],
    where: str,
) -> UnmetRequirements:
    """Checks all requirements of a source.

    Args:
        key: returns a table's key.
        where: the source, for messages.
    """
    server = build_error(find_server_lacks(connection, slot), where)
    if server is not None:
        return UnmetRequirements(server)
    names = Counter(map(name_in_log, tables))
    refused: dict[str, TableError] = {}
    for table in tables:
        place = f"table {slot.database.name}.{table.ref.name}, sync_mode: cdc"
        error: TableError | None
        try:
            error = build_error(find_table_lacks(connection, slot, table, key(table)), place)
        except DatabaseError as denied:  # such as a schema that the role may not use
            error = denied
        if error is None and names[name_in_log(table)] > 1:
            error = TableError(
                f"another table is called {name_in_log(table)} in the log, too",
                where=place,
                remedy="Read one of them by a cursor (sync_mode: incremental)",
            )
        if error is not None:
            refused[table.ref.name] = error
    good = [table for table in tables if table.ref.name not in refused]
    barred = find_unpublishable(connection, slot, good)
    # One statement publishes all tables: so the error is one for all of them.
    errors = {name: build_error([lack], where) for name, lack in barred.items()}
    return UnmetRequirements(
        None,
        refused,
        {name: error for name, error in errors.items() if error is not None},
        build_error(find_publication_lacks(connection, slot), where),
    )


def find_server_lacks(connection: Connection, slot: SourceSlot) -> list[Lack]:
    """Returns the unmet requirements of the server and the role."""
    text = slot.database.dialect.text
    [(version, level, may, role, used, slots, standby)] = connection.rows(
        f"""
        select
            current_setting('server_version_num'),
            current_setting('wal_level'),
            (
                select rolsuper or rolreplication or exists (
                    select from pg_catalog.pg_roles as g
                    where g.rolname = 'rds_replication'
                        and pg_catalog.pg_has_role(current_user, g.oid, 'member')
                )
                from pg_catalog.pg_roles
                where rolname = current_user
            )::text,
            current_user,
            (
                select count(*) from pg_catalog.pg_replication_slots
                where slot_name <> {text(slot.name)}
            )::text,
            current_setting('max_replication_slots'),
            pg_catalog.pg_is_in_recovery()::text
        """
    )
    lacks = []
    if int(version or 0) < _OLDEST:
        lacks.append(Lack("its PostgreSQL is older than 14", "Upgrade it"))
    if standby == "true":
        lacks.append(Lack("it is a read replica", "Name the primary in the source's url"))
    if level != "logical":
        lacks.append(
            Lack(
                f"wal_level is {level}",
                "Run `alter system set wal_level = 'logical'` and restart the server",
            )
        )
    if may != "true":
        quoted = slot.database.dialect.quote(role or "")
        lacks.append(
            Lack(f"the role {role} may not read the log", f"Run `alter role {quoted} replication`")
        )
    if int(used or 0) >= int(slots or 0):
        lacks.append(
            Lack(
                f"all {slots} replication slots are taken",
                f"Run `alter system set max_replication_slots = {int(slots or 0) + 5}` and restart "
                "the server, or drop one that nobody reads (pg_replication_slots)",
            )
        )
    return lacks


def find_table_lacks(
    connection: Connection, slot: SourceSlot, table: SourceTable, key: Sequence[str]
) -> list[Lack]:
    """Returns a table's unmet requirements.

    One without a replica identity must not be published: updates of it would fail.
    """
    dialect, native = slot.database.dialect, table.ref.native
    name = slot.database.relation(native)
    if not native.stored:
        return [Lack("it is not a table: the log has only tables", "Read the tables behind it")]
    rows = connection.rows(
        f"""
        with leaves as (
            select coalesce(tree.relid::oid, root.oid) as id
            from (select {dialect.text(name)}::regclass::oid as oid) as root
            left join lateral pg_catalog.pg_partition_tree(root.oid) as tree on true
            where coalesce(tree.isleaf, true)
        )

        select
            leaves.id::regclass::text,
            c.relpersistence,
            c.relreplident,
            (
                c.relkind = 'r'
                and exists (select from pg_catalog.pg_inherits as i where i.inhparent = c.oid)
            )::text,
            pg_catalog.row_security_active({dialect.text(name)}::regclass)::text,
            current_user,
            (
                select string_agg(a.attname, chr(31))
                from pg_catalog.pg_index as i
                join pg_catalog.pg_attribute as a
                    on a.attrelid = i.indrelid
                    and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
                where i.indrelid = c.oid
                    and i.indimmediate
                    and case c.relreplident
                        when 'd' then i.indisprimary
                        when 'i' then i.indisreplident
                        else false
                    end
            ),
            (
                select string_agg(i.indexrelid::regclass::text, ', ' order by i.indexrelid)
                from pg_catalog.pg_index as i
                where i.indrelid = c.oid
                    and i.indisunique
                    and not i.indimmediate
                    and {_within(dialect.text, key)}
                    and not exists (
                        select from pg_catalog.pg_index as i
                        where i.indrelid = c.oid
                            and i.indisunique
                            and i.indimmediate
                            and i.indpred is null
                            and i.indexprs is null
                            and {_within(dialect.text, key)}
                    )
            )
        from leaves
        join pg_catalog.pg_class as c on c.oid = leaves.id
        """
    )
    lacks = []
    for leaf, persistence, identity, inherited, secured, role, identity_columns, deferrable in rows:
        if persistence != "p":
            lacks.append(Lack(f"{leaf} is unlogged", f"Run `alter table {leaf} set logged`"))
        if inherited == "true":
            lacks.append(
                Lack(f"other tables inherit from {leaf}", "Read each of them as a table of its own")
            )
        if secured == "true" and not any("row-level" in lack.what for lack in lacks):
            lacks.append(
                Lack(
                    f"row-level security hides rows of {name} from the role {role} when it is "
                    "queried, and not in the log",
                    f"Run `alter role {dialect.quote(role or '')} bypassrls`",
                )
            )
        known = {column.lower() for column in (identity_columns or "").split("\x1f")}
        if deferrable and key:
            lacks.append(
                Lack(
                    f"the key ({', '.join(key)}) of {leaf} is deferrable ({deferrable}): the log "
                    "cannot tell its rows apart by it",
                    f"Create the constraint again, without `deferrable`, on {name}, or read the "
                    "table by a cursor (sync_mode: incremental)",
                )
            )
        elif identity != "f" and not {column.lower() for column in key} <= known:
            lacks.append(
                Lack(
                    f"the log would not tell which row of {leaf} was updated or deleted: its "
                    f"replica identity does not hold the key ({', '.join(key)})",
                    f"Run `alter table {leaf} replica identity full`, or `using index` with a "
                    "unique index on the key",
                )
            )
    return lacks


def _within(text: Callable[[str], str], key: Sequence[str]) -> str:
    """Returns the condition that an index `i` has no columns but the key's."""
    names = ", ".join(text(column.lower()) for column in key)
    return f"""not exists (
                        select from pg_catalog.pg_attribute as a
                        where a.attrelid = i.indrelid
                            and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
                            and lower(a.attname) not in ({names or "null"})
                    )"""


def find_publication_lacks(connection: Connection, slot: SourceSlot) -> list[Lack]:
    """Returns what a publication of another creator leaves out; empty if there is none."""
    dialect, name = slot.database.dialect, slot.database.dialect.quote(slot.name)
    rows = connection.rows(
        f"""
        select
            (p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate)::text,
            p.pubviaroot::text,
            (
                select string_agg(r.prrelid::regclass::text, ', ')
                from pg_catalog.pg_publication_rel as r
                where r.prpubid = p.oid
                    -- PostgreSQL 14 has neither column
                    and (to_jsonb(r) ->> 'prqual' is not null or to_jsonb(r) ->> 'prattrs' <> '')
            )
        from pg_catalog.pg_publication as p
        where p.pubname = {dialect.text(slot.name)}
        """
    )
    lacks = []
    for whole, root, filtered in rows:
        if whole != "true":
            lacks.append(
                Lack(
                    f"the publication {slot.name} leaves out some kinds of changes",
                    f"Run `alter publication {name} set "
                    "(publish = 'insert, update, delete, truncate')`",
                )
            )
        if root != "true":
            lacks.append(
                Lack(
                    f"the publication {slot.name} tells partitions apart",
                    f"Run `alter publication {name} set (publish_via_partition_root = true)`",
                )
            )
        if filtered:
            lacks.append(
                Lack(
                    f"the publication {slot.name} leaves out rows or columns of {filtered}",
                    f"Run `alter publication {name} drop table {filtered}`, then "
                    f"`alter publication {name} add table {filtered}`",
                )
            )
    return lacks


def find_unpublishable(
    connection: Connection, slot: SourceSlot, tables: Sequence[SourceTable]
) -> dict[str, Lack]:
    """Returns why this role cannot add tables to the publication, by their names."""
    dialect = slot.database.dialect
    there = slot.read_publication(connection)
    new = {}
    for table in tables:
        place = (table.ref.native.schema or "", table.ref.native.table)
        if there is None or place not in there:
            new[table.ref.name] = ".".join(map(dialect.quote, place))
    if not new:
        return {}
    oids = ", ".join(f"({number}, {dialect.text(n)})" for number, n in enumerate(new.values()))
    rows = connection.rows(
        f"""
        select
            pg_catalog.pg_has_role(c.relowner, 'usage')::text,
            case
                when {"true" if there is None else "false"}
                    then pg_catalog.has_database_privilege(current_database(), 'create')
                else (
                    select pg_catalog.pg_has_role(pubowner, 'usage')
                    from pg_catalog.pg_publication
                    where pubname = {dialect.text(slot.name)}
                )
            end::text
        from (values {oids}) as wanted (place, name)
        join pg_catalog.pg_class as c on c.oid = wanted.name::regclass
        order by wanted.place
        """
    )
    barred = [name for name, row in zip(new, rows, strict=True) if set(row) != {"true"}]
    names = [new[name] for name in barred]
    # The tables that this role may publish are published first.
    sql = build_publication_sql(
        dialect.quote(slot.name), names, new=there is None and len(names) == len(new)
    )
    lack = Lack(
        f"the publication {slot.name} lacks {', '.join(names)}, and this role may not add "
        f"{'it' if len(names) == 1 else 'them'}",
        f"Run `{sql}` as the owner of the tables",
    )
    return dict.fromkeys(barred, lack)


def list_setup_sql(name: str, role: str, tables: Sequence[str]) -> list[str]:
    """Returns all that a source needs, for an administrator who prepares it in advance.

    Args:
        name: of slot and publication.
        role: the source's user.
        tables: as the spec names them.
    """
    return [
        "alter system set wal_level = 'logical';  -- then restart the server",
        f'alter role "{role}" replication;',
        build_publication_sql(name, list(map(_format_table, tables)), new=True) + ";",
        f"select pg_create_logical_replication_slot('{name}', 'pgoutput');",
    ]


def _format_table(table: str) -> str:
    """Returns a table's name from a spec as SQL; a wildcard as a gap for its tables."""
    if is_wildcard(table):
        return f"<the tables that {table} matches>"
    parts = table.split(".")
    return ".".join(
        part if re.fullmatch("[a-z_][a-z0-9_]*", part) else '"{}"'.format(part.replace('"', '""'))
        for part in parts
    )


def build_error(lacks: Sequence[Lack], where: str) -> TableError | None:
    """Returns the error that names all that is missing; None if nothing is."""
    if not lacks:
        return None
    return TableError(
        "the log cannot be read: " + "; ".join(lack.what for lack in lacks),
        where=where,
        remedy=". ".join(lack.remedy for lack in lacks),
    )
