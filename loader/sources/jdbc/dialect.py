"""The differences between databases: quotes, literals, clocks, snapshots, lists of tables.

Spark maps column types (in its JDBC dialects). Everything that goes into SQL is escaped here:
identifiers by :meth:`Dialect.quote`, values by :meth:`Dialect.literal`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql.types import DataType

from loader.rows.cursor import Cursor, CursorType
from loader.runtime.database_errors import DatabaseError
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.doubtful import (
    CHAR,
    TIME,
    Column,
    Doubt,
    jdbc_type,
    mysql_values,
    postgresql_times,
)
from loader.sources.jdbc.innodb import InnodbLookout
from loader.sources.jdbc.open_work import Lookout

Place = tuple["str | None", "str | None", str]
"""A table's catalog, schema and name."""


@dataclass(frozen=True)
class Key:
    """What identifies a row.

    Attributes:
        columns: in the key's order; empty if there is none.
        lacking: why there is none although one is declared; empty if there is no more to say.
    """

    columns: tuple[str, ...]
    lacking: str = ""


class Dialect:
    """A database that follows the JDBC standard; the subclasses are for databases that differ.

    Attributes:
        prefixes: how its JDBC URLs begin.
        session: statements that every connection runs first, so that all sessions are in UTC.
        shares_snapshots: whether many connections can read one snapshot of the database.
        rounds_floats: whether the text of a `float` has fewer digits than its value.
        hides_columns: whether `select *` may leave columns out.
        instant_types: the database's names for types that hold an instant, not a wall clock.
    """

    prefixes: ClassVar[tuple[str, ...]] = ()
    driver: ClassVar[str | None] = None
    session: ClassVar[tuple[str, ...]] = ()
    shares_snapshots: ClassVar[bool] = False
    rounds_floats: ClassVar[bool] = False
    system_schemas: ClassVar[frozenset[str]] = frozenset({"INFORMATION_SCHEMA"})
    uses_catalogs: ClassVar[bool] = False
    instant_types: ClassVar[frozenset[str]] = frozenset()
    hides_columns: ClassVar[bool] = False
    utc_clock: ClassVar[str] = "select current_timestamp"

    def __init__(self, quote: str = '"', folds_to_upper: bool = False) -> None:
        self.quote_character = quote
        self.folds_to_upper = folds_to_upper

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        """Returns the URL in a form that both the driver and Spark's own dialect understand.

        Args:
            properties: names of driver properties that are passed separately.
        """
        return url

    @classmethod
    def waiting(cls, seconds: int) -> tuple[str, ...]:
        """Returns statements that limit how long a session waits for a table that is locked.

        They may also be what every session begins with, if the database takes one at a time.
        """
        return ()

    @classmethod
    def resting(cls, version: int) -> tuple[str, ...]:
        """Returns statements that let a session wait for its next question.

        Args:
            version: the database's major version.
        """
        return ()

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        """Returns the same limit as properties, for connections where Spark runs no statements."""
        return {}

    def quote(self, name: str) -> str:
        """Quotes an identifier as the database requires, whatever characters it has."""
        mark = self.quote_character
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def lake_name(self, name: str) -> str:
        """Returns a name for the lake: if the database folded it to upper case, in lower case."""
        return name.lower() if self.folds_to_upper and name == name.upper() else name

    def double(self, expression: str) -> str:
        """Returns SQL for a number as a double: unlike a `real`'s text, it has all digits."""
        return f"cast({expression} as double precision)"

    def shown(self, row: Column) -> str:
        """Returns SQL for a column as it is loaded, with ``{}`` for the column; mostly empty.

        Args:
            row: the database's description of the column.
        """
        return ""

    def doubts(self, index: int, kind: DataType, row: Column) -> list[Doubt]:
        """Returns which values a column may hold that the lake cannot.

        Args:
            index: the column's position.
            kind: the type that it is read as.
            row: the database's description of it.
        """
        return []

    def literal(self, cursor: Cursor) -> str:
        """Returns a cursor as a typed, escaped SQL literal: only here do values become SQL."""
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
        """Returns a string literal; refuses a NUL, which SQL text cannot hold."""
        if "\0" in value:
            raise ValueError("a string cursor with a NUL character cannot be written into SQL")
        return "'" + value.replace("'", "''") + "'"

    def time(self, expression: str) -> str:
        """Returns SQL for a time; null if it is one that raw does not have."""
        return expression

    def absent(self, column: str, type_: CursorType) -> str:
        """Returns SQL that is true for a cursor that is null in raw."""
        return f"{column} is null"

    def date(self, text: str) -> str:
        """Returns a date literal, in JDBC's escape syntax, which every driver translates."""
        return f"{{d '{text}'}}"

    def timestamp(self, text: str) -> str:
        """Returns a literal for a wall clock time."""
        return f"{{ts '{text}'}}"

    def instant(self, text: str) -> str:
        """Returns a literal for an instant given in UTC; sessions are in UTC."""
        return self.timestamp(text)

    def wall_offset(self, connection: Connection) -> int:
        """Returns how many seconds the database's wall clock is ahead of UTC.

        Needs a fresh connection, before :attr:`session` has run. Columns without a zone are
        assumed to hold this wall clock, unless the source's `time_zone` says otherwise.
        """
        return 0

    def hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs that wildcards should skip."""
        return set()

    def elsewhere(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs with rows that other servers store."""
        return set()

    def lacking(self, connection: Connection, relation: str) -> list[str]:
        """Returns what `loader check` should say about a table.

        Args:
            relation: its qualified and quoted name.
        """
        return []

    def key(self, connection: Connection, place: Place) -> Key:
        """Returns the primary key of a table."""
        rows = connection.metadata("getPrimaryKeys", *place, labels=("COLUMN_NAME", "KEY_SEQ"))
        rows.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
        return Key(tuple(row["COLUMN_NAME"] or "" for row in rows))

    def lookout(self) -> Lookout | None:
        """Returns what shows open statements and transactions; None if the database does not.

        Databases that share snapshots need none: see :mod:`loader.sources.jdbc.postgresql.horizon`.
        """
        return None


