"""PostgreSQL: the replication slot that keeps the log for a source, and its publication.

A source has one slot and one publication for all of its tables with `sync_mode: cdc`, so the
database decodes its log once. The slot keeps the log from the position that was last confirmed;
nothing but :meth:`SourceSlot.advance` moves it, up to the lowest position that is stored for any of
the source's tables (:class:`SlotAdvance`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from loader.cdc.position import Mark, format_position, parse_position
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, Database
from loader.spark.error_translation import DatabaseError

PLUGIN = "pgoutput"
FLUSH = "strandline-flush"
"""The prefix of messages that are written only to wait for the disk."""
_LONGEST = 63
_PEEK_BYTES = 16 * 1024 * 1024
"""If the log has grown by no more than this, the server is asked whether it holds any change."""


_LISTED = """(
                select p.pubname, n.nspname as schemaname, c.relname as tablename
                from pg_catalog.pg_publication_rel as r
                join pg_catalog.pg_publication as p on p.oid = r.prpubid
                join pg_catalog.pg_class as c on c.oid = r.prrelid
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
            )"""
"""The tables that are in publications by name."""


@dataclass(frozen=True)
class Slot:
    """A replication slot, as the database reports it.

    Attributes:
        confirmed: the position from which it can be read.
        lost: why it cannot be read any more; empty if it can.
        reader: the process id of the session that reads it now; empty if none does.
        held: how many bytes of log it keeps.
        left: how many more bytes it may keep until the server gives it up; None if unlimited.
    """

    confirmed: int
    lost: str = ""
    reader: str = ""
    held: int = 0
    left: int | None = None


class SourceSlot:
    """A source's slot and publication.

    Args:
        name: the name of both.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name
        self.where = f"source {database.name}"

    def read_slot(self, connection: Connection) -> Slot | None:
        """Reads the slot; None if there is none."""
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
        [(confirmed, status, reader, held, left, plugin, database, own)] = rows
        if plugin != PLUGIN or database != own:
            raise TableError(
                f"the replication slot {self.name} belongs to another consumer: it decodes the "
                f"database {database or '?'} with {plugin or 'no plugin'}",
                where=self.where,
                remedy="Name another one in the source's `slot`",
            )
        lost = "" if status != "lost" and confirmed else "the server has given it up"
        return Slot(
            parse_position(confirmed) if confirmed else 0,
            lost,
            reader or "",
            int(held or 0),
            int(left) if left is not None else None,
        )

    def create(self, connection: Connection) -> None:
        """Creates the slot; waits for transactions that are open, as PostgreSQL requires."""
        text = self.database.dialect.text
        try:
            connection.rows(
                "select lsn::text from pg_catalog.pg_create_logical_replication_slot("
                f"{text(self.name)}, {text(PLUGIN)})"
            )
        except DatabaseError as error:
            if error.is_locked_out:
                raise self._waiting_error() from error
            raise

    def drop(self, connection: Connection) -> None:
        """Drops the slot: the log that it keeps can be recycled."""
        text = self.database.dialect.text
        connection.execute(f"select pg_catalog.pg_drop_replication_slot({text(self.name)})")

    def publish(self, connection: Connection, relations: Sequence[tuple[str, str]]) -> None:
        """Makes the publication hold tables.

        Args:
            relations: schema and name of each table.
        """
        there = self.read_publication(connection)
        if there is None:
            added = list(relations)
        else:
            added = [relation for relation in relations if relation not in there]
        if added:
            tables = [self._quote(relation) for relation in added]
            name = self.database.dialect.quote(self.name)
            connection.execute(build_publication_sql(name, tables, new=there is None))

    def read_publication(self, connection: Connection) -> dict[tuple[str, str], str] | None:
        """Returns the publication's tables; None if there is no publication.

        Returns schema and name of each, with a text that is another one once the table was taken
        out and put back, another table got its name, or the publication's options were changed.
        """
        text = self.database.dialect.text(self.name)
        new = connection.major_version >= 15
        schemas = "select pnpubid from pg_catalog.pg_publication_namespace" if new else "select 0"
        found = connection.rows(
            f"""
            select (p.puballtables or p.oid in ({schemas}))::text
            from pg_catalog.pg_publication as p
            where p.pubname = {text}
            """
        )
        # The view opens each table: one that is being altered would block all others.
        tables = "pg_catalog.pg_publication_tables" if found == [("true",)] else _LISTED
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
        """Returns the end of the log: every transaction that has committed lies below it."""
        [(lsn,)] = connection.rows("select pg_catalog.pg_current_wal_insert_lsn()::text")
        return parse_position(lsn or "")

    def read_flushed(self, connection: Connection) -> int:
        """Returns a position below which all that has committed until now can be decoded.

        Only what is on disk can, and with `synchronous_commit = off` a transaction commits before
        it is. A commit that waits for the disk takes all others before it along.
        """
        [(ahead,)] = connection.rows(
            "select (pg_catalog.pg_current_wal_insert_lsn() "
            "> pg_catalog.pg_current_wal_flush_lsn())::text"
        )
        if ahead == "true":
            # A transaction that writes nothing would not wait.
            self.write_message(connection, FLUSH, "")
        [(lsn,)] = connection.rows("select pg_catalog.pg_current_wal_flush_lsn()::text")
        return parse_position(lsn or "")

    def has_no_changes(self, connection: Connection, slot: Slot, end: int) -> bool:
        """Returns whether the log has no change of the publication's tables up to a position.

        Asks the server only if the log has grown little: it decodes what it is asked about.
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
        """Writes a message into the log: a reader that reaches it has read everything before it.

        Returns its position, which is below the end of its transaction.
        """
        text = self.database.dialect.text
        connection.execute("set synchronous_commit = on")
        [(lsn,)] = connection.rows(
            "select pg_catalog.pg_logical_emit_message("
            f"true, {text(prefix)}, {text(content)})::text"
        )
        return parse_position(lsn or "")

    def advance(self, connection: Connection, position: int) -> None:
        """Moves the slot: the log below the position can be recycled."""
        text = self.database.dialect.text
        connection.rows(
            "select end_lsn::text from pg_catalog.pg_replication_slot_advance("
            f"{text(self.name)}, {text(format_position(position))})"
        )

    def await_free(self, connection: Connection, seconds: int) -> None:
        """Waits until no session reads the slot: the server takes a moment to notice a killed run.

        Raises:
            TableError: if another session keeps reading it.
        """
        deadline = time.monotonic() + seconds
        while True:
            slot = self.read_slot(connection)
            if slot is None or not slot.reader:
                return
            if time.monotonic() > deadline:
                raise TableError(
                    f"another session (pid {slot.reader}) reads the replication slot {self.name}",
                    where=self.where,
                    remedy="Run again when that run is done, or raise the source's lock_timeout",
                )
            time.sleep(0.1)

    def await_open_transactions(self, connection: Connection) -> None:
        """Waits until all transactions that have written already have ended.

        If a table has just been put into the publication, the log may lack what they have written
        to it before. A snapshot that is taken afterwards sees it.

        Raises:
            TableError: if such a transaction stays open.
        """
        # A new id is above those of all transactions that have written; a snapshot's xmax is not.
        [(limit,)] = connection.rows("select pg_catalog.pg_current_xact_id()::text")
        deadline = time.monotonic() + self.database.lock_timeout
        while True:
            [(oldest,)] = connection.rows(
                "select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text"
            )
            if int(oldest or 0) >= int(limit or 0):
                return
            if time.monotonic() > deadline:
                raise self._waiting_error()
            time.sleep(0.1)

    def _waiting_error(self) -> TableError:
        return TableError(
            "a transaction that began before has been open too long: a first load has to wait for "
            "those that may have written already",
            where=self.where,
            remedy="Run again when it is done (pg_stat_activity or pg_prepared_xacts shows it), or "
            "raise the source's lock_timeout",
        )

    def _quote(self, relation: Iterable[str]) -> str:
        return ".".join(map(self.database.dialect.quote, relation))


def build_publication_sql(name: str, tables: Sequence[str], new: bool) -> str:
    """Returns the statement that makes a publication, or adds tables to it; names are quoted."""
    listed = ", ".join(tables)
    if new:
        return (
            f"create publication {name} for table {listed} with (publish_via_partition_root = true)"
        )
    return f"alter publication {name} add table {listed}"


def slot_name(source: str, given: str | None = None) -> str:
    """Returns the name of a source's slot and publication: allowed for slots, at most 63 bytes."""
    return given or f"strandline_{re.sub('[^a-z0-9_]', '_', source.lower())}"[:_LONGEST]


