"""The SQL dialect of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import DataType

from loader.rows.cursor import CursorType
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.dialect import Dialect, TablePath
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
"""The fetch size for MariaDB's driver. It is small, because a row may be very large."""
_RESTING = "wait_timeout = cast(greatest(@@wait_timeout, 28800) as unsigned)"
"""Sets the idle timeout to at least eight hours, its default."""


class MySQL(Dialect):
    prefixes = ("jdbc:mariadb:", "jdbc:mysql:")
    system_schemas = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
    uses_catalogs = True
    hides_columns = True
    rounds_floats = True
    instant_types = frozenset({"timestamp"})
    utc_clock = "select utc_timestamp(6)"
    network = (  # otherwise a malicious server could read local files
        ("allowLocalInfile", "false"),
        ("allowLoadLocalInfile", "false"),
        ("allowUrlInLocalInfile", "false"),
        ("autoDeserialize", "false"),
    )

    def url(self, url: str, properties: Collection[str] = ()) -> str:
        # Spark quotes column names with backticks only for "jdbc:mysql" URLs. For other URLs, it
        # uses double quotes, which delimit strings in MariaDB.
        if url.startswith("jdbc:mariadb:"):
            url = "jdbc:mysql:" + url.removeprefix("jdbc:mariadb:")
            if "permitMysqlScheme" not in url:
                url = _with(url, "permitMysqlScheme=true")
        # By default, drivers convert a tinyint(1) to a boolean, and a year to a date.
        configured = f"{url} {' '.join(properties)}".lower()
        for name in ("tinyInt1isBit", "yearIsDateType"):
            if name.lower() not in configured:
                url = _with(url, f"{name}=false")
        return url

    @classmethod
    def limit(cls, rows: int) -> str:
        return f" limit {rows}"  # otherwise, closing a result would read it to its end

    def time(self, expression: str) -> str:
        return f"nullif({expression}, '0000-00-00')"

    def match_null(self, column: str, type_: CursorType) -> str:
        # A zero date is loaded as null. MariaDB's `is null` matches it only in a NOT NULL column.
        null = super().match_null(column, type_)
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
    def limit_lock_wait(cls, seconds: int) -> tuple[str, ...]:
        # Overrides server defaults that could show uncommitted rows, limit the number of rows, or
        # change how strings are parsed. The drivers run only one statement at a time.
        limit = f", lock_wait_timeout = {seconds}" if seconds else ""
        return (
            "set time_zone = '+00:00', sql_select_limit = 18446744073709551615, sql_mode = ''"
            f"{limit} /*M! , tx_isolation = 'REPEATABLE-READ', {_RESTING} */ "
            f"/*!50720 , transaction_isolation = 'REPEATABLE-READ', {_RESTING} */",
        )

    @classmethod
    def stream_fetch_size(cls, driver: str) -> int | None:
        # With any other fetch size, MySQL's driver reads all rows into memory first. For MariaDB's
        # driver, a larger fetch size would save no round trips.
        return -(2**31) if driver.startswith("MySQL") else _FEW

    @classmethod
    def choose_startup_properties(cls, seconds: int) -> dict[str, str]:
        return {"sessionVariables": f"lock_wait_timeout={seconds}"} if seconds else {}

    def select_expression(self, row: Column) -> str:
        kind = jdbc_type(row)
        if kind == TIME:  # between -838 and 838 hours
            return "cast(cast({} as time(6)) as char)"
        if is_bits(row):  # Spark 3 reads a number, Spark 4 reads bytes
            return f"lpad(bin({{}}), {row['COLUMN_SIZE']}, '0')"
        name = (row.get("TYPE_NAME") or "").upper()
        if name.startswith("FLOAT"):
            # As text, a FLOAT has only six digits. MySQL before 8.0.17 has no cast to double.
            return "({} + 0e0)"
        # Spark pads columns that the driver reports as char(n), such as enums, sets and addresses.
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

    def find_lossy_texts(self, index: int, row: Column) -> list[LossyValue]:
        if jdbc_type(row) not in BYTES:
            return []
        too_long = LossyValue(
            index,
            "(2 * octet_length({}) + 2 > @@max_allowed_packet)",
            "are longer than max_allowed_packet when converted to strings, so the server replaces "
            "them with null",
            "Remove the column from column_types, or increase max_allowed_packet on the server",
        )
        return [too_long]

    def choose_read_type(self, row: Column) -> str:
        return _READ_AS.get((row.get("TYPE_NAME") or "").upper(), "")

    def find_lossy_values(
        self, index: int, kind: DataType, row: Column, binary: bool
    ) -> list[LossyValue]:
        return find_mysql_losses(index, row)

    def is_ordered_by_bytes(self, connection: Connection, place: TablePath, column: str) -> bool:
        # Other binary collations pad strings with spaces, so they sort 'a' after 'a<tab>'.
        catalog, _, table = place
        answer = connection.rows(
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
        return answer == [("true",)]


def _with(url: str, parameter: str) -> str:
    return url + ("&" if "?" in url else "?") + parameter
