"""SQL dialects. They describe how databases differ in quotes, literals, clocks, keys and catalogs.

Spark's JDBC dialects map the column types. This module escapes all variable parts of a query:
:meth:`Dialect.quote` escapes identifiers, and :meth:`Dialect.literal` escapes values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pyspark.sql.types import DataType

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.lossy_values import CHARS, TIMES, Column, LossyValue, jdbc_type

LOGIN_SECONDS = 120
"""The time limit for opening a connection. PostgreSQL's and MySQL's drivers set none by default."""

TablePath = tuple["str | None", "str | None", str]
"""The catalog, schema and name of a table."""


@dataclass(frozen=True)
class Key:
    """The primary key of a table.

    Attributes:
        columns: the columns, in the order of the key; empty if there is no usable key.
        lacking: why the declared key is unusable; empty if the key is usable or if no key is
            declared.
    """

    columns: tuple[str, ...]
    lacking: str = ""


class TableSize(NamedTuple):
    """The size of a table, according to the database's statistics.

    Attributes:
        size: the number of bytes, including values that are stored out of line.
        rows: the number of rows; 0 if there are no statistics yet.
    """

    size: int
    rows: int


class Dialect:
    """A database that follows the JDBC standard. Subclasses describe databases that deviate.

    Attributes:
        prefixes: the prefixes of JDBC URLs for this kind of database.
        driver: the class of the default driver; None if the URL determines it.
        session: statements that every connection runs first, so that all sessions are in UTC.
        shares_snapshots: whether several connections can read the same snapshot.
        rounds_floats: whether a `float` loses digits when it is converted to text.
        system_schemas: the schemas that contain only system tables.
        uses_catalogs: whether table names are qualified by the catalog instead of the schema.
        hides_columns: whether `select *` may omit columns.
        network: default driver properties, which the user's properties override.
        instant_types: the names of types that store an instant, not a wall-clock time.
        utc_clock: a query for the current time.
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
    network: ClassVar[tuple[tuple[str, str], ...]] = ()
    utc_clock: ClassVar[str] = "select current_timestamp"

    def __init__(self, quote: str = '"', folds_to_upper: bool = False) -> None:
        self.quote_character = quote
        self.folds_to_upper = folds_to_upper

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        """Returns a URL that both the driver and Spark's dialect support.

        Args:
            properties: the driver properties that are set outside the URL.
        """
        return url

    @classmethod
    def limit(cls, rows: int) -> str:
        """Returns the clause that limits a query to a few rows.

        Returns an empty string if the driver does not need such a clause.
        """
        return ""

    @classmethod
    def limit_lock_wait(cls, seconds: int) -> tuple[str, ...]:
        """Returns statements that limit how long a session waits for a locked table.

        If the driver runs only one statement at a time, a single statement makes all settings.
        """
        return ()

    @classmethod
    def disable_idle_timeout(cls, version: int) -> tuple[str, ...]:
        """Returns statements that disable the server's timeout for idle sessions.

        Args:
            version: the major version of the database.
        """
        return ()

    def keep_alive(self, connection: Connection) -> tuple[str, ...]:
        """Returns statements that make the server send keepalive packets about once a minute.

        Firewalls silently drop connections that have no traffic. There is none while the server
        sorts rows, or while a connection keeps the exported snapshot open during a long load.
        """
        return ()

    def has_properties(self, connection: Connection) -> bool:
        """Returns whether the server received the startup properties. A pooler may drop them."""
        return True

    @classmethod
    def choose_read_properties(cls, version: int, readers: int) -> dict[str, str]:
        """Returns driver properties for reads over a direct connection, without a pooler.

        Args:
            version: the major version of the database.
            readers: the number of readers that share the memory of one JVM.
        """
        return {}

    @classmethod
    def stream_fetch_size(cls, driver: str) -> int | None:
        """Returns the fetch size that the driver needs to stream rows. None if it always streams.

        Args:
            driver: the name that the driver reports.
        """
        return None

    @classmethod
    def choose_startup_properties(cls, seconds: int) -> dict[str, str]:
        """Returns driver properties that limit the wait for a locked table.

        They apply to connections that do not run the statements of :meth:`limit_lock_wait`.
        """
        return {}

    def quote(self, name: str) -> str:
        """Quotes an identifier. The identifier may contain any characters."""
        mark = self.quote_character
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def lake_name(self, name: str) -> str:
        """Returns the name to use in the lake. Names that the database folded become lower case.

        A name that contains lower-case letters was created in quotes and is not changed.
        """
        return name.lower() if self.folds_to_upper and name == name.upper() else name

    def double(self, expression: str) -> str:
        """Returns SQL that converts a number to a double. Its text then has all digits."""
        return f"cast({expression} as double precision)"

    def select_expression(self, row: Column) -> str:
        """Returns SQL that converts a column, or an empty string if no conversion is needed.

        ``{}`` stands for the column. A time of day becomes a string, because the lake has no time
        type and different versions of Spark read it as different types. The padding of a `char(n)`
        is removed, because databases ignore it in comparisons but Spark does not.

        Args:
            row: the database's description of the column.
        """
        if jdbc_type(row) in CHARS:
            return "rtrim({})"
        return "cast({} as varchar(32))" if jdbc_type(row) in TIMES else ""

    def as_text(self, row: Column) -> str:
        """Returns SQL for a column's exact values as strings. ``{}`` stands for the column.

        Returns an empty string if the driver should convert the values to strings.

        Args:
            row: the database's description of the column.
        """
        return self.select_expression(row)

    def choose_read_type(self, row: Column) -> str:
        """Returns the Spark type as which to read a column.

        Returns an empty string unless different versions of Spark would choose different types.

        Args:
            row: the database's description of the column.
        """
        return ""

    def find_lossy_texts(self, index: int, row: Column) -> list[LossyValue]:
        """Returns checks for values that the lake cannot store as :meth:`as_text` formats them.

        Args:
            index: the position of the column.
            row: the database's description of the column.
        """
        return []

    def find_lossy_values(
        self, index: int, kind: DataType, row: Column, binary: bool
    ) -> list[LossyValue]:
        """Returns the checks for values of a column that the lake cannot store exactly.

        Args:
            index: the position of the column.
            kind: the column's type in Spark.
            row: the database's description of the column.
            binary: whether the driver receives values in the binary format.
        """
        return []

    def literal(self, cursor: Cursor) -> str:
        """Formats a cursor as a typed, escaped SQL literal."""
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
        """Formats a string literal.

        Raises:
            ValueError: if the text contains a NUL character, which SQL does not allow.
        """
        if "\0" in value:
            raise ValueError("a string cursor with a NUL character cannot be written into SQL")
        return "'" + value.replace("'", "''") + "'"

    def time(self, expression: str) -> str:
        """Returns SQL for a time. It yields null if the lake cannot store the time."""
        return expression

    def match_null(self, column: str, type_: CursorType) -> str:
        """Returns SQL that is true if a cursor is loaded as null."""
        return f"{column} is null"

    def date(self, text: str) -> str:
        """Formats a date as a literal in the JDBC escape syntax."""
        return f"{{d '{text}'}}"

    def timestamp(self, text: str) -> str:
        """Formats a literal for a wall-clock time."""
        return f"{{ts '{text}'}}"

    def instant(self, text: str) -> str:
        """Formats a literal for an instant. The instant is in UTC, as are all sessions."""
        return self.timestamp(text)

    def wall_offset(self, connection: Connection) -> int:
        """Returns the UTC offset, in seconds, of the database's wall clock.

        Requires a new connection on which :attr:`session` has not run. Times without a time zone
        are assumed to have this offset, unless the source has the `time_zone` option.
        """
        return 0

    def list_hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs that wildcards skip."""
        return set()

    def list_remote_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs whose rows are stored on another server."""
        return set()

    def list_unmet_requirements(self, connection: Connection, relation: str) -> list[str]:
        """Returns notes for `loader check` if a table cannot be read completely.

        Args:
            relation: the qualified and quoted name of the table.
        """
        return []

    def read_size(self, connection: Connection, place: TablePath) -> TableSize | None:
        """Returns a table's size from the database's statistics, or None if there are none."""
        return None

    def read_key(self, connection: Connection, place: TablePath) -> Key:
        """Returns the primary key of a table."""
        rows = connection.metadata("getPrimaryKeys", *place, labels=("COLUMN_NAME", "KEY_SEQ"))
        rows.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
        return Key(tuple(row["COLUMN_NAME"] or "" for row in rows))

    def is_ordered_by_bytes(self, connection: Connection, place: TablePath, column: str) -> bool:
        """Returns whether the database orders a string column by UTF-8 bytes, as Spark does.

        Returns false if the order is unknown. If the result is false, only the database can compare
        two values.
        """
        return False


class Derby(Dialect):
    """Apache Derby, which is part of the Spark distribution."""

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
    """Oracle, which requires `from dual` to select without a table."""

    prefixes = ("jdbc:oracle:",)
    utc_clock = "select current_timestamp from dual"