class SlotAdvance:
    """The positions that are stored, by table.

    Attributes:
        marks_of: looks up the stored marks of a table that is not in this run; None if there is no
            such lookup.
    """

    def __init__(self, slot: SourceSlot) -> None:
        self.marks_of: Callable[[str], Sequence[Mapping[str, Any]]] | None = None
        self._slot = slot
        self._stored: dict[str, int | None] = {}

    def record_mark(self, table: str, mark: Mark | None) -> None:
        """Notes a table's stored mark; None if it was not read by the log yet."""
        self._stored[table] = mark.position if mark is not None else None

    def advance(
        self,
        slot: Slot,
        exclude_loads: Callable[[Connection], AbstractContextManager[bool]],
    ) -> None:
        """Moves the slot to the lowest position, unless first loads need it where it is.

        Args:
            slot: as it was when the run began.
            exclude_loads: keeps first loads from beginning; yields whether none goes on.
        """
        if self._find_lowest() <= slot.confirmed:
            return
        database = self._slot.database
        with database.connect() as connection:
            self._slot.await_free(connection, database.lock_timeout)
            with exclude_loads(connection) as none:
                # The marks of first loads that other runs have ended are stored now.
                if not none or not self._look_up_others():
                    return
                found = self._slot.read_slot(connection)
                if found is not None and found.confirmed < self._find_lowest():
                    self._slot.advance(connection, self._find_lowest())

    def _find_lowest(self) -> int:
        return min((p for p in self._stored.values() if p is not None), default=0)

    def _look_up_others(self) -> bool:
        """Looks up the tables that are not in this run; returns whether that was possible."""
        known = {name.lower() for name in self._stored}
        for name in self._slot.database.list_cdc_tables():
            if name.lower() not in known:
                if self.marks_of is None:
                    return False
                marks = map(Mark.from_dict, self.marks_of(name))
                held = [mark.position for mark in marks if mark is not None]
                self._stored[name] = min(held, default=None)
        return True


def schema_and_table(table: SourceTable) -> tuple[str, str]:
    """Returns a table's schema and name."""
    return table.ref.native.schema or "", table.ref.native.table


def name_in_log(table: SourceTable) -> str:
    """Returns a table's name in the log."""
    return ".".join(schema_and_table(table))
