"""Checks the requirements for reading a database's log, and builds the SQL that meets them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loader.cdc.slot import (
    SourceSlot,
    build_log_name,
    build_publication_sql,
    get_schema_and_table,
)
from loader.errors import TableError
from loader.names import is_wildcard
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection
from loader.spark.error_translation import ConnectionRefusedByServer, DatabaseError

_MIN_VERSION = 140000
_UNDEFINED_COLUMN = "42703"


@dataclass(frozen=True)
class UnmetRequirement:
    """A requirement that is not met.

    Attributes:
        what: the problem, as a sentence without a full stop.
    """

    what: str
    remedy: str


@dataclass(frozen=True)
class RequirementErrors:
    """The errors for a source's unmet requirements.

    Attributes:
        server: the error for the server or the role. If there is one, the tables and the
            publication were not checked.
        tables: maps the name of each table that cannot be read from the log to its error.
        unpublishable: maps the name of each table that the role may not add to the publication to
            its error.
    """

    server: TableError | None = None
    tables: Mapping[str, TableError] = field(default_factory=dict)
    unpublishable: Mapping[str, TableError] = field(default_factory=dict)
    publication: TableError | None = None


def check_requirements(
    connection: Connection,
    slot: SourceSlot,
    tables: Sequence[SourceTable],
    list_key: Callable[[SourceTable], Sequence[str]],
    where: str,
) -> RequirementErrors:
    """Checks all requirements for reading a source's log."""
    server = build_error(check_server(connection, slot), where)
    if server is not None:
        return RequirementErrors(server)
    names = Counter(map(build_log_name, tables))
    refused: dict[str, TableError] = {}
    for table in tables:
        location = f"table {slot.database.name}.{table.ref.name}, sync_mode: cdc"
        error: TableError | None
        try:
            error = build_error(check_table(connection, slot, table, list_key(table)), location)
        except DatabaseError as denied:  # for example if the role lacks USAGE on the schema
            error = denied
        if error is None and names[build_log_name(table)] > 1:
            error = TableError(
                f"another table also has the name {build_log_name(table)} in the log",
                where=location,
                remedy="Read one of them with a cursor (sync_mode: incremental)",
            )
        if error is not None:
            refused[table.ref.name] = error
    accepted = [table for table in tables if table.ref.name not in refused]
    unpublishable = find_unpublishable_tables(connection, slot, accepted)
    # One statement publishes all tables. If the role may not run it, all of these tables get the
    # same error.
    errors = {
        name: build_error([requirement], where) for name, requirement in unpublishable.items()
    }
    return RequirementErrors(
        None,
        refused,
        {name: error for name, error in errors.items() if error is not None},
        build_error(check_publication(connection, slot), where),
    )


