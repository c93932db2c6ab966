"""Reads the log up to the position that was its end when the run began."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from loader.errors import TableError
from loader.sources.debezium.engine import read_into_spool
from loader.sources.debezium.program import MARKER, Order
from loader.sources.debezium.spool import ChangeSpool
from loader.sources.jdbc.cdc.settings import by_source, settings
from loader.sources.jdbc.cdc.slot import Slot, SourceSlot
from loader.sources.jdbc.connection import Connection


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


def read_log(
    slot: SourceSlot,
    before: Slot,
    logged: Sequence[str],
    folder: Path,
    placeholder: str,
    where: str,
) -> LogRead:
    """Reads the log, into a spool. If there is nothing new, starts nothing.

    Args:
        before: the slot as it is.
        logged: the tables' names in the log.
        folder: for the spool.
        placeholder: the text for values that the log leaves out.
        where: the source, for messages.

    Raises:
        TableError: if the log cannot be read, or Spark runs elsewhere, where the spool is not.
    """
    database = slot.database
    master = str(database.spark.sparkContext.master)
    if not master.startswith("local"):
        raise TableError(
            f"the changes are spooled on this machine, and Spark runs on {master}",
            where=where,
            remedy="Run tables with sync_mode: cdc on a target whose spark.master is local[*]",
        )
    try:
        return _read(slot, before, logged, folder, placeholder, where)
    except TableError as error:
        if not older_than_publication(error):
            raise
        with database.connect() as connection:
            slot.await_free(connection, database.lock_timeout)
            slot.drop(connection)
        raise TableError(
            f"the replication slot {slot.name} is older than its publication, so PostgreSQL "
            "cannot read it; it was dropped",
            where=where,
            remedy="Run again: that creates the slot, and all rows are read anew",
        ) from error


def older_than_publication(error: Exception) -> bool:
    """Returns whether PostgreSQL 14 to 17 read changes from before the publication was made."""
    return re.search('publication ".*" does not exist', str(error)) is not None


def _read(
    slot: SourceSlot,
    before: Slot,
    logged: Sequence[str],
    folder: Path,
    placeholder: str,
    where: str,
) -> LogRead:
    database = slot.database
    with database.connect() as connection:
        slot.await_free(connection, database.lock_timeout)
        end = slot.read_flushed(connection)
        if slot.silent(connection, before, end):
            return LogRead(None, end, _stood(slot, connection))
        marker = secrets.token_urlsafe(24)
        marked = slot.mark(connection, MARKER, marker)
        upto = slot.end(connection)
    order = Order(
        folder=str(folder),
        tables=logged,
        marker=marker,
        upto=upto,
        properties=settings(
            database.options, slot.name, logged, placeholder, where, database.lock_timeout
        ),
        placeholder=placeholder,
        java=_java(database.spark._jvm),
        by_source=by_source(logged),
    )
    spool = read_into_spool(order, where, lambda: _has_passed(slot, marked))
    with database.connect() as connection:
        if spool is None:
            # Changes before it are lost for the tables that need them, wherever the slot is now.
            return LogRead(None, end, max(_stood(slot, connection), upto))
        return LogRead(spool, max(end, spool.end or 0), _stood(slot, connection))


def _has_passed(slot: SourceSlot, marked: int) -> bool:
    """Returns whether the marker can no longer be read: the slot is gone, or is behind it.

    If the database cannot be asked now, Debezium's connection ends, too, or the next check decides.
    """
    try:
        with slot.database.connect() as connection:
            found = slot.read_slot(connection)
    except (TableError, Py4JError, OSError):  # Java may have ended, too: the reader reports it
        return False
    return found is None or bool(found.lost) or found.confirmed >= marked


def _stood(slot: SourceSlot, connection: Connection) -> int:
    """Returns where the slot stands after the read: another run may have moved it meanwhile."""
    after = slot.read_slot(connection)
    return after.confirmed if after is not None and not after.lost else sys.maxsize


def _java(jvm: Any) -> str:
    """Returns the library of the Java that runs Spark."""
    home = Path(str(jvm.java.lang.System.getProperty("java.home")))
    found = [*home.glob("lib/server/libjvm.*"), *home.glob("bin/server/jvm.dll")]
    return str(found[0]) if found else ""
