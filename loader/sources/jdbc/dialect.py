"""What databases say differently: quotes, literals, clocks, snapshots, lists of tables.

Column types are Spark's business (its JDBC dialects map them). Everything that enters SQL
enters here: identifiers through :meth:`Dialect.quote`, values through :meth:`Dialect.literal`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.innodb import InnodbLookout
from loader.sources.jdbc.open_work import Lookout


class Dialect:
    """The rules of a database that the JDBC standard describes; others extend it.

    Attributes:
        prefixes: the JDBC URLs that it is for.
        session: statements that every connection runs first, so that all speak UTC.
        shares_snapshots: whether many connections can read one snapshot.
        infinite_times: whether dates and timestamps can be infinite.
        rounds_floats: whether it sends a `float` as a text with fewer digits than it has.
        instant_types: the database's names of types that hold an instant, not a wall clock.
    """

    prefixes: ClassVar[tuple[str, ...]] = ()
    driver: ClassVar[str | None] = None
    session: ClassVar[tuple[str, ...]] = ()
    shares_snapshots: ClassVar[bool] = False
    infinite_times: ClassVar[bool] = False
    rounds_floats: ClassVar[bool] = False
    system_schemas: ClassVar[frozenset[str]] = frozenset({"INFORMATION_SCHEMA"})
    uses_catalogs: ClassVar[bool] = False
    instant_types: ClassVar[frozenset[str]] = frozenset()
    utc_clock: ClassVar[str] = "select current_timestamp"

    def __init__(self, quote: str = '"', folds_to_upper: bool = False) -> None:
        self.quote_character = quote
        self.folds_to_upper = folds_to_upper

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        """The URL that the driver and Spark's own dialect both understand.

        Args:
            properties: of the driver, that are given beside it.
        """
        return url

    @classmethod
    def waiting(cls, seconds: int) -> tuple[str, ...]:
        """Statements that bound how long a session waits for a table that another one locks."""
        return ()

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        """The same for connections on which Spark runs no statement of ours: as properties."""
        return {}

    def quote(self, name: str) -> str:
        """An identifier, quoted as the database wants it, whatever is in it."""
        mark = self.quote_character
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def lake_name(self, name: str) -> str:
        """A name in the lake: what the database folded to upper case is folded to lower."""
        return name.lower() if self.folds_to_upper and name == name.upper() else name

    def double(self, expression: str) -> str:
        """SQL of a number as a double; of a `real` all digits, which its own text rounds."""
        return f"cast({expression} as double precision)"

    def literal(self, cursor: Cursor) -> str:
        """A cursor as a typed, escaped SQL literal: the one place where values become SQL."""
        if cursor.type in (CursorType.INTEGER, CursorType.DECIMAL):
            return cursor.text
        if cursor.type is CursorType.DOUBLE:
            return self.double(self.text(cursor.text))
        if cursor.type is CursorType.DATE:
            return self.date(cursor.text)
        if cursor.type is CursorType.TIMESTAMP:
            return self.timestamp(cursor.text)
        if cursor.type is CursorType.TIMESTAMPTZ:
            return self.instant(cursor.text)
        return self.text(cursor.text)

    def text(self, value: str) -> str:
        """A string literal; a NUL has no place in SQL text."""
        if "\0" in value:
            raise ValueError("a string cursor with a NUL character cannot be written into SQL")
        return "'" + value.replace("'", "''") + "'"

    def date(self, text: str) -> str:
        """A date literal, in JDBC's escape, which every driver translates."""
        return f"{{d '{text}'}}"

    def timestamp(self, text: str) -> str:
        """A literal of a wall clock."""
        return f"{{ts '{text}'}}"

    def instant(self, text: str) -> str:
        """A literal of an instant given in UTC; sessions run in UTC."""
        return self.timestamp(text)

    def wall_offset(self, connection: Connection) -> int:
        """Seconds that the database's wall clock is ahead of UTC.

        Asked on a fresh connection, before :attr:`session` has run. Columns without a zone are
        taken to hold this wall clock, unless the source's `time_zone` says otherwise.
        """
        return 0

    def hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """(schema, table) of what wildcards should pass over."""
        return set()

    def lookout(self) -> Lookout | None:
        """Sees statements and transactions that are open; None if nothing shows them.

        Databases that share snapshots need none: see :mod:`loader.sources.jdbc.postgresql.horizon`.
        """
        return None


