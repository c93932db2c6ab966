"""One run's look at the log of a PostgreSQL database, for its tables with `sync_mode: cdc`."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.rows.delta import DELETED
from loader.rows.window import Bounds, Logged, Window
from loader.sources import Snapshot, SourceTable
from loader.sources.debezium.engine import installed, missing, spool_folder, spooled
from loader.sources.debezium.program import MARKER, Order
from loader.sources.debezium.spool import Spool
from loader.sources.jdbc.cdc.changes import Changes
from loader.sources.jdbc.cdc.columns import LoggedColumn, altered, logged_columns, numbered
from loader.sources.jdbc.cdc.partitions import Partition, moved, partitions
from loader.sources.jdbc.cdc.position import Mark, Seen, shown
from loader.sources.jdbc.cdc.requirements import (
    publication_lacks,
    publishable,
    refused,
    server_lacks,
    table_lacks,
)
from loader.sources.jdbc.cdc.settings import by_source, settings
from loader.sources.jdbc.cdc.slot import Slot, SourceSlot, slot_name
from loader.sources.jdbc.cdc.vanished import vanished
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.postgresql.exported import exported
from loader.sources.jdbc.postgresql.horizon import activity
from loader.sources.jdbc.snapshot import JdbcSnapshot

_log = logging.getLogger("loader")
T = TypeVar("T")

SEGMENT = 16 * 1024 * 1024
"""The log is recycled in files of this size: a shorter way is not worth a commit of its own."""


@dataclass(frozen=True)
class Drained:
    """What the log held, up to a position that was its end when the run began.

    Attributes:
        spool: the changes; None if there were none.
        position: all before it was read.
    """

    spool: Spool | None
    position: int


class Log(Snapshot):
    """The log, and the tables that follow it; opened once a run.

    Nothing is asked of the database before the first table needs it. The first table that needs
    changes reads those of all tables.

    Args:
        tables: all of the run's tables with `sync_mode: cdc`.
        stack: closed at the end of the run.
    """

    def __init__(self, database: Database, tables: Sequence[SourceTable], stack: ExitStack) -> None:
        self.database = database
        self.tables = {table.ref.name: table for table in tables}
        self.slot = SourceSlot(database, slot_name(database.name, database.options.slot))
        self.where = f"source {database.name}, sync_mode: cdc"
        self._stack = stack
        self._alone = threading.RLock()
        self._before: Slot | None = None
        self._created = False
        self._system = ""
        self._failure: Exception | None = None
        self._refused: dict[str, TableError] = {}
        self._published: Mapping[tuple[str, str], str] = {}
        self._stored: dict[str, int | None] = {}
        self._mark_of: Callable[[str], Mapping[str, Any] | None] | None = None
        self._placeholder = secrets.token_hex(16)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        mark = Mark.from_dict(window.mark)
        # Whatever happens to the table, the slot keeps the log from here on for it.
        self._stored[table.ref.name] = mark.position if mark is not None else None
        with self._alone:
            slot = self._ready
            if table.ref.name in self._refused:
                raise self._refused[table.ref.name]
            columns = self._columns(table)
            parts, lost = self._partitions(table, mark)
            if mark is not None:
                lost = self._lost(table, mark, slot) or altered(mark.columns, columns) or lost
            if mark is None or lost:
                return self._first(table, window, parts, lost)
            drained = self._once(lambda: self._drained)
        after = mark.moved(drained.position, numbered(columns), parts)
        spool, name = drained.spool, _logged(table)
        changed = spool is not None and spool.changes(name) > 0
        if changed and spool is not None:
            self._whole(table, columns, spool)
            if numbered(self._columns(table)) != numbered(columns):  # now that all is read
                raise self._altered(table)
        return Bounds(
            rows=None if changed else 0,
            mark=after.to_dict(),
            settled=after.position - mark.position >= SEGMENT
            or (after.seen, after.partitions) != (mark.seen, mark.partitions),
            log=Logged(shown(mark.position), shown(after.position), slot.held),
            notes=self._held(slot),
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        assert bounds.log is not None
        if bounds.log.low is None:
            rows = self._load.read(spark, table, Window(), bounds)
            rows = rows.withColumn(DELETED, f.lit(False))
            if window.held is None:
                return rows
            return rows.unionByName(vanished(rows, table, self.key(table), window.held))
        mark, spool = Mark.from_dict(window.mark), self._drained.spool
        assert mark is not None
        assert spool is not None
        changes = Changes(
            table=table,
            spool=spool,
            logged=_logged(table),
            columns=self._columns(table),
            key=self.key(table),
            first=spool.first_after(mark.position),
            seen=mark.seen,
            placeholder=self._placeholder,
            cached=self._cached,
        )
        return changes.rows(spark, window)

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        mark = Mark.from_dict(window.mark)
        if mark is None:
            return Bounds(None)
        with self.database.connect(self._where(table)) as connection:
            return Bounds(None, log=Logged(shown(mark.position), shown(self.slot.end(connection))))

    def kept(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        found = Mark.from_dict(mark)
        if found is not None:
            self._stored[table.ref.name] = found.position

    def remembers(self, mark: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._mark_of = mark

    def lacking(self, table: SourceTable) -> list[str]:
        where = f"{self._where(table)}, sync_mode: cdc"
        with self.database.connect(self._where(table)) as connection:
            lacks = [
                *server_lacks(connection, self.slot),
                *table_lacks(connection, self.slot, table, self.key(table)),
            ]
            if not lacks:
                lacks = publishable(connection, self.slot, [table])
            if not lacks:
                lacks = publication_lacks(connection, self.slot)
            found = refused(lacks, where)
            if found is not None:
                raise found
            slot = self.slot.look(connection)
        self._columns(table)
        if not installed():
            raise missing(where)
        if slot is None:
            return [f"the first run creates the replication slot {self.slot.name}"]
        kept = f"the replication slot {self.slot.name} keeps {slot.held >> 20:,} MB of log"
        return [f"{self.slot.name}: {slot.lost}"] if slot.lost else [kept]

    def key(self, table: SourceTable) -> Sequence[str]:
        """Returns a table's key, as the spec or the database declares it."""
        given = self.database.read_options(table.ref).primary_key
        names = {name.lower(): name for name in table.schema.names}
        return [names.get(k.lower(), k) for k in given] if given else table.primary_key

    def confirm(self) -> None:
        """Moves the slot to where all tables that follow it are safe; called once all is published.

        Of tables that are not in this run, the stored mark tells.
        """
        if self._before is None or self._failure is not None:
            return
        known = {name.lower() for name in self._stored}
        for name, options in self.database.options.table_options.items():
            if options.sync_mode == "cdc" and name.lower() not in known:
                if self._mark_of is None:
                    return
                mark = Mark.from_dict(self._mark_of(name))
                self._stored[name] = mark.position if mark is not None else None
        positions = [position for position in self._stored.values() if position is not None]
        safe = min(positions, default=0)
        if safe <= self._before.confirmed:
            return
        with self.database.connect() as connection:
            self.slot.freed(connection, self.database.lock_timeout)
            self.slot.confirm(connection, safe)

    @cached_property
    def _folder(self) -> Path:
        return self._stack.enter_context(spool_folder())

    def _cached(self, rows: DataFrame) -> DataFrame:
        kept = rows.persist()
        self._stack.callback(kept.unpersist)
        return kept

    @property
    def _ready(self) -> Slot:
        """Makes publication and slot ready, once."""
        if self._before is None:
            self._before = self._once(self._prepared)
        return self._before

    def _once(self, step: Callable[[], T]) -> T:
        """Takes a step that all tables need; if one failed, every table gets its error."""
        if self._failure is not None:
            raise self._failure
        try:
            return step()
        except Exception as error:
            self._failure = error
            raise

    def _prepared(self) -> Slot:
        with self.database.connect() as connection:
            lacks = refused(server_lacks(connection, self.slot), self.where)
            if lacks is not None:
                raise lacks
            self._system = activity(connection).system
            for name, table in self.tables.items():
                where = f"{self._where(table)}, sync_mode: cdc"
                found = refused(table_lacks(connection, self.slot, table, self.key(table)), where)
                if found is not None:
                    self._refused[name] = found
                if sum(_logged(other) == _logged(table) for other in self.tables.values()) > 1:
                    self._refused[name] = TableError(
                        f"another table is called {_logged(table)} in the log, too",
                        where=where,
                        remedy="Read one of them by a cursor (sync_mode: incremental)",
                    )
            good = [t for name, t in self.tables.items() if name not in self._refused]
            missing = publishable(connection, self.slot, good)
            lacks = refused(missing or publication_lacks(connection, self.slot), self.where)
            if lacks is not None:
                raise lacks
            slot = self.slot.look(connection)
            if slot is None and not good:
                return Slot(0)  # no table needs it; without a publication it could not be read
            if slot is not None and (slot.lost or self.slot.published(connection) is None):
                self.slot.drop(connection)
                slot = None
            self.slot.publish(connection, [_relation(table) for table in good])
            self._published = self.slot.published(connection) or {}
            if slot is None:
                self.slot.create(connection)
                self._created = True
                slot = self.slot.look(connection)
            assert slot is not None
            return slot

    def _lost(self, table: SourceTable, mark: Mark, slot: Slot) -> str:
        """Returns why a table cannot go on from its mark; empty if it can."""
        if self._created:
            return "its replication slot was gone"
        if mark.system and self._system and mark.system != self._system:
            return "the database was restored, replaced or failed over"
        if slot.confirmed > mark.position:
            return f"the log before {shown(slot.confirmed)} is gone"
        if mark.published and mark.published != self._published.get(_relation(table)):
            return "the publication was changed"
        with self.database.connect() as connection:
            if mark.position > self.slot.end(connection):
                return "the log ends before it: the database was restored"
        return ""

    def _first(self, table: SourceTable, window: Window, parts: Iterable[str], lost: str) -> Bounds:
        """Bounds a read of all rows, in a snapshot that is later than the slot."""
        assert self._before is not None
        found = self._load.bounds(table, Window())
        with self._load.connect(table) as connection:
            [(text,)] = connection.rows("select pg_catalog.pg_current_snapshot()::text")
        with self.database.connect(self._where(table)) as connection:
            seen = Seen.parse(text or "", self.slot.end(connection))
        mark = Mark(
            self._before.confirmed,
            self.slot.name,
            self._system,
            seen,
            numbered(self._columns(table)),
            frozenset(parts),
            self._published.get(_relation(table), ""),
        )
        notes = (f"{lost}: all rows are read anew",) if lost else ()
        return replace(
            found,
            rows=found.rows if window.held is None else None,
            mark=mark.to_dict(),
            settled=True,
            log=Logged(None, shown(mark.position), self._before.held),
            notes=(*notes, *found.notes),
        )

    @cached_property
    def _load(self) -> JdbcSnapshot:
        """The snapshot that first loads read: later than the slot and the publication."""
        with self.database.connect() as connection:
            self.slot.quiet(connection)
        moment = self._stack.enter_context(exported(self.database, list(self.tables.values())))
        return JdbcSnapshot(self.database, self.database.wall_offset(), moment)

    @cached_property
    def _drained(self) -> Drained:
        """Reads the log up to its end, into the spool, once.

        Raises:
            TableError: if Spark runs elsewhere, where the spool is not.
        """
        assert self._before is not None
        master = str(self.database.spark.sparkContext.master)
        if not master.startswith("local"):
            raise TableError(
                f"the changes are spooled on this machine, and Spark runs on {master}",
                where=self.where,
                remedy="Run tables with sync_mode: cdc on a target whose spark.master is local[*]",
            )
        with self.database.connect() as connection:
            self.slot.freed(connection, self.database.lock_timeout)
            end = self.slot.flushed(connection)
            if self.slot.silent(connection, self._before, end):
                return Drained(None, end)
            marker = secrets.token_urlsafe(24)
            self.slot.mark(connection, MARKER, marker)
        logged = [_logged(table) for table in self.tables.values()]
        order = Order(
            folder=str(self._folder),
            tables=logged,
            marker=marker,
            properties=settings(
                self.database.options, self.slot.name, logged, self._placeholder, self.where
            ),
            placeholder=self._placeholder,
            java=self._java,
            by_source=by_source(logged),
        )
        spool = spooled(order, self.where)
        return Drained(spool, max(end, spool.end or 0))

    @property
    def _java(self) -> str:
        """The library of the Java that runs Spark."""
        jvm: Any = self.database.spark._jvm
        home = Path(str(jvm.java.lang.System.getProperty("java.home")))
        found = [*home.glob("lib/server/libjvm.*"), *home.glob("bin/server/jvm.dll")]
        return str(found[0]) if found else ""

    def _columns(self, table: SourceTable) -> list[LoggedColumn]:
        where = self._where(table)
        with self.database.connect(where) as connection:
            found = {c.name: c for c in logged_columns(connection, self._relation(table), where)}
        if set(found) != set(table.ref.native.columns):
            raise self._altered(table)
        return [found[name] for name in table.ref.native.columns]

    def _altered(self, table: SourceTable) -> TableError:
        return TableError(
            "its columns were changed during the run", where=self._where(table), remedy="Run again"
        )

    def _whole(self, table: SourceTable, columns: Sequence[LoggedColumn], spool: Spool) -> None:
        """Refuses changes with values that Debezium has replaced by null.

        Raises:
            TableError: if there are any; says in which column.
        """
        for column in columns:
            if spool.replaced.values(_logged(table), column.name):
                raise TableError(
                    f"Debezium has no form for a value of {column.name} ({column.declared}), which "
                    "the log has",
                    where=f"{self._where(table)}, sync_mode: cdc",
                    remedy="Read the table by a cursor (sync_mode: incremental)",
                )

    def _partitions(
        self, table: SourceTable, mark: Mark | None
    ) -> tuple[Mapping[str, Partition], str]:
        """Returns a table's partitions, and why the log does not tell all that they changed."""
        with self.database.connect(self._where(table)) as connection:
            found = partitions(connection, self._relation(table))
            return found, moved(connection, mark.partitions, found) if mark is not None else ""

    def _relation(self, table: SourceTable) -> str:
        return self.database.dialect.text(self.database.relation(table.ref.native))

    def _where(self, table: SourceTable) -> str:
        return f"table {self.database.name}.{table.ref.name}"

    def _held(self, slot: Slot) -> tuple[str, ...]:
        """Returns a warning if the slot keeps so much log that the server may give it up."""
        if slot.left is not None and slot.left < slot.held // 4:
            return (
                f"the replication slot {self.slot.name} keeps {slot.held >> 20:,} MB of log, and "
                f"is lost {slot.left >> 20:,} MB from now (max_slot_wal_keep_size)",
            )
        return ()


@contextmanager
def followed(database: Database, tables: Sequence[SourceTable]) -> Iterator[Log]:
    """Opens the log for the tables of a run; moves the slot at the end."""
    with ExitStack() as stack:
        log = Log(database, tables, stack)
        yield log
        try:
            log.confirm()
        except Exception as error:
            # All is published. The next run drops what it reads again, and moves the slot.
            _log.warning("%s: the slot was not moved: %s", log.where, error)


def _relation(table: SourceTable) -> tuple[str, str]:
    return table.ref.native.schema or "", table.ref.native.table


def _logged(table: SourceTable) -> str:
    return ".".join(_relation(table))
