"""SQL dialects, which differ in quotes, literals, clocks, keys and catalogs.

All variable parts of a query must be escaped: identifiers by :meth:`Dialect.quote`, values by
:meth:`Dialect.literal`. Spark's own JDBC dialects map the column types.
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
"""The time limit for opening a connection. PostgreSQL's and MySQL's drivers set none."""

TablePath = tuple["str | None", "str | None", str]
"""The catalog, schema and name of a table."""


@dataclass(frozen=True)
class Key:
    """The primary key of a table.

    Attributes:
        columns: the columns, in the order of the key; empty if there is no usable key.
        lacking: why the declared key is unusable; empty if it is usable or if none is declared.
    """

    columns: tuple[str, ...]
    lacking: str = ""


class TableSize(NamedTuple):
    """The size of a table, according to the database's statistics.

    Attributes:
        size: the number of bytes, including values that are stored outside the rows.
        rows: the number of rows; 0 if there are no statistics yet.
    """

    size: int
    rows: int


class Dialect:
    """The dialect of a database that follows the JDBC standard. Subclasses describe deviations.

    Attributes:
        prefixes: the prefixes of JDBC URLs for this kind of database.
        driver: the class of the default driver; None if the URL determines it.
        session: statements that every connection runs first, so that all sessions are in UTC.
        shares_snapshots: whether several connections can read the same snapshot.
        rounds_floats: whether a `float` loses digits when it is converted to text.
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
            properties: the names of driver properties that are set outside the URL.
        """
        return url

    @classmethod
    def limit(cls, rows: int) -> str:
        """Returns a LIMIT clause; an empty string if the driver does not need one."""
        return ""

    @classmethod
    def limit_lock_wait(cls, seconds: int) -> tuple[str, ...]:
        """Returns statements that limit how long a session waits for a locked table.

        If the driver runs only one statement at a time, this must be a single statement.
        """
        return ()

    @classmethod
    def disable_idle_timeout(cls, version: int) -> tuple[str, ...]:
        """Returns statements that disable the server's timeout for idle sessions."""
        return ()

    def keep_alive(self, connection: Connection) -> tuple[str, ...]:
        """Returns statements that make the server send keepalive packets about once a minute.

        Firewalls silently drop connections that have no traffic, for example while the server sorts
        rows, or while a connection keeps the exported snapshot open during a long load.
        """
        return ()

    def has_properties(self, connection: Connection) -> bool:
        """Returns whether the server received the startup properties. A pooler may drop them."""
        return True

    @classmethod
    def choose_read_properties(cls, version: int, readers: int) -> dict[str, str]:
        """Returns driver properties for reads without a pooler.

        Args:
            readers: the number of readers that share the memory of one JVM.
        """
        return {}

    @classmethod
    def stream_fetch_size(cls, driver: str) -> int | None:
        """Returns the fetch size that makes the driver stream rows; None if it always does."""
        return None

    @classmethod
    def choose_startup_properties(cls, seconds: int) -> dict[str, str]:
        """Returns driver properties that limit how long a session waits for a locked table.

        They are used instead of :meth:`limit_lock_wait` in connections that do not run its
        statements.
        """
        return {}

    def quote(self, name: str) -> str:
        """Quotes and escapes an identifier."""
        mark = self.quote_character
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def lake_name(self, name: str) -> str:
        """Returns the name in the lake: in lower case if the database folded it to upper case.

        A name with lower-case letters was created in quotes and is not changed.
        """
        return name.lower() if self.folds_to_upper and name == name.upper() else name

    def double(self, expression: str) -> str:
        """Returns SQL that converts a number to a double, whose text has all digits."""
        return f"cast({expression} as double precision)"

    def select_expression(self, row: Column) -> str:
        """Returns SQL that converts a column; an empty string if no conversion is needed.

        ``{}`` stands for the column. A time of day becomes a string, because the lake has no type
        for it, and the type in Spark depends on Spark's version. The padding of a `char(n)` is
        removed, because databases ignore it in comparisons but Spark does not.
        """
        if jdbc_type(row) in CHARS:
            return "rtrim({})"
        return "cast({} as varchar(32))" if jdbc_type(row) in TIMES else ""

    def as_text(self, row: Column) -> str:
        """Returns SQL for a column's exact values as strings. ``{}`` stands for the column.

        Returns an empty string if the driver should convert the values.
        """
        return self.select_expression(row)

    def choose_read_type(self, row: Column) -> str:
        """Returns a column's Spark type if different versions of Spark choose different types.

        Otherwise returns an empty string.
        """
        return ""

    def find_lossy_texts(self, index: int, row: Column) -> list[LossyValue]:
        """Returns checks for values that :meth:`as_text` cannot format exactly."""
        return []

    def find_lossy_values(
        self, index: int, kind: DataType, row: Column, binary: bool
    ) -> list[LossyValue]:
        """Returns checks that find a column's values that the lake cannot store exactly.

        Args:
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
            ValueError: if the string contains a NUL character, which SQL does not allow.
        """
        if "\0" in value:
            raise ValueError("a string cursor with a NUL character cannot be written into SQL")
        return "'" + value.replace("'", "''") + "'"

    def time(self, expression: str) -> str:
        """Returns SQL that evaluates to a time, or to null if the lake cannot store the time."""
        return expression

    def match_null(self, column: str, type_: CursorType) -> str:
        """Returns SQL that is true if the cursor's value is loaded as null."""
        return f"{column} is null"

    def date(self, text: str) -> str:
        """Formats a date as a literal in the JDBC escape syntax."""
        return f"{{d '{text}'}}"

    def timestamp(self, text: str) -> str:
        """Formats a literal for a wall-clock time."""
        return f"{{ts '{text}'}}"

    def instant(self, text: str) -> str:
        """Formats an instant in UTC, the time zone of all sessions, as a literal."""
        return self.timestamp(text)

    def wall_offset(self, connection: Connection) -> int:
        """Returns the UTC offset in seconds of the database's wall clock.

        Times without a time zone are assumed to have this offset, unless the source has the
        `time_zone` option.

        Args:
            connection: a new connection that has not run :attr:`session`, which sets UTC.
        """
        return 0

    def list_hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs that wildcards skip."""
        return set()

    def list_remote_tables(self, connection: Connection) -> set[tuple[str, str]]:
        """Returns the (schema, table) pairs whose rows are stored on another server."""
        return set()

    def list_unmet_requirements(self, connection: Connection, relation: str) -> list[str]:
        """Returns, for `loader check`, the reasons why a table cannot be read completely."""
        return []

    def read_size(self, connection: Connection, place: TablePath) -> TableSize | None:
        """Returns a table's size from the database's statistics; None if there are none."""
        return None

    def read_key(self, connection: Connection, place: TablePath) -> Key:
        rows = connection.metadata("getPrimaryKeys", *place, labels=("COLUMN_NAME", "KEY_SEQ"))
        rows.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
        return Key(tuple(row["COLUMN_NAME"] or "" for row in rows))

    def is_ordered_by_bytes(self, connection: Connection, place: TablePath, column: str) -> bool:
        """Returns whether the database orders a string column by UTF-8 bytes, as Spark does.

        If not, or if this is unknown, only the database can compare two values.
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
        if cursor.type is CursorType.DOUBLE:  # Derby cannot cast strings to numbers
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