class PostgreSQL(Dialect):
    """PostgreSQL: all readers share one exported snapshot."""

    prefixes = ("jdbc:postgresql:",)
    driver = "org.postgresql.Driver"
    session = ("set time zone 'UTC'", "set standard_conforming_strings = on")
    shares_snapshots = True
    instant_types = frozenset({"timestamptz"})
    system_schemas = frozenset({"information_schema", "pg_catalog", "pg_toast"})

    def shown(self, row: Column) -> str:
        if jdbc_type(row) != TIME:
            return ""
        # With or without a zone: as it is in UTC, on the day that Spark reads a bare time on.
        return "(date '1970-01-01' + ({}::timetz at time zone 'UTC')::time)"

    def doubts(self, index: int, kind: DataType, row: Column) -> list[Doubt]:
        return postgresql_times(index, kind, row)

    @classmethod
    def waiting(cls, seconds: int) -> tuple[str, ...]:
        return (f"set lock_timeout = '{seconds}s'",)

    @classmethod
    def resting(cls, version: int) -> tuple[str, ...]:
        return ("set idle_session_timeout = 0",) if version >= 14 else ()

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
        # The driver sets the session's zone to the JVM's, so `show timezone` returns UTC.
        # Other clients get the zone of the role or database, else the server's. The server's
        # is only visible in log_timezone, which initdb sets to the same zone.
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
        # A partition's rows are also its parent's: reading both would deliver them twice.
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

    def elsewhere(self, connection: Connection) -> set[tuple[str, str]]:
        try:
            found = connection.rows(
                """
                with recursive above as (
                    select i.inhparent as id
                    from pg_catalog.pg_inherits as i
                    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relkind = 'f'
                    union
                    select i.inhparent
                    from pg_catalog.pg_inherits as i
                    join above on above.id = i.inhrelid
                )

                select n.nspname, c.relname
                from above
                join pg_catalog.pg_class as c on c.oid = above.id
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                """
            )
        except DatabaseError:  # speaks PostgreSQL's protocol, but is not PostgreSQL
            return set()
        return {(schema or "", name or "") for schema, name in found}

    def lacking(self, connection: Connection, relation: str) -> list[str]:
        try:
            [(hides,)] = connection.rows(
                f"select pg_catalog.row_security_active({self.text(relation)}::regclass)::text"
            )
        except DatabaseError:  # speaks PostgreSQL's protocol, but is not PostgreSQL
            return []
        if hides != "true":
            return []
        return [
            "row-level security hides rows from this role: what a policy shows later is not read, "
            "and what it hides looks deleted to `loader reconcile`; read it with a role that has "
            "BYPASSRLS"
        ]

    def key(self, connection: Connection, place: Place) -> Key:
        # The driver also lists columns that the key's index only includes (INCLUDE).
        _, schema, table = place
        try:
            found = connection.rows(
                f"""
                select
                    a.attname,
                    (
                        c.relkind = 'r'
                        and exists (
                            select from pg_catalog.pg_inherits as i where i.inhparent = c.oid
                        )
                    )::text
                from pg_catalog.pg_class as c
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.contype = 'p'
                cross join unnest(k.conkey) with ordinality as part (number, place)
                join pg_catalog.pg_attribute as a
                    on a.attrelid = c.oid
                    and a.attnum = part.number
                where n.nspname = {self.text(schema or "")}
                    and c.relname = {self.text(table)}
                order by part.place
                """
            )
        except DatabaseError:  # speaks PostgreSQL's protocol, but is not PostgreSQL
            return super().key(connection, place)
        columns = tuple(name or "" for name, _ in found)
        if any(inherited == "true" for _, inherited in found):
            return Key(
                (),
                f"{', '.join(columns)} may be in its child tables again (INHERITS); name it in "
                "primary_key if something else keeps it unique, or read each table by itself",
            )
        return Key(columns)


