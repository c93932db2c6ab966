"""Reads the log, with Debezium, up to the position that was its end when the run began."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from py4j.protocol import Py4JError

from loader.cdc.debezium.engine import read_into_spool
from loader.cdc.debezium.program import MARKER, TOPICS, Order
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.slot import PLUGIN, Slot, SourceSlot
from loader.cdc.values import SETTINGS
from loader.errors import TableError
from loader.sources.jdbc.interface import Connection, JdbcOptions


@dataclass(frozen=True)
class LogRead:
    """The result of reading the log.

    Attributes:
        spool: the changes; None if there were none.
        position: all before it was read.
        begun: where the slot stood at the latest: nothing before it was read.
    """

    spool: ChangeSpool | None
    position: int
    begun: int


@dataclass(frozen=True)
class LogReader:
    """Reads the log, into a spool. If there is nothing new, starts nothing.

    Attributes:
        before: the slot as it is.
        logged: the tables' names in the log.
        folder: for the spool.
        placeholder: the text for values that the log leaves out.
        where: the source, for messages.
    """

    slot: SourceSlot
    before: Slot
    logged: Sequence[str]
    folder: Path
    placeholder: str
    where: str

    def read(self) -> LogRead:
        """Reads the log up to the position that is its end now.

        Raises:
            TableError: if the log cannot be read, or Spark runs elsewhere, where the spool is not.
        """
        slot, database = self.slot, self.slot.database
        master = str(database.spark.sparkContext.master)
        if not master.startswith("local"):
            raise TableError(
                f"the changes are spooled on this machine, and Spark runs on {master}",
                where=self.where,
                remedy="Run tables with sync_mode: cdc on a target whose spark.master is local[*]",
            )
        try:
            return self._read_up_to_end()
        except TableError as error:
            if not is_older_than_publication(error):
                raise
            with database.connect() as connection:
                slot.await_free(connection, database.lock_timeout)
                slot.drop(connection)
            raise TableError(
                f"the replication slot {slot.name} is older than its publication, so PostgreSQL "
                "cannot read it; it was dropped",
                where=self.where,
                remedy="Run again: that creates the slot, and all rows are read again",
            ) from error

    def _read_up_to_end(self) -> LogRead:
        slot, database = self.slot, self.slot.database
        with database.connect() as connection:
            slot.await_free(connection, database.lock_timeout)
            end = slot.read_flushed(connection)
            if slot.has_no_changes(connection, self.before, end):
                return LogRead(None, end, self._read_slot_position(connection))
            marker = secrets.token_urlsafe(24)
            marked = slot.write_message(connection, MARKER, marker)
            upto = slot.read_end(connection)
        order = Order(
            folder=str(self.folder),
            tables=self.logged,
            marker=marker,
            upto=upto,
            properties=build_debezium_settings(
                database.options,
                slot.name,
                self.logged,
                self.placeholder,
                self.where,
                database.lock_timeout,
            ),
            placeholder=self.placeholder,
            java=_find_java(database.spark._jvm),
            by_source=needs_source_names(self.logged),
        )
        spool = read_into_spool(order, self.where, lambda: self._has_passed(marked))
        with database.connect() as connection:
            position = self._read_slot_position(connection)
        if spool is None:
            # Changes before it are lost for the tables that need them, wherever the slot is now.
            return LogRead(None, end, max(position, upto))
        return LogRead(spool, max(end, spool.end or 0), position)

    def _has_passed(self, marked: int) -> bool:
        """Returns whether the marker can no longer be read: the slot is gone, or is behind it.

        If the database cannot be asked now, Debezium's connection ends, too, or the next check
        decides.
        """
        try:
            with self.slot.database.connect() as connection:
                found = self.slot.read_slot(connection)
        except (TableError, Py4JError, OSError):  # Java may have ended, too: the reader reports it
            return False
        return found is None or bool(found.lost) or found.confirmed >= marked

    def _read_slot_position(self, connection: Connection) -> int:
        """Returns where the slot stands: another run may have moved it during the read."""
        found = self.slot.read_slot(connection)
        return found.confirmed if found is not None and not found.lost else sys.maxsize


def is_older_than_publication(error: Exception) -> bool:
    """Returns whether PostgreSQL 14 to 17 read changes from before the publication was made."""
    return re.search('publication ".*" does not exist', str(error)) is not None


def _find_java(jvm: Any) -> str:
    """Returns the library of the Java that runs Spark."""
    home = Path(str(jvm.java.lang.System.getProperty("java.home")))
    found = [*home.glob("lib/server/libjvm.*"), *home.glob("bin/server/jvm.dll")]
    return str(found[0]) if found else ""


_PASSED_ON = frozenset(("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword"))
"""Properties of the JDBC driver that Debezium has options for; it hands all others through."""
_OURS = frozenset(("user", "password"))
_IN_TOPICS = re.compile(r"[A-Za-z0-9._-]+")
_FORMS = "-c bytea_output=hex -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3"
"""The forms of values that Debezium reads, overruling settings of the role, the database or the
server."""


def needs_source_names(logged: Sequence[str]) -> bool:
    """Returns whether a table has a name that Debezium would replace by another one in topics."""
    return not all(_IN_TOPICS.fullmatch(name) for name in logged)


def build_debezium_settings(
    options: JdbcOptions,
    slot: str,
    logged: Sequence[str],
    placeholder: str,
    where: str,
    lock_timeout: int = 30,
) -> dict[str, str]:
    """Returns Debezium's settings; passwords are among them.

    Args:
        lock_timeout: how many seconds it may wait for a table that another session locks.
        slot: the name of the slot and of the publication.
        logged: the tables, `schema.table`.
        placeholder: its text for values that the log leaves out.

    Raises:
        TableError: if the source's URL has no host and database.
    """
    at = urlsplit(options.url.removeprefix("jdbc:"))
    hosts = at.netloc.split(",")
    database = unquote(at.path.lstrip("/"))
    if not at.hostname or not database or len(hosts) != 1:
        raise TableError(
            "sync_mode: cdc needs a url with one host and a database",
            where=f"{where}, url",
            remedy="Write jdbc:postgresql://host:5432/database",
        )
    if re.search("[+%?]", database):
        raise TableError(
            f"Debezium cannot connect to a database whose name has +, % or ?: {database}",
            where=f"{where}, url",
            remedy="Rename the database, or read its tables by a cursor (sync_mode: incremental)",
        )
    given = {**dict(parse_qsl(at.query, keep_blank_values=True)), **options.properties}
    given["options"] = " ".join(filter(None, (given.get("options"), _FORMS)))
    user = options.user or given.get("user") or ""
    password = options.password or given.get("password") or ""
    driver = {
        f"database.{name}" if name in _PASSED_ON else f"driver.{name}": value
        for name, value in given.items()
        if name not in _OURS
    }
    return {
        **driver,
        **SETTINGS,
        "name": "strandline",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": TOPICS,
        "database.hostname": at.hostname,
        "database.port": str(at.port or 5432),
        "database.dbname": database,
        "database.user": user,
        "database.password": password,
        "database.initial.statements": f"set lock_timeout = '{lock_timeout}s'",
        "plugin.name": PLUGIN,
        "slot.name": slot,
        "slot.drop.on.stop": "false",
        "publication.name": slot,
        "publication.autocreate.mode": "disabled",
        # Expressions, separated by commas.
        "table.include.list": ",".join(re.escape(name).replace(",", r"\x2c") for name in logged),
        "message.prefix.include.list": MARKER,
        # No snapshot: the JDBC reader makes it. No stored offset: the slot itself says where to
        # begin, and only the loader moves it.
        "snapshot.mode": "no_data",
        "lsn.flush.mode": "manual",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",  # TRUNCATE, too
        "tombstones.on.delete": "false",
        "unavailable.value.placeholder": placeholder,
        # Only what the spool needs, in little memory.
        "transforms": "slim",
        "transforms.slim.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
        # A null is a null, also in a column that has a default.
        "value.converter.replace.null.with.default": "false",
        "transforms.slim.replace.null.with.default": "false",
        "transforms.slim.exclude": ",".join(
            (
                *(() if needs_source_names(logged) else ("source",)),
                "transaction",
                "ts_ms",
                "ts_us",
                "ts_ns",
            )
        ),
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "max.batch.size": "4096",
        "max.queue.size": "16384",
        "max.queue.size.in.bytes": str(64 * 1024 * 1024),
        "poll.interval.ms": "20",
        # The server ends the connection if it hears nothing for as long as wal_sender_timeout.
        "status.update.interval.ms": "1000",
        # An error ends the run; the next one begins where this one did.
        "errors.max.retries": "0",
        "slot.max.retries": "2",
        "slot.retry.delay.ms": "1000",
    }
