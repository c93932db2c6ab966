"""Reads the log with Debezium, up to where the log ended when the read started."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from py4j.protocol import Py4JError

from loader.cdc.debezium.launcher import read_into_spool
from loader.cdc.debezium.program import MARKER, TOPICS, ReadRequest
from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.slot import PLUGIN, Slot, SourceSlot
from loader.cdc.values import SETTINGS
from loader.errors import TableError
from loader.sources.jdbc.interface import Connection, JdbcOptions


@dataclass(frozen=True)
class LogRead:
    """The result of reading the log.

    Attributes:
        spool: the changes, or None if there are none.
        oldest_position: all changes from this position on were read. Older changes may be missing.
    """

    spool: ChangeSpool | None
    position: int
    oldest_position: int


@dataclass(frozen=True)
class LogReader:
    """Reads the log into a spool. Starts Debezium only if there are changes.

    Attributes:
        initial_slot: the slot at the start of the run.
        placeholder: the string that Debezium writes for a value that the log omits.
        excluded: the columns that the spec excludes, as `schema.table.column`.
        encrypted: the names (in the log) of the tables that have masked columns.
        spool_key: encrypts the changes of these tables in the spool.
    """

    slot: SourceSlot
    initial_slot: Slot
    log_names: Sequence[str]
    folder: Path
    placeholder: str
    where: str
    excluded: Sequence[str] = ()
    encrypted: Sequence[str] = ()
    spool_key: bytes = field(default=b"", repr=False)

    def read(self) -> LogRead:
        """Reads the log up to its current end.

        Raises:
            TableError: if the log cannot be read, or if Spark does not run on this machine.
        """
        slot, database = self.slot, self.slot.database
        master = str(database.spark.sparkContext.master)
        if not master.startswith("local"):
            raise TableError(
                f"the changes are written to files on this machine, but Spark runs on {master}",
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
                remedy="Run again, which creates the slot and reloads all rows",
            ) from error

    def _read_up_to_end(self) -> LogRead:
        slot, database = self.slot, self.slot.database
        with database.connect() as connection:
            slot.await_free(connection, database.lock_timeout)
            end = slot.read_flushed(connection)
            if slot.has_no_changes(connection, self.initial_slot, end):
                return LogRead(None, end, self._read_slot_position(connection))
            marker = secrets.token_urlsafe(24)
            marker_position = slot.write_message(connection, MARKER, marker)
            marker_end = slot.read_end(connection)
        request = ReadRequest(
            folder=str(self.folder),
            tables=self.log_names,
            marker=marker,
            marker_end=marker_end,
            properties=build_debezium_settings(
                database.options,
                slot.name,
                self.log_names,
                self.placeholder,
                self.where,
                database.lock_timeout,
                self.excluded,
            ),
            placeholder=self.placeholder,
            java=_find_java(database.spark._jvm),
            has_source=needs_source_names(self.log_names),
            encrypted=self.encrypted,
            spool_key=self.spool_key.hex(),
        )
        spool = read_into_spool(request, self.where, lambda: self._is_past_marker(marker_position))
        with database.connect() as connection:
            position = self._read_slot_position(connection)
        if spool is None:
            # The slot was moved past the marker during the read. Even if the slot was then
            # recreated at a lower position, older changes are missing.
            return LogRead(None, end, max(position, marker_end))
        return LogRead(spool, max(end, spool.end or 0), position)

    def _is_past_marker(self, marker_position: int) -> bool:
        """Returns whether the slot is lost or was moved past the marker.

        Returns False if the database is unreachable. In that case, Debezium loses its connection
        too, or a later check succeeds.
        """
        try:
            with self.slot.database.connect() as connection:
                slot = self.slot.read_slot(connection)
        except (TableError, Py4JError, OSError):  # Py4JError: the JVM exited
            return False
        return slot is None or bool(slot.lost) or slot.confirmed >= marker_position

    def _read_slot_position(self, connection: Connection) -> int:
        """Returns the slot's current position, or `sys.maxsize` if the slot is lost."""
        slot = self.slot.read_slot(connection)
        return slot.confirmed if slot is not None and not slot.lost else sys.maxsize


def is_older_than_publication(error: Exception) -> bool:
    """Returns whether an error means that the slot is older than its publication.

    In this case, PostgreSQL 14 to 17 report that the publication does not exist.
    """
    return re.search('publication ".*" does not exist', str(error)) is not None