_PADDED = ("ENUM", "SET", "INET", "UUID")


class MySQL(Dialect):
    """MariaDB and MySQL, both through MariaDB's driver or MySQL's own."""

    prefixes = ("jdbc:mariadb:", "jdbc:mysql:")
    system_schemas = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
    uses_catalogs = True
    hides_columns = True
    rounds_floats = True
    instant_types = frozenset({"timestamp"})
    utc_clock = "select utc_timestamp(6)"

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        # Spark uses MySQL's quotes and types only for "jdbc:mysql"; for any other URL it quotes
        # columns with ", which MariaDB reads as string constants.
        if url.startswith("jdbc:mariadb:"):
            url = "jdbc:mysql:" + url.removeprefix("jdbc:mariadb:")
            if "permitMysqlScheme" not in url:
                url = _with(url, "permitMysqlScheme=true")
        # Without it, a tinyint(1) of 2 to 127 becomes true.
        told = f"{url} {' '.join(properties)}".lower()
        return url if "tinyint1isbit" in told else _with(url, "tinyInt1isBit=false")

    def time(self, expression: str) -> str:
        return f"nullif({expression}, '0000-00-00')"

    def absent(self, column: str, type_: CursorType) -> str:
        # A date of zero is null in raw; MariaDB itself calls it null if it may not be null.
        null = super().absent(column, type_)
        return f"({null} or {column} <= '0000-00-00')" if type_.is_time else null

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

    @classmethod
    def waiting(cls, seconds: int) -> tuple[str, ...]:
        # Whatever a server has by default: only rows that are committed, all of them, and strings
        # as they are. One statement, as the drivers take no more at once.
        limit = f", lock_wait_timeout = {seconds}" if seconds else ""
        return (
            "set time_zone = '+00:00', sql_select_limit = 18446744073709551615, sql_mode = ''"
            f"{limit} /*M! , tx_isolation = 'REPEATABLE-READ' */ "
            "/*!50720 , transaction_isolation = 'REPEATABLE-READ' */",
        )

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        return {"sessionVariables": f"lock_wait_timeout={seconds}"} if seconds else {}

    def shown(self, row: Column) -> str:
        kind = jdbc_type(row)
        if kind == TIME:  # of up to 838 hours, also negative, with fractions
            return "timestamp('1970-01-01', {})"
        # Spark pads what the driver calls a char(n) in results: also enums, sets and addresses.
        named = (row.get("TYPE_NAME") or "").upper().startswith(_PADDED)
        return "cast({} as char)" if kind == CHAR or named else ""

    def doubts(self, index: int, kind: DataType, row: Column) -> list[Doubt]:
        return mysql_values(index, row)

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


def _with(url: str, parameter: str) -> str:
    return url + ("&" if "?" in url else "?") + parameter


_DIALECTS: tuple[type[Dialect], ...] = (PostgreSQL, MySQL, Derby, Oracle)


def dialect_class(url: str) -> type[Dialect]:
    """Returns the dialect for a JDBC URL; the standard one if the database needs no other."""
    lowered = url.lower()
    for dialect in _DIALECTS:
        if lowered.startswith(dialect.prefixes):
            return dialect
    return Dialect


def scrubbed(url: str) -> str:
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
