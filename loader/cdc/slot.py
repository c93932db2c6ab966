"""A source's replication slot and publication in PostgreSQL.

All of a source's tables that have `sync_mode: cdc` share one slot and one publication, so the
database decodes its log only once. The slot retains the log from its confirmed position on. Only
:meth:`SourceSlot.advance` moves this position, at most to the lowest position that the state stores
for any of these tables (:class:`SlotAdvance`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from loader.cdc.position import Mark, format_position, parse_position
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, Database
from loader.spark.error_translation import DatabaseError

PLUGIN = "pgoutput"
FLUSH_PREFIX = "strandline-flush"
"""The prefix of log messages whose only purpose is to flush the log to disk."""
_MAX_NAME_BYTES = 63
_FILTERS_SINCE = 15
"""The first major version of PostgreSQL in which publications can filter rows."""
_PEEK_BYTES = 16 * 1024 * 1024
"""If the log has grown by more than this, Debezium starts without a prior check for changes."""


_TABLES_BY_NAME = """(
                select p.pubname, n.nspname as schemaname, c.relname as tablename
                from pg_catalog.pg_publication_rel as r
                join pg_catalog.pg_publication as p on p.oid = r.prpubid
                join pg_catalog.pg_class as c on c.oid = r.prrelid
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
            )"""
"""A subquery for the tables that a publication lists by name."""


@dataclass(frozen=True)
class Slot:
    """A replication slot, as the database reports it.

    Attributes:
        confirmed: the position from which the slot can be read.
        lost: the reason why the slot can no longer be read, or "".
        reader_pid: the process id of the session that reads the slot, or "".
        remaining_bytes: how much the log may grow before the server invalidates the slot; None if
            unlimited.
    """

    confirmed: int
    lost: str = ""
    reader_pid: str = ""
    retained_bytes: int = 0
    remaining_bytes: int | None = None


class SourceSlot:
    """A source's slot and publication.

    Args:
        name: the name of the slot and of the publication.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name
        self.where = f"source {database.name}"

    def read_slot(self, connection: Connection) -> Slot | None:
        """Reads the slot. Returns None if it does not exist."""
        text = self.database.dialect.text
        rows = connection.rows(
            f"""
            select
                s.confirmed_flush_lsn::text,
                coalesce(s.wal_status, ''),
                coalesce(s.active_pid::text, ''),
                coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint::text,
                s.safe_wal_size::text,
                s.plugin,
                coalesce(s.database, ''),
                current_database()
            from pg_catalog.pg_replication_slots as s
            where s.slot_name = {text(self.name)}
            """
        )
        if not rows:
            return None
        [(confirmed, status, reader, retained, remaining, plugin, database, current_database)] = (
            rows
        )
        if plugin != PLUGIN or database != current_database:
            raise TableError(
                f"the replication slot {self.name} belongs to another consumer: it decodes the "
                f"database {database or '?'} with {plugin or 'no plugin'}",
                where=self.where,
                remedy="Set the source's `slot` to another name",
            )
        lost = "" if status != "lost" and confirmed else "the server has invalidated it"
        return Slot(
            parse_position(confirmed) if confirmed else 0,
            lost,
            reader or "",
            int(retained or 0),
            int(remaining) if remaining is not None else None,
        )

    def create(self, connection: Connection) -> None:
        """Creates the slot. PostgreSQL first waits for all open transactions to end."""
        text = self.database.dialect.text
        try:
            connection.rows(
                "select lsn::text from pg_catalog.pg_create_logical_replication_slot("
                f"{text(self.name)}, {text(PLUGIN)})"
            )
        except DatabaseError as error:
            if error.is_locked_out:
                raise self._build_waiting_error() from error
            raise

    def drop(self, connection: Connection) -> None:
        """Drops the slot, so that the server can recycle the log."""
        text = self.database.dialect.text
        connection.execute(f"select pg_catalog.pg_drop_replication_slot({text(self.name)})")

    def publish(self, connection: Connection, tables: Sequence[SourceTable]) -> None:
        """Creates the publication, or adds missing tables to it and corrects filters."""
        existing = self.read_publication(connection)
        filters = self.read_filters(connection)
        missing, changed = [], []
        for table in tables:
            if existing is None or get_schema_and_table(table) not in existing:
                missing.append(table)
            elif not self.has_filter(connection, table, filters):
                changed.append(table)
        statements = []
        name = self.database.dialect.quote(self.name)
        if changed:
            names = [self.database.relation(table.ref.native) for table in changed]
            statements.append(f"alter publication {name} drop table {', '.join(names)}")
        if missing or changed:
            added = [self.format_published(table) for table in (*missing, *changed)]
            statements.append(build_publication_sql(name, added, new=existing is None))
            connection.prepare(statements)  # in one transaction

    def format_published(self, table: SourceTable) -> str:
        native = table.ref.native
        filter_ = f" where ({native.where})" if native.where else ""
        return f"{self.database.relation(native)}{filter_}"

    def read_filters(self, connection: Connection) -> dict[tuple[str, str], str]:
        """Maps each table that the publication lists by name to its filter; "" means no filter.

        A publication of all tables, or of all tables in a schema, has no filters.
        """
        if connection.major_version < _FILTERS_SINCE:
            return {}
        rows = connection.rows(
            f"""
            select n.nspname, c.relname, pg_catalog.pg_get_expr(r.prqual, r.prrelid)
            from pg_catalog.pg_publication as p
            join pg_catalog.pg_publication_rel as r on r.prpubid = p.oid
            join pg_catalog.pg_class as c on c.oid = r.prrelid
            join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
            where p.pubname = {self.database.dialect.text(self.name)}
                and not p.puballtables
                and not exists (
                    select from pg_catalog.pg_publication_namespace as s
                    where s.pnpubid = p.oid and s.pnnspid = c.relnamespace
                )
            """
        )
        return {(schema or "", table or ""): filter_ or "" for schema, table, filter_ in rows}

    def has_filter(
        self, connection: Connection, table: SourceTable, filters: Mapping[tuple[str, str], str]
    ) -> bool:
        """Returns whether the publication's filter for a table matches the table's `where` option.

        PostgreSQL reformats filters, so the conditions are compared after PostgreSQL has parsed
        both.

        Args:
            filters: the result of :meth:`read_filters`.
        """
        wanted, published = table.ref.native.where, filters.get(get_schema_and_table(table), "")
        if not wanted or not published:
            return bool(wanted == published)
        relation = self.database.relation(table.ref.native)
        parsed = []
        for condition in (wanted, published):
            plan = connection.rows(
                f"explain (verbose, costs off) select (\n{condition}\n) from {relation}"
            )
            parsed.append([line for (line,) in plan if "Output:" in (line or "")])
        return bool(parsed[0]) and parsed[0] == parsed[1]

    def read_publication(self, connection: Connection) -> dict[tuple[str, str], str] | None:
        """Maps the publication's tables to fingerprints. Returns None if there is no publication.

        The keys are pairs of a schema and a table name. A fingerprint changes if the table is
        removed from the publication and added again, if another table gets this name, or if the
        publication's options change.
        """
        text = self.database.dialect.text(self.name)
        has_schemas = connection.major_version >= 15
        schemas = (
            "select pnpubid from pg_catalog.pg_publication_namespace" if has_schemas else "select 0"
        )
        all_tables = connection.rows(
            f"""
            select (p.puballtables or p.oid in ({schemas}))::text
            from pg_catalog.pg_publication as p
            where p.pubname = {text}
            """
        )
        # The `pg_publication_tables` view opens each table, so an ALTER of one table blocks the
        # query.
        tables = (
            "pg_catalog.pg_publication_tables" if all_tables == [("true",)] else _TABLES_BY_NAME
        )
        rows = connection.rows(
            f"""
            select
                t.schemaname,
                t.tablename,
                concat_ws('/', p.oid, p.xmin, r.oid, r.xmin, c.oid)
            from pg_catalog.pg_publication as p
            left join {tables} as t on t.pubname = p.pubname
            left join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
            left join pg_catalog.pg_class as c
                on c.relnamespace = n.oid
                and c.relname = t.tablename
            left join pg_catalog.pg_publication_rel as r
                on r.prpubid = p.oid
                and r.prrelid = c.oid
            where p.pubname = {text}
            """
        )
        if not rows:
            return None
        return {
            (schema, table): published or ""
            for schema, table, published in rows
            if schema and table
        }

    def read_end(self, connection: Connection) -> int:
        """Returns the end of the log, which is above every committed transaction."""
        [(lsn,)] = connection.rows("select pg_catalog.pg_current_wal_insert_lsn()::text")
        return parse_position(lsn or "")

    def read_flushed(self, connection: Connection) -> int:
        """Returns a position below which all transactions that have committed can be decoded.

        The server decodes only the flushed part of the log. With `synchronous_commit = off`, a
        commit may return before the log is flushed. If necessary, this method flushes the log with
        a synchronous commit.
        """
        [(has_unflushed,)] = connection.rows(
            "select (pg_catalog.pg_current_wal_insert_lsn() "
            "> pg_catalog.pg_current_wal_flush_lsn())::text"
        )
        if has_unflushed == "true":
            # A transaction that writes nothing would not flush the log.
            self.write_message(connection, FLUSH_PREFIX, "")
        [(lsn,)] = connection.rows("select pg_catalog.pg_current_wal_flush_lsn()::text")
        return parse_position(lsn or "")

    def has_no_changes(self, connection: Connection, slot: Slot, end: int) -> bool:
        """Returns whether the log up to a position has no changes to the published tables.

        Also returns False if the log has grown so much that decoding it would take a long time.
        """
        if end - slot.confirmed > _PEEK_BYTES:
            return False
        text = self.database.dialect.text
        [(changes,)] = connection.rows(
            "select count(*)::text from pg_catalog.pg_logical_slot_peek_binary_changes("
            f"{text(self.name)}, {text(format_position(end))}, 1, "
            f"'proto_version', '1', 'publication_names', {text(self.name)})"
        )
        return changes == "0"

    def write_message(self, connection: Connection, prefix: str, content: str) -> int:
        """Writes a message to the log and returns its position.

        A reader receives all earlier transactions before the message. The position is below the end
        of the transaction that contains the message.
        """
        text = self.database.dialect.text
        connection.execute("set synchronous_commit = on")
        [(lsn,)] = connection.rows(
            "select pg_catalog.pg_logical_emit_message("
            f"true, {text(prefix)}, {text(content)})::text"
        )
        return parse_position(lsn or "")

    def advance(self, connection: Connection, position: int) -> None:
        """Moves the slot to a position, so that the server can recycle the log below it."""
        text = self.database.dialect.text
        connection.rows(
            "select end_lsn::text from pg_catalog.pg_replication_slot_advance("
            f"{text(self.name)}, {text(format_position(position))})"
        )

    def await_free(self, connection: Connection, seconds: int) -> None:
        """Waits until no session is reading the slot. The server notices a killed reader with a
        delay.

        Raises:
            TableError: if another session is still reading the slot after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            slot = self.read_slot(connection)
            if slot is None or not slot.reader_pid:
                return
            if time.monotonic() > deadline:
                raise TableError(
                    f"another session (pid {slot.reader_pid}) reads the replication slot "
                    f"{self.name}",
                    where=self.where,
                    remedy="Run again when that session has ended, or raise the source's "
                    "lock_timeout",
                )
            time.sleep(0.1)

    def await_open_transactions(self, connection: Connection) -> None:
        """Waits for the end of all open transactions that have already written something.

        The log may lack changes that such a transaction made before the table was published. A
        snapshot after this wait contains these changes.

        Raises:
            TableError: if such a transaction is still open after the source's lock_timeout.
        """
        # A new id is higher than the ids of all transactions that have already written something.
        # The xmax of a snapshot may be lower.
        [(limit,)] = connection.rows("select pg_catalog.pg_current_xact_id()::text")
        deadline = time.monotonic() + self.database.lock_timeout
        while True:
            [(oldest,)] = connection.rows(
                "select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text"
            )
            if int(oldest or 0) >= int(limit or 0):
                return
            if time.monotonic() > deadline:
                raise self._build_waiting_error()
            time.sleep(0.1)

    def _build_waiting_error(self) -> TableError:
        return TableError(
            "a first load waits for older open transactions, and one of them did not end in time",
            where=self.where,
            remedy="Run again when it has ended (pg_stat_activity or pg_prepared_xacts shows it), "
            "or raise the source's lock_timeout",
        )


def build_publication_sql(name: str, tables: Sequence[str], new: bool) -> str:
    """Returns the statement that creates a publication or adds tables to it.

    Args:
        name: the quoted name of the publication.
    """
    table_list = ", ".join(tables)
    if new:
        return (
            f"create publication {name} for table {table_list} "
            "with (publish_via_partition_root = true)"
        )
    return f"alter publication {name} add table {table_list}"


def choose_slot_name(source: str, configured: str | None = None) -> str:
    """Returns the name of a source's slot and publication, at most 63 bytes."""
    return configured or f"strandline_{re.sub('[^a-z0-9_]', '_', source.lower())}"[:_MAX_NAME_BYTES]