def _find_java(jvm: Any) -> str:
    home = Path(str(jvm.java.lang.System.getProperty("java.home")))
    libraries = [*home.glob("lib/server/libjvm.*"), *home.glob("bin/server/jvm.dll")]
    return str(libraries[0]) if libraries else ""


_DEBEZIUM_OPTIONS = frozenset(("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword"))
"""JDBC properties that Debezium has options for. It passes all other properties to the driver."""
_CREDENTIALS = frozenset(("user", "password"))
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_VALUE_FORMATS = (
    "-c bytea_output=hex -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3"
)
"""Options for the value formats that Debezium expects. They override the settings of the role, the
database and the server."""


def needs_source_names(log_names: Sequence[str]) -> bool:
    """Returns whether Debezium replaces a character in the topic name of any of these tables."""
    return not all(_TOPIC_NAME.fullmatch(name) for name in log_names)


def build_debezium_settings(
    options: JdbcOptions,
    slot: str,
    log_names: Sequence[str],
    placeholder: str,
    where: str,
    lock_timeout: int = 30,
    excluded: Sequence[str] = (),
) -> dict[str, str]:
    """Returns Debezium's settings, which include passwords.

    Args:
        slot: the name of the slot and of the publication.
        log_names: the tables, as `schema.table`.
        placeholder: the string that Debezium writes for a value that the log omits.
        lock_timeout: the maximum time in seconds that Debezium waits for a table that another
            session has locked.
        excluded: the columns that Debezium must leave out, as `schema.table.column`.

    Raises:
        TableError: if Debezium cannot connect to the source's URL.
    """
    address = urlsplit(options.url.removeprefix("jdbc:"))
    hosts = address.netloc.split(",")
    database = unquote(address.path.lstrip("/"))
    if not address.hostname or not database or len(hosts) != 1:
        raise TableError(
            "sync_mode: cdc needs a url with one host and a database",
            where=f"{where}, url",
            remedy="Use jdbc:postgresql://host:5432/database",
        )
    if re.search("[+%?]", database):
        raise TableError(
            f"Debezium cannot connect to a database whose name has +, % or ?: {database}",
            where=f"{where}, url",
            remedy="Rename the database, or read its tables with a cursor (sync_mode: incremental)",
        )
    parameters = {**dict(parse_qsl(address.query, keep_blank_values=True)), **options.properties}
    parameters["options"] = " ".join(filter(None, (parameters.get("options"), _VALUE_FORMATS)))
    user = options.user or parameters.get("user") or ""
    password = options.password or parameters.get("password") or ""
    driver_settings = {
        f"database.{name}" if name in _DEBEZIUM_OPTIONS else f"driver.{name}": value
        for name, value in parameters.items()
        if name not in _CREDENTIALS
    }
    return {
        **driver_settings,
        **SETTINGS,
        "name": "strandline",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": TOPICS,
        "database.hostname": address.hostname,
        "database.port": str(address.port or 5432),
        "database.dbname": database,
        "database.user": user,
        "database.password": password,
        "database.initial.statements": f"set lock_timeout = '{lock_timeout}s'",
        "plugin.name": PLUGIN,
        "slot.name": slot,
        "slot.drop.on.stop": "false",
        "publication.name": slot,
        "publication.autocreate.mode": "disabled",
        "table.include.list": _build_patterns(log_names),
        **({"column.exclude.list": _build_patterns(excluded)} if excluded else {}),
        "message.prefix.include.list": MARKER,
        # Debezium takes no snapshot, because the JDBC reader loads each table first. Debezium
        # stores no offset either. It starts at the slot's position, which only the loader moves.
        "snapshot.mode": "no_data",
        "lsn.flush.mode": "manual",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",  # the default skips TRUNCATE
        "tombstones.on.delete": "false",
        "unavailable.value.placeholder": placeholder,
        # Drops the fields that the spool does not need, to save memory.
        "transforms": "slim",
        "transforms.slim.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
        # By default, Debezium replaces a null with the column's default value.
        "value.converter.replace.null.with.default": "false",
        "transforms.slim.replace.null.with.default": "false",
        "transforms.slim.exclude": ",".join(
            (
                *(() if needs_source_names(log_names) else ("source",)),
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
        # The server closes the connection if it receives no status within wal_sender_timeout.
        "status.update.interval.ms": "1000",
        # An error stops the run. The next run starts from the same position.
        "errors.max.retries": "0",
        "slot.max.retries": "2",
        "slot.retry.delay.ms": "1000",
    }


def _build_patterns(names: Sequence[str]) -> str:
    return ",".join(re.escape(name).replace(",", r"\x2c") for name in names)
