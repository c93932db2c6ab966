"""The SQL of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import DataType

from loader.rows.cursor import CursorType
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.dialect import Dialect, Place
from loader.sources.jdbc.lossy_values import (
    BIT,
    BYTES,
    CHAR,
    TIME,
    Column,
    LossyValue,
    find_mysql_losses,
    is_bits,
    jdbc_type,
)

_PADDED = ("ENUM", "SET", "INET", "UUID")
_GEOMETRIES = (
    *("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING"),
    *("MULTIPOLYGON", "GEOMETRYCOLLECTION", "GEOMCOLLECTION"),
)
_READ_AS = {"SMALLINT": "int", "MEDIUMINT UNSIGNED": "bigint"}
_FEW = 10
"""Rows that are held in memory at once: some may have a hundred times the bytes of all others."""
_RESTING = "wait_timeout = cast(greatest(@@wait_timeout, 28800) as unsigned)"
"""Lets a session wait for its next question for eight hours, as these servers do by default."""


class MySQL(Dialect):
    """MariaDB and MySQL, both through MariaDB's driver or MySQL's own."""

    prefixes = ("jdbc:mariadb:", "jdbc:mysql:")
    system_schemas = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
    uses_catalogs = True
    hides_columns = True
    rounds_floats = True
    instant_types = frozenset({"timestamp"})
    utc_clock = "select utc_timestamp(6)"
    network = (  # else a server may ask either driver for any file of this machine
        ("allowLocalInfile", "false"),
        ("allowLoadLocalInfile", "false"),
        ("allowUrlInLocalInfile", "false"),
        ("autoDeserialize", "false"),
    )

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        # Spark uses MySQL's quotes and types only for "jdbc:mysql"; for any other URL it quotes
        # columns with ", which MariaDB reads as string constants.
        if url.startswith("jdbc:mariadb:"):
            url = "jdbc:mysql:" + url.removeprefix("jdbc:mariadb:")
            if "permitMysqlScheme" not in url:
                url = _with(url, "permitMysqlScheme=true")
        # Without them, a tinyint(1) of 2 to 127 becomes true, and a year a date without a month.
        given = f"{url} {' '.join(properties)}".lower()
        for name in ("tinyInt1isBit", "yearIsDateType"):
            if name.lower() not in given:
                url = _with(url, f"{name}=false")
        return url

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
        # Regardless of a server's defaults: only rows that are committed, all of them, and strings
        # as they are. One statement, as the drivers take no more at once.
        limit = f", lock_wait_timeout = {seconds}" if seconds else ""
        return (
            "set time_zone = '+00:00', sql_select_limit = 18446744073709551615, sql_mode = ''"
            f"{limit} /*M! , tx_isolation = 'REPEATABLE-READ', {_RESTING} */ "
            f"/*!50720 , transaction_isolation = 'REPEATABLE-READ', {_RESTING} */",
        )

    @classmethod
    def stream_fetch_size(cls, driver: str) -> int | None:
        # MySQL's own driver, at any other size, first reads all rows into memory. MariaDB's asks
        # the server nothing for the next rows, so that many at once save no time.
        return -(2**31) if driver.startswith("MySQL") else _FEW

    @classmethod
    def properties(cls, seconds: int) -> dict[str, str]:
        return {"sessionVariables": f"lock_wait_timeout={seconds}"} if seconds else {}

    def select_expression(self, row: Column) -> str:
        kind = jdbc_type(row)
        if kind == TIME:  # of up to 838 hours, also negative
            return "cast(cast({} as time(6)) as char)"
        if is_bits(row):  # Spark 3 reads a number, Spark 4 its bytes
            return f"lpad(bin({{}}), {row['COLUMN_SIZE']}, '0')"
        name = (row.get("TYPE_NAME") or "").upper()
        if name.startswith("FLOAT"):  # its text has six digits; before 8.0.17, MySQL has no cast
            return "({} + 0e0)"
        # Spark pads what the driver calls a char(n) in results: also enums, sets and addresses.
        return "cast({} as char)" if kind == CHAR or name.startswith(_PADDED) else ""

    def as_text(self, row: Column) -> str:
        name = (row.get("TYPE_NAME") or "").upper()
        if name in _GEOMETRIES:
            return "st_astext({})"
        if jdbc_type(row) in BYTES:
            return "concat('0x', hex({}))"
        if jdbc_type(row) == BIT and not is_bits(row):
            return "cast({} + 0 as char)"
        shown = self.select_expression(row)
        return f"cast({shown or '{}'} as char)"

    def doubt_texts(self, index: int, row: Column) -> list[LossyValue]:
        if jdbc_type(row) not in BYTES:
            return []
        long = LossyValue(
            index,
            "(2 * octet_length({}) + 2 > @@max_allowed_packet)",
            "have a text longer than max_allowed_packet, of which the server makes null",
            "Remove the column from column_types, or set max_allowed_packet higher on the server",
        )
        return [long]

    def choose_read_type(self, row: Column) -> str:
        return _READ_AS.get((row.get("TYPE_NAME") or "").upper(), "")

    def doubts(self, index: int, kind: DataType, row: Column, binary: bool) -> list[LossyValue]:
        return find_mysql_losses(index, row)

    def is_ordered_by_bytes(self, connection: Connection, place: Place, column: str) -> bool:
        # All other collations pad with blanks, so that a tab sorts before the end of the text.
        catalog, _, table = place
        found = connection.rows(
            f"""
            select case
                when collation_name like '%nopad_bin' or collation_name like '%0900_bin' then 'true'
            end
            from information_schema.columns
            where table_schema = {self.text(catalog or "")}
                and table_name = {self.text(table)}
                and column_name = {self.text(column)}
            """
        )
        return found == [("true",)]


def _with(url: str, parameter: str) -> str:
    return url + ("&" if "?" in url else "?") + parameter