class SlotAdvance:
    """Moves the slot to the lowest stored position of the source's tables.

    Attributes:
        load_marks: returns the stored checkpoints of a table that this run does not select; None if
            they cannot be read.
    """

    def __init__(self, slot: SourceSlot) -> None:
        self.load_marks: Callable[[str], Sequence[Mapping[str, Any]]] | None = None
        self._slot = slot
        self._positions: dict[str, int | None] = {}

    def record_mark(self, table: str, mark: Mark | None) -> None:
        """Records the position in a table's stored checkpoint; None before the first load."""
        self._positions[table] = mark.position if mark is not None else None

    def advance(
        self,
        slot: Slot,
        exclude_loads: Callable[[Connection], AbstractContextManager[bool]],
    ) -> None:
        """Moves the slot to the lowest position, unless a first load is running.

        Args:
            exclude_loads: returns a context manager that prevents new first loads, and yields
                whether no first load is running.
        """
        if self._find_lowest_position() <= slot.confirmed:
            return
        database = self._slot.database
        with database.connect() as connection:
            self._slot.await_free(connection, database.lock_timeout)
            with exclude_loads(connection) as no_loads:
                # If no first load is running, the state contains the checkpoints of all tables.
                if not no_loads or not self._look_up_unselected_tables():
                    return
                current = self._slot.read_slot(connection)
                if current is not None and current.confirmed < self._find_lowest_position():
                    self._slot.advance(connection, self._find_lowest_position())

    def _find_lowest_position(self) -> int:
        return min((p for p in self._positions.values() if p is not None), default=0)

    def _look_up_unselected_tables(self) -> bool:
        """Loads the positions of unselected tables. Returns False if they cannot be loaded."""
        selected = {name.lower() for name in self._positions}
        for name in self._slot.database.list_cdc_tables():
            if name.lower() not in selected:
                if self.load_marks is None:
                    return False
                marks = map(Mark.from_dict, self.load_marks(name))
                positions = [mark.position for mark in marks if mark is not None]
                self._positions[name] = min(positions, default=None)
        return True


def get_schema_and_table(table: SourceTable) -> tuple[str, str]:
    return table.ref.native.schema or "", table.ref.native.table


def build_log_name(table: SourceTable) -> str:
    """Returns a table's name in the log: `schema.table`."""
    return ".".join(get_schema_and_table(table))
