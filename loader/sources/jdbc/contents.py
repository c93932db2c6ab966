"""A table's contents by key; the database itself computes the sums and hashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from loader.sources.checksum import Form, Part
from loader.sources.contents import BUCKET, CHECKSUM, COUNT, KEY, WANTED, Contents, Share
from loader.sources.jdbc.checksum_sql import Checksum
from loader.sources.jdbc.postgresql.database_continuity import XMIN

if TYPE_CHECKING:
    from loader.sources import SourceTable
    from loader.sources.jdbc.connection import Connection
    from loader.sources.jdbc.table_metadata import NativeColumns

Query = Callable[[str], DataFrame]
Read = Callable[[str, str], DataFrame]
Judge = Callable[[str], object]


class JdbcContents(Contents):
    """Contents of a table in PostgreSQL, MariaDB or MySQL that has each key once.

    The database sends only the sums of buckets, and the hashes of the buckets that differ.

    Args:
        checksum: the database's expressions.
        relation: the table, quoted.
        wanted: an SQL condition for the rows that the spec asks for; empty if it asks for all.
        columns: SQL for the columns, by their names in Spark.
        query: reads the rows of a query in Spark.
        read: reads the table's rows for a where clause, with an expression as KEY.
        judge: refuses the rows of a where clause that the lake cannot hold.
    """

    def __init__(
        self,
        checksum: Checksum,
        relation: str,
        wanted: str,
        columns: Mapping[str, str],
        key: Sequence[Part],
        parts: Sequence[Part],
        left_out: Sequence[str],
        query: Query,
        read: Read,
        judge: Judge,
    ) -> None:
        super().__init__(key, parts, left_out)
        self._sql = checksum
        self._relation = relation
        self._wanted = wanted
        self._columns = columns
        self._query = query
        self._read = read
        self._judge = judge

    def sums(self, share: Share, parts: int) -> DataFrame:
        number = self._sql.number(self._hash(self.parts))
        numbered = (
            f"select {self._bucket(share.of * parts)} as b, {number} as n "
            f"from {self._relation}{_where(self._holds(share), self._wanted)}"
        )
        summed = (
            f"select b, count(*) as c, {self._sql.total('n')} as t "
            f"from ({numbered}) numbered group by b"
        )
        return self._query(summed).select(
            f.col("b").cast("bigint").alias(BUCKET),
            f.col("c").cast("bigint").alias(COUNT),
            f.col("t").cast("string").alias(CHECKSUM),
        )

    def hashes(self, share: Share) -> DataFrame:
        wanted = f"case when {self._wanted} then 1 else 0 end" if self._wanted else "1"
        hashed = (
            f"select {self._hash(self.key)} as k, "
            f"{self._sql.number(self._hash(self.parts))} as n, "
            f"{wanted} as w from {self._relation}{_where(self._holds(share))}"
        )
        return self._query(hashed).select(
            f.col("k").alias(KEY),
            f.col("n").cast("bigint").alias(CHECKSUM),
            (f.col("w") == 1).alias(WANTED),
        )

    def rows(self, share: Share) -> DataFrame:
        return self._read(_where(self._holds(share)), self._hash(self.key))

    def judge(self, share: Share) -> None:
        self._judge(_where(self._holds(share), self._wanted))

    def _hash(self, parts: Sequence[Part]) -> str:
        return self._sql.hash([self._sql.text(part, self._columns[part.name]) for part in parts])

    def _bucket(self, of: int) -> str:
        return f"mod({self._sql.number(self._hash(self.key))}, {of})"

    def _holds(self, share: Share) -> str:
        if share.keys is not None:
            # We made these hexadecimal digits, so they need no escape.
            return f"{self._hash(self.key)} in ({', '.join(map(repr, share.keys))})"
        if share.buckets is None:
            return ""
        return f"{self._bucket(share.of)} in ({', '.join(map(str, share.buckets))})"


def list_comparable(
    checksum: Checksum, connection: Connection, table: SourceTable
) -> tuple[list[Part], list[str]]:
    """Returns the columns that can be compared, and those that cannot, as ``name (type)``.

    Args:
        connection: for the database's own names of the types.
    """
    native: NativeColumns = table.ref.native
    space = (native.catalog if checksum.dialect.uses_catalogs else native.schema) or ""
    own = {
        name: (type_ or "", kind or "")
        for name, type_, kind in connection.rows(checksum.types(space, native.table))
    }
    parts, left_out = [], []
    for index, (name, column) in enumerate(zip(native.columns, table.schema.fields, strict=True)):
        if native.writers and name == XMIN:
            continue  # who wrote a row is not part of its contents
        type_, kind = own.get(name, ("", ""))
        form = checksum.form(type_, kind, column.dataType)
        if index in native.as_texts and isinstance(column.dataType, StringType):
            form = Form.TEXT
        if form is not None:
            parts.append(Part(column.name, column.dataType, form))
        else:
            left_out.append(f"{column.name} ({type_ or column.dataType.simpleString()})")
    return parts, left_out


def _where(*conditions: str) -> str:
    given = [f"({condition})" for condition in conditions if condition]
    return f" where {' and '.join(given)}" if given else ""
