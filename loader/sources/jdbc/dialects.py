"""Chooses the dialect for a JDBC URL, and strips secrets from the URL for messages."""

from __future__ import annotations

import re

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.mysql import MySQL
from loader.sources.jdbc.postgres import PostgreSQL


class Derby(Dialect):
    """Apache Derby, which comes with Spark."""

    prefixes = ("jdbc:derby:",)
    driver = "org.apache.derby.jdbc.EmbeddedDriver"
    system_schemas = frozenset(
        {"SYS", "SYSIBM", "SYSSTAT", "SYSCAT", "SYSFUN", "SYSPROC", "NULLID"}
    )
    utc_clock = "values current_timestamp"

    def literal(self, cursor: Cursor) -> str:
        if cursor.type is CursorType.DOUBLE:  # Derby does not cast text to numbers
            return cursor.text if "e" in cursor.text else f"{cursor.text}e0"
        return super().literal(cursor)

    def date(self, text: str) -> str:
        return f"date('{text}')"

    def timestamp(self, text: str) -> str:
        return f"timestamp('{text}')"


class Oracle(Dialect):
    """Oracle, which needs `from dual` to select without a table."""

    prefixes = ("jdbc:oracle:",)
    utc_clock = "select current_timestamp from dual"


_DIALECTS: tuple[type[Dialect], ...] = (PostgreSQL, MySQL, Derby, Oracle)


def dialect_class(url: str) -> type[Dialect]:
    """Returns the dialect for a JDBC URL; the standard one if the database needs no other."""
    lowered = url.lower()
    for dialect in _DIALECTS:
        if lowered.startswith(dialect.prefixes):
            return dialect
    return Dialect


def strip_url(url: str) -> str:
    """Returns a URL without its parameters and credentials, for messages.

    A password may hold the very characters that end it elsewhere: `/`, `?`, `;`. Where an `@`
    leaves open what is a password, only the kind of URL is left.
    """
    if "@" not in url:
        return re.sub(r"[?;].*$", "", url, flags=re.DOTALL)
    for credentials in _CREDENTIALS:
        found = credentials.fullmatch(url)
        if found is not None:
            return found[1] + found[2]
    start = re.match(r"(?:[\w+-]+:){1,2}", url)
    return f"{start[0]}…" if start else "…"


_CREDENTIALS = (
    re.compile(r"([\w:+-]+//)[^@/?;#]*@([^@?;]*)(?:[?;][^@]*)?"),
    re.compile(r"(jdbc:oracle:\w+:)[^@?;#]*(@[^@?;]*)(?:[?;][^@]*)?"),
)