class PostgreSQL(Dialect):
    """PostgreSQL: one exported snapshot for all readers."""

    prefixes = ("jdbc:postgresql:",)
    driver = "org.postgresql.Driver"
    session = ("set time zone 'UTC'",)
    shares_snapshots = True
    infinite_times = True
    instant_types = frozenset({"timestamptz"})
    system_schemas = frozenset({"information_schema", "pg_catalog", "pg_toast"})

    @classmethod
    def waiting(cls, seconds: int) -> tuple[str, ...]:
        return (f"set lock_timeout = '{seconds}s'",)

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        return {"options": f"-c lock_timeout={seconds}s"}

    def date(self, text: str) -> str:
        return f"date '{text}'"

    def timestamp(self, text: str) -> str:
        return f"timestamp '{text}'"

    def instant(self, text: str) -> str:
        return f"timestamptz '{text}+00'"

    def wall_offset(self, connection: Connection) -> int:
        # The driver announces the JVM's zone as the session's, so `show timezone` answers UTC.
        # The zone that the server gives to others: of the role or database, else the server's;
        # the latter is only visible in log_timezone, which initdb sets alike.
        [(seconds,)] = connection.rows(
            """
            with zone as (
                select coalesce(
                    (
                        select substr(setting, 10)
                        from pg_catalog.pg_db_role_setting,
                            unnest(setconfig) as setting
                        where lower(setting) like 'timezone=%'
                            and setdatabase in (0, (
                                select oid from pg_catalog.pg_database
                                where datname = current_database()
                            ))
                            and setrole in (0, (
                                select oid from pg_catalog.pg_roles
                                where rolname = current_user
                            ))
                        order by setrole = 0, setdatabase = 0
                        limit 1
                    ),
                    current_setting('log_timezone')
                ) as name
            )
            select round(extract(epoch from timezone(name, now()) - timezone('UTC', now())))::int
            from zone
            """
        )
        return int(seconds or 0)

    def hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        # A partition's rows are its parent's: reading both would deliver them twice.
        return {
            (schema or "", name or "")
            for schema, name in connection.rows(
                """
                select n.nspname, c.relname
                from pg_catalog.pg_class as c
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                where c.relispartition
                """
            )
        }


class MySQL(Dialect):
    """MariaDB and MySQL, both through MariaDB's driver or MySQL's own."""

    prefixes = ("jdbc:mariadb:", "jdbc:mysql:")
    session = ("set time_zone = '+00:00'",)
    system_schemas = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
    uses_catalogs = True
    rounds_floats = True
    instant_types = frozenset({"timestamp"})
    utc_clock = "select utc_timestamp(6)"

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        # Spark knows MySQL's quotes and types by "jdbc:mysql" only; for any other URL it quotes
        # columns with ", and MariaDB then reads each as a string constant.
        if url.startswith("jdbc:mariadb:"):
            url = "jdbc:mysql:" + url.removeprefix("jdbc:mariadb:")
            if "permitMysqlScheme" not in url:
                url = _with(url, "permitMysqlScheme=true")
        # Else a tinyint(1) of 2 to 127 becomes true.
        told = f"{url} {' '.join(properties)}".lower()
        return url if "tinyint1isbit" in told else _with(url, "tinyInt1isBit=false")

    def text(self, value: str) -> str:
        return super().text(value.replace("\\", "\\\\"))

    def double(self, expression: str) -> str:
        return f"cast({expression} as double)"

    def date(self, text: str) -> str:
        return f"date '{text}'"

    def timestamp(self, text: str) -> str:
        return f"timestamp '{text}'"

    def wall_offset(self, connection: Connection) -> int:
        [(seconds,)] = connection.rows("select timestampdiff(second, utc_timestamp(), now())")
        return int(seconds or 0)

    def lookout(self) -> Lookout:
        return InnodbLookout(self.text)


class Derby(Dialect):
    """Apache Derby, which comes with Spark."""

    prefixes = ("jdbc:derby:",)
    driver = "org.apache.derby.jdbc.EmbeddedDriver"
    system_schemas = frozenset(
        {"SYS", "SYSIBM", "SYSSTAT", "SYSCAT", "SYSFUN", "SYSPROC", "NULLID"}
    )
    utc_clock = "values current_timestamp"

    def literal(self, cursor: Cursor) -> str:
        if cursor.type is CursorType.DOUBLE:  # it casts no text to a number
            return cursor.text if "e" in cursor.text else f"{cursor.text}e0"
        return super().literal(cursor)

    def date(self, text: str) -> str:
        return f"date('{text}')"

    def timestamp(self, text: str) -> str:
        return f"timestamp('{text}')"


class Oracle(Dialect):
    """Oracle, which selects from nothing only by naming it."""

    prefixes = ("jdbc:oracle:",)
    utc_clock = "select current_timestamp from dual"


def _with(url: str, parameter: str) -> str:
    return url + ("&" if "?" in url else "?") + parameter


_DIALECTS: tuple[type[Dialect], ...] = (PostgreSQL, MySQL, Derby, Oracle)


def dialect_class(url: str) -> type[Dialect]:
    """The dialect of a JDBC URL; the standard one for databases that need nothing special."""
    lowered = url.lower()
    for dialect in _DIALECTS:
        if lowered.startswith(dialect.prefixes):
            return dialect
    return Dialect


def scrubbed(url: str) -> str:
    """A URL without its parameters and credentials, for messages."""
    return re.sub(r"[?;].*$", "", re.sub(r"//[^/@]*@", "//", url))