def check_server(connection: Connection, slot: SourceSlot) -> Iterator[UnmetRequirement]:
    text = slot.database.dialect.text
    [(version, wal_level, may_replicate, role, used_slots, max_slots, standby)] = connection.rows(
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
    if int(version or 0) < _MIN_VERSION:
        yield UnmetRequirement("its PostgreSQL is older than 14", "Upgrade it")
    if standby == "true":
        yield UnmetRequirement("it is a read replica", "Use the primary in the source's url")
    if wal_level != "logical":
        yield UnmetRequirement(
            f"wal_level is {wal_level}",
            "Run `alter system set wal_level = 'logical'` and restart the server",
        )
    if may_replicate != "true":
        quoted = slot.database.dialect.quote(role or "")
        yield UnmetRequirement(
            f"the role {role} may not read the log", f"Run `alter role {quoted} replication`"
        )
    if int(used_slots or 0) >= int(max_slots or 0):
        yield UnmetRequirement(
            f"all {max_slots} replication slots are in use",
            f"Run `alter system set max_replication_slots = {int(max_slots or 0) + 5}` and "
            "restart the server, or drop a slot that is not used (pg_replication_slots)",
        )


def check_table(
    connection: Connection, slot: SourceSlot, table: SourceTable, key: Sequence[str]
) -> Iterator[UnmetRequirement]:
    """Yields a table's unmet requirements.

    A table without a replica identity must not be published, because PostgreSQL would then reject
    updates of its rows.
    """
    dialect, native = slot.database.dialect, table.ref.native
    name = slot.database.relation(native)
    if not native.stored:
        yield UnmetRequirement(
            "it is not a table: the log has only tables", "Read its underlying tables"
        )
        return
    rows = connection.rows(_build_leaf_query(dialect.text, name, key))
    if native.where and connection.major_version < 15:
        yield UnmetRequirement(
            "the table has the `where` option, and PostgreSQL 14 publications cannot filter rows",
            "Upgrade it to 15, or read the table with a cursor (sync_mode: incremental)",
        )
    for leaf, persistence, identity, inherited, secured, role, identity_columns, deferrable in rows:
        if persistence != "p":
            yield UnmetRequirement(f"{leaf} is unlogged", f"Run `alter table {leaf} set logged`")
        if inherited == "true":
            yield UnmetRequirement(
                f"other tables inherit from {leaf}", "Read each of them as a separate table"
            )
        if secured == "true" and leaf == rows[0][0]:  # it is the same for all partitions
            yield UnmetRequirement(
                f"row-level security hides rows of {name} from the role {role} in queries, "
                "but not in the log",
                f"Run `alter role {dialect.quote(role or '')} bypassrls`",
            )
        identity_names = {column.lower() for column in (identity_columns or "").split("\x1f")}
        if deferrable and key:
            yield UnmetRequirement(
                f"the key ({', '.join(key)}) of {leaf} is deferrable ({deferrable}), so two "
                "rows may have the same key within a transaction",
                f"Recreate the constraint without `deferrable` on {name}, or read the "
                "table with a cursor (sync_mode: incremental)",
            )
        elif identity != "f" and not {column.lower() for column in key} <= identity_names:
            yield UnmetRequirement(
                f"the log does not show which row of {leaf} was updated or deleted: the "
                f"table's replica identity does not contain the key ({', '.join(key)})",
                f"Run `alter table {leaf} replica identity full`, or `using index` with a "
                "unique index on the key",
            )
        elif native.where and identity != "f":
            listed = [column for column in (identity_columns or "").split("\x1f") if column]
            if not _uses_only(connection, slot, table, listed):
                yield UnmetRequirement(
                    f"the log does not show whether an updated or deleted row of {leaf} "
                    "matched the `where` option: the table's replica identity "
                    f"({', '.join(listed)}) lacks a column of the condition",
                    f"Run `alter table {leaf} replica identity full`",
                )


def _build_leaf_query(quote_text: Callable[[str], str], name: str, key: Sequence[str]) -> str:
    """Returns a query for the partitions that store a table's rows, or for the table itself.

    The columns are: name, persistence, replica identity, whether other tables inherit from it,
    whether row-level security is active, the current role, the columns of the replica identity
    (separated by U+001F), and the deferrable unique indexes of the key if no other one exists.
    """
    return f"""
        with leaves as (
            select coalesce(tree.relid::oid, root.oid) as id
            from (select {quote_text(name)}::regclass::oid as oid) as root
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
            pg_catalog.row_security_active({quote_text(name)}::regclass)::text,
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
                    and {_build_key_condition(quote_text, key)}
                    and not exists (
                        select from pg_catalog.pg_index as i
                        where i.indrelid = c.oid
                            and i.indisunique
                            and i.indimmediate
                            and i.indpred is null
                            and i.indexprs is null
                            and {_build_key_condition(quote_text, key)}
                    )
            )
        from leaves
        join pg_catalog.pg_class as c on c.oid = leaves.id
    """


def _uses_only(
    connection: Connection, slot: SourceSlot, table: SourceTable, columns: Sequence[str]
) -> bool:
    native, quote = table.ref.native, slot.database.dialect.quote
    subquery = f"select {', '.join(map(quote, columns))} from {slot.database.relation(native)}"
    try:
        connection.rows(
            f"explain select (\n{native.where}\n) from ({subquery}) as {quote(native.table)}"
        )
    except ConnectionRefusedByServer as error:
        if error.state != _UNDEFINED_COLUMN:
            raise
        return False
    return True


def _build_key_condition(text: Callable[[str], str], key: Sequence[str]) -> str:
    """Returns an SQL condition that is true if the index `i` has only key columns."""
    names = ", ".join(text(column.lower()) for column in key)
    return f"""not exists (
                        select from pg_catalog.pg_attribute as a
                        where a.attrelid = i.indrelid
                            and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
                            and lower(a.attname) not in ({names or "null"})
                    )"""


def check_publication(connection: Connection, slot: SourceSlot) -> Iterator[UnmetRequirement]:
    """Yields the unmet requirements of the publication; none if there is no publication."""
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
                    -- to_jsonb, because this column does not exist in PostgreSQL 14
                    and to_jsonb(r) ->> 'prattrs' <> ''
            )
        from pg_catalog.pg_publication as p
        where p.pubname = {dialect.text(slot.name)}
        """
    )
    for publishes_all, via_root, filtered in rows:
        if publishes_all != "true":
            yield UnmetRequirement(
                f"the publication {slot.name} excludes some kinds of changes",
                f"Run `alter publication {name} set "
                "(publish = 'insert, update, delete, truncate')`",
            )
        if via_root != "true":
            yield UnmetRequirement(
                f"the publication {slot.name} publishes partitions as separate tables",
                f"Run `alter publication {name} set (publish_via_partition_root = true)`",
            )
        if filtered:
            yield UnmetRequirement(
                f"the publication {slot.name} excludes columns of {filtered}",
                f"Run `alter publication {name} drop table {filtered}`, then "
                f"`alter publication {name} add table {filtered}`",
            )


def find_unpublishable_tables(
    connection: Connection, slot: SourceSlot, tables: Sequence[SourceTable]
) -> dict[str, UnmetRequirement]:
    """Maps the name of each table that the role may not publish to the unmet requirement."""
    dialect = slot.database.dialect
    published, filters = slot.read_publication(connection), slot.read_filters(connection)
    missing, unfiltered, changed = {}, {}, set()
    for table in tables:
        relation = get_schema_and_table(table)
        is_published = published is not None and relation in published
        if is_published and table.ref.native.where and relation not in filters:
            unfiltered[table.ref.name] = UnmetRequirement(
                f"the publication {slot.name} publishes all tables, or all tables of a schema, "
                "which PostgreSQL does not filter by the `where` option",
                "Set the source's `slot` to another name",
            )
        elif not is_published:
            missing[table.ref.name] = table
        elif not slot.has_filter(connection, table, filters):
            missing[table.ref.name] = table
            changed.add(table.ref.name)
    if not missing:
        return unfiltered
    relations = {name: slot.database.relation(table.ref.native) for name, table in missing.items()}
    wanted = ", ".join(
        f"({number}, {dialect.text(relation)})"
        for number, relation in enumerate(relations.values())
    )
    rows = connection.rows(
        f"""
        select
            pg_catalog.pg_has_role(c.relowner, 'usage')::text,
            case
                when {"true" if published is None else "false"}
                    then pg_catalog.has_database_privilege(current_database(), 'create')
                else (
                    select pg_catalog.pg_has_role(pubowner, 'usage')
                    from pg_catalog.pg_publication
                    where pubname = {dialect.text(slot.name)}
                )
            end::text
        from (values {wanted}) as wanted (place, name)
        join pg_catalog.pg_class as c on c.oid = wanted.name::regclass
        order by wanted.place
        """
    )
    refused = [name for name, row in zip(missing, rows, strict=True) if set(row) != {"true"}]
    names = [relations[name] for name in refused]
    # If the role can publish some of the tables, the loader first creates the publication with
    # these tables. The SQL then only adds the remaining tables.
    sql = build_publication_sql(
        dialect.quote(slot.name),
        [slot.format_published(missing[name]) for name in refused],
        new=published is None and len(names) == len(missing),
    )
    dropped = [relations[name] for name in refused if name in changed]
    lacks = f"lacks {', '.join(names)}"
    if dropped:
        drop = f"alter publication {dialect.quote(slot.name)} drop table {', '.join(dropped)}"
        sql = f"{drop}; {sql}"
        lacks += f", or does not filter {'it' if len(names) == 1 else 'them'} by the `where` option"
    requirement = UnmetRequirement(
        f"the publication {slot.name} {lacks}, and this role may not add "
        f"{'it' if len(names) == 1 else 'them'}",
        f"Run `{sql}` as the owner of the tables",
    )
    return {**unfiltered, **dict.fromkeys(refused, requirement)}


def list_setup_sql(name: str, role: str, tables: Mapping[str, str | None]) -> list[str]:
    """Returns the SQL statements with which an administrator can prepare a database.

    Args:
        name: the name of the slot and the publication.
        role: the source's user.
        tables: maps each table's name in the spec to its `where` option, or to None.
    """
    published = [
        _format_table(table) + (f" where ({where})" if where else "")
        for table, where in tables.items()
    ]
    return [
        "alter system set wal_level = 'logical';  -- then restart the server",
        f'alter role "{role}" replication;',
        build_publication_sql(name, published, new=True) + ";",
        f"select pg_create_logical_replication_slot('{name}', 'pgoutput');",
    ]


def _format_table(table: str) -> str:
    """Formats a table's name as SQL. A wildcard becomes a placeholder for the user to fill in."""
    if is_wildcard(table):
        return f"<the tables that {table} matches>"
    parts = table.split(".")
    return ".".join(
        part if re.fullmatch("[a-z_][a-z0-9_]*", part) else '"{}"'.format(part.replace('"', '""'))
        for part in parts
    )


def build_error(unmet: Iterable[UnmetRequirement], where: str) -> TableError | None:
    """Returns one error that lists all unmet requirements, or None if there are none."""
    listed = list(unmet)
    if not listed:
        return None
    return TableError(
        "the log cannot be read: " + "; ".join(requirement.what for requirement in listed),
        where=where,
        remedy=". ".join(requirement.remedy for requirement in listed),
    )
