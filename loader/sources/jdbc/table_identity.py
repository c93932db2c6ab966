"""Identifies the table and server behind a name, for MariaDB and MySQL.

A table that was emptied by TRUNCATE restarts its numbers, one that was renamed into another's place
brings rows from before the last sync, and a server that was restored or failed over gives out
numbers again. None of these rows need lie above the stored cursor. So each sync stores the identity
of the table; if it changes, all rows of the table are read once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from loader.sources.jdbc.connection import Connection
from loader.spark.database_errors import ConnectionRefusedByServer

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
"""Names that InnoDB's own list of tables has as they are."""


def standing(connection: Connection, text: Callable[[str], str], schema: str, table: str) -> str:
    """Returns the identity behind a name: the server, and InnoDB's id of the table.

    An id changes whenever a table is recreated, also by an ALTER that rewrites it. Reading it takes
    the privilege PROCESS; without it, and for other engines, the creation time is used. Of a
    partitioned table only the server is known: it gets new partitions every day. A view is
    identified by its name and its SQL.

    Args:
        text: writes a string literal.
    """
    servers = connection.rows(
        "show global variables where variable_name in ('server_uid', 'server_uuid')"
    )
    found = [" ".join(value or "" for _, value in servers)]
    where = f"table_schema = {text(schema)} and table_name = {text(table)}"
    told = connection.rows(
        f"select engine, create_time, create_options from information_schema.tables where {where}"
    )
    for engine, created, options in told:
        if engine is None:
            found.append(_sql(connection, where))
            continue
        if "partitioned" in (options or ""):
            continue
        number = None
        if engine.lower() == "innodb" and _PLAIN.fullmatch(f"{schema}{table}"):
            number = _number(connection, text(f"{schema}/{table}"))
        found.append(number or created or "")
    return " ".join(found).strip()


def _sql(connection: Connection, where: str) -> str:
    """Returns a hash of a view's name and SQL; empty if it is no view."""
    rows = connection.rows(
        "select concat(table_schema, '.', table_name, view_definition) "
        f"from information_schema.views where {where}"
    )
    # Not by the database's own md5, which some do not allow (FIPS).
    told = [hashlib.md5(sql.encode(), usedforsecurity=False) for (sql,) in rows if sql is not None]
    return "".join(one.hexdigest() for one in told)


def _number(connection: Connection, name: str) -> str | None:
    for listed in ("innodb_sys_tables", "innodb_tables"):  # MariaDB, MySQL
        try:
            rows = connection.rows(
                f"select table_id from information_schema.{listed} where name = {name}"
            )
        except ConnectionRefusedByServer:
            continue
        return rows[0][0] if rows else None
    return None
