"""The differences between databases: quotes, literals, clocks, snapshots, lists of tables.

Spark maps column types (in its JDBC dialects). Everything that goes into SQL is escaped here:
identifiers by :meth:`Dialect.quote`, values by :meth:`Dialect.literal`.
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
"""How long a connection may take; PostgreSQL's and MySQL's drivers have no limit of their own."""

Place = tuple["str | None", "str | None", str]
"""A table's catalog, schema and name."""


@dataclass(frozen=True)
class Key:
    """The primary key of a table.

    Attributes:
        columns: in the key's order; empty if there is none.
        lacking: why there is none although one is declared; empty if there is no more to say.
    """

    columns: tuple[str, ...]
    lacking: str = ""


class Extent(NamedTuple):
    """A table's size by the database's statistics.

    Attributes:
        size: its bytes, long values included.
        rows: its rows; 0 if that was never counted.
    """

    size: int
    rows: int


class Dialect:
    """A database that follows the JDBC standard; the subclasses are for databases that differ.

    Attributes:
        prefixes: how its JDBC URLs begin.
        session: statements that every connection runs first, so that all sessions are in UTC.
        shares_snapshots: whether many connections can read one snapshot of the database.
        rounds_floats: whether the text of a `float` has fewer digits than its value.
        hides_columns: whether `select *` may leave columns out.
        network: driver properties of every connection, which the user's own overrule.
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
    network: ClassVar[tuple[tuple[str, str], ...]] = ()
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

    def keep_alive(self, connection: Connection) -> tuple[str, ...]:
        """Returns statements that make the server send keepalives each minute or so.

        Firewalls silently drop connections that are idle for longer, as one is while the server
        sorts, or while it holds the snapshot of a long load.
        """
        return ()

    def has_properties(self, connection: Connection) -> bool:
        """Returns whether :meth:`properties` have reached the database: a pooler may drop them."""
        return True

    @classmethod
    def reading(cls, version: int, readers: int) -> dict[str, str]:
        """Returns the driver's properties for reads, if nothing is between it and the database.

        Args:
            version: the database's major version.
            readers: how many of them share one JVM's memory.
        """
        return {}

    @classmethod
    def stream_fetch_size(cls, driver: str) -> int | None:
        """Returns the fetch size with which a driver streams rows; None if any makes it do so.

        Args:
            driver: the driver's name, as it gives it.
        """
        return None

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        """Returns the same limit as properties, for connections where Spark runs no statements."""
        return {}

    def quote(self, name: str) -> str:
        """Quotes an identifier as the database requires; it may have any characters."""
        mark = self.quote_character
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def lake_name(self, name: str) -> str:
        """Returns a name for the lake: if the database folded it to upper case, in lower case."""
        return name.lower() if self.folds_to_upper and name == name.upper() else name

    def double(self, expression: str) -> str:
        """Returns SQL for a number as a double: unlike a `real`'s text, it has all digits."""
        return f"cast({expression} as double precision)"

    def select_expression(self, row: Column) -> str:
        """Returns SQL for a column as it is loaded, with ``{}`` for the column; mostly empty.

        Times of day are texts: the lake has no such type, and Spark's versions read them as
        different others. Databases pad a `char(n)` with blanks, which mean nothing to their own
        comparisons, and make a value another one in Spark.

        Args:
            row: the database's description of the column.
        """
        if jdbc_type(row) in CHARS:
            return "rtrim({})"
        return "cast({} as varchar(32))" if jdbc_type(row) in TIMES else ""

    def as_text(self, row: Column) -> str:
        """Returns SQL for a column as a text that holds every value of its type.

        ``{}`` stands for the column; empty if the driver is to write it.

        Args:
            row: the database's description of the column.
        """
        return self.select_expression(row)

    def choose_read_type(self, row: Column) -> str:
        """Returns the type to read a column as, where Spark's versions choose different ones.

        Args:
            row: the database's description of the column.
        """
        return ""

    def doubt_texts(self, index: int, row: Column) -> list[LossyValue]:
        """Returns the lossy values that a column may have as text, as :meth:`as_text` reads it.

        Args:
            index, row: the column's position, and the database's description of it.
        """
        return []

    def doubts(self, index: int, kind: DataType, row: Column, binary: bool) -> list[LossyValue]:
        """Returns the values that a column may hold and the lake cannot.

        Args:
            index: the column's position.
            kind: the type that it is read as.
            row: the database's description of it.
            binary: whether the driver gets values in binary, not as texts.
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

    def list_unmet_requirements(self, connection: Connection, relation: str) -> list[str]:
        """Returns notes for `loader check` about a table.

        Args:
            relation: its qualified and quoted name.
        """
        return []

    def extent(self, connection: Connection, place: Place) -> Extent | None:
        """Returns a table's size by the database's statistics; None if they have none."""
        return None

    def key(self, connection: Connection, place: Place) -> Key:
        """Returns the primary key of a table."""
        rows = connection.metadata("getPrimaryKeys", *place, labels=("COLUMN_NAME", "KEY_SEQ"))
        rows.sort(key=lambda row: int(row["KEY_SEQ"] or 0))
        return Key(tuple(row["COLUMN_NAME"] or "" for row in rows))

    def is_ordered_by_bytes(self, connection: Connection, place: Place, column: str) -> bool:
        """Returns whether a text column is sure to be ordered by its bytes in UTF-8, as in Spark.

        If it is not, the database still says which value is highest, but only it can compare two.
        """
        return False


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
