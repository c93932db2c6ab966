"""Debezium's settings for reading a source's slot once, from where it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from loader.errors import TableError
from loader.sources.debezium.program import MARKER, TOPICS
from loader.sources.jdbc.cdc.slot import PLUGIN
from loader.sources.jdbc.cdc.values import SETTINGS
from loader.sources.jdbc.options import JdbcOptions

_PASSED_ON = frozenset(("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword"))
"""Properties of the JDBC driver that Debezium has options for; it hands all others through."""
_OURS = frozenset(("user", "password"))
_IN_TOPICS = re.compile(r"[A-Za-z0-9._-]+")
_FORMS = "-c bytea_output=hex -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3"
"""The forms of values that Debezium reads, overruling settings of the role, the database or the
server."""


def by_source(logged: Sequence[str]) -> bool:
    """Returns whether a table has a name that Debezium would replace by another one in topics."""
    return not all(_IN_TOPICS.fullmatch(name) for name in logged)


def settings(
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
            (*(() if by_source(logged) else ("source",)), "transaction", "ts_ms", "ts_us", "ts_ns")
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
