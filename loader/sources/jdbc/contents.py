"""Reads and compares the contents of a table whose database computes checksums."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from loader.rows.cursor import Cursor, CursorType
from loader.sources.checksum import HashedColumn, TextFormat
from loader.sources.contents import BUCKET, CHECKSUM, COUNT, KEY, WANTED, Contents, KeySelection
from loader.sources.jdbc.checksum_sql import Checksum
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.postgresql.continuity import XMIN

if TYPE_CHECKING:
    from loader.sources.interface import SourceTable
    from loader.sources.jdbc.metadata import NativeColumns

Query = Callable[[str], DataFrame]
Read = Callable[[str, Mapping[str, str]], DataFrame]
Judge = Callable[[str], object]


@dataclass(eq=False)
class JdbcContents(Contents):
    """The contents of a table in PostgreSQL, MariaDB or MySQL whose keys are unique.

    The database computes the sums and hashes. It sends rows only from buckets that differ.

    Attributes:
        sql: the builder of the SQL for checksums.
        relation: the table, or a subquery that selects its rows, for the FROM clause.
        wanted: an SQL condition that selects the rows that the spec loads; empty if it loads all
            rows.
        columns: SQL for each column, keyed by its name in Spark.
        query: a function that runs a query in Spark.
        read: a function that reads the rows that match a WHERE clause. It adds columns for SQL
            expressions, keyed by name.
        judge: a function that raises a TableError if rows that match a WHERE clause have values
            that the lake cannot store exactly.
        inexact: an SQL condition that is true for rows whose values `columns` rounds. Their
            checksum is -1. Empty if there are no such rows.
    """

    sql: Checksum
    relation: str
    wanted: str
    columns: Mapping[str, str]
    query: Query
    read: Read
    judge: Judge
    inexact: str = ""

    def conform(self, original: Contents, names: Mapping[str, str]) -> JdbcContents | None:
        """Returns these rows with checksums that can be compared with those of another table.

        Returns None if a column's types in the two tables are such that only Spark can compare the
        values.

        Args:
            original: the other table's contents.
            names: maps the other table's columns to the columns of this table.
        """
        own = {part.name: part for part in self.checksum_columns}
        found = {}
        for part in original.checksum_columns:
            copied = own.get(names[part.name])
            column = copied and self.sql.conform(part, copied, self.columns[copied.name])
            if not column:
                return None
            found[part.name] = column
        return replace(
            self,
            key=tuple(found[part.name].part for part in original.key),
            checksum_columns=tuple(column.part for column in found.values()),
            left_out=(),
            columns={name: column.sql for name, column in found.items()},
            inexact=" or ".join(filter(None, (column.inexact for column in found.values()))),
        )

    def count(self) -> int:
        """Counts the rows that the spec selects."""
        [row] = self.query(
            f"select count(*) as c from {self.relation}{_join_conditions(self.wanted)}"
        ).collect()
        return int(row["c"])

    def highest(self, name: str, until: dt.datetime) -> DataFrame | None:
        """Returns the highest value of a column, in one row. Only for times and integers.

        Returns None for other types.

        Args:
            until: a time in UTC. If the column has times, later times are ignored.
        """
        [part] = [part for part in self.checksum_columns if part.name == name]
        type_, column = CursorType.of(part.type), self.columns[name]
        if type_ is None or not (type_.is_time or part.form is TextFormat.INTEGER):
            return None
        where = ""
        if type_.is_time:
            limit = str(until.date() if type_ is CursorType.DATE else until)
            where = f"{column} <= {self.sql.dialect.literal(Cursor.parse(limit, type_))}"
        text = self.sql.text(part, f"max({column})")
        sql = f"select {text} as m from {self.relation}{_join_conditions(where)}"
        value = f.col("m").cast("bigint")
        if part.form is TextFormat.TIMESTAMP:
            value = f.timestamp_micros(value)
        elif part.form is TextFormat.DATE:
            value = f.date_from_unix_date(value.cast("int"))
        return self.query(sql).select(value)

    def sums(self, share: KeySelection, parts: int) -> DataFrame:
        numbered = (
            f"select {self._bucket(share.of * parts)} as b, {self._number()} as n "
            f"from {self.relation}{_join_conditions(self._holds(share), self.wanted)}"
        )
        summed = (
            f"select b, count(*) as c, {self.sql.total('n')} as t "
            f"from ({numbered}) numbered group by b"
        )
        return self.query(summed).select(
            f.col("b").cast("bigint").alias(BUCKET),
            f.col("c").cast("bigint").alias(COUNT),
            f.col("t").cast("string").alias(CHECKSUM),
        )

    def hashes(self, share: KeySelection) -> DataFrame:
        is_wanted = f"case when {self.wanted} then 1 else 0 end" if self.wanted else "1"
        hashed = (
            f"select {self._hash(self.key)} as k, "
            f"{self._number()} as n, "
            f"{is_wanted} as w from {self.relation}{_join_conditions(self._holds(share))}"
        )
        return self.query(hashed).select(
            f.col("k").alias(KEY),
            f.col("n").cast("bigint").alias(CHECKSUM),
            (f.col("w") == 1).alias(WANTED),
        )

    def rows(self, share: KeySelection) -> DataFrame:
        return self.read(_join_conditions(self._holds(share)), {KEY: self._hash(self.key)})

    def hashed_rows(self, share: KeySelection) -> DataFrame:
        added = {KEY: self._hash(self.key), CHECKSUM: self._number()}
        rows = self.read(_join_conditions(self._holds(share)), added)
        return rows.withColumn(CHECKSUM, f.col(CHECKSUM).cast("bigint"))

    def check_storable(self, share: KeySelection) -> None:
        self.judge(_join_conditions(self._holds(share), self.wanted))

    def _hash(self, parts: Sequence[HashedColumn]) -> str:
        return self.sql.hash([self.sql.text(part, self.columns[part.name]) for part in parts])

    def _number(self) -> str:
        """Returns SQL for the checksum of a row."""
        number = self.sql.number(self._hash(self.checksum_columns))
        return f"case when {self.inexact} then -1 else {number} end" if self.inexact else number

    def _bucket(self, of: int) -> str:
        return f"mod({self.sql.number(self._hash(self.key))}, {of})"

    def _holds(self, share: KeySelection) -> str:
        if share.keys is not None:
            # The hashes consist of hexadecimal digits, so they need no escaping.
            return f"{self._hash(self.key)} in ({', '.join(map(repr, share.keys))})"
        if share.buckets is None:
            return ""
        return f"{self._bucket(share.of)} in ({', '.join(map(str, share.buckets))})"


def list_comparable(
    checksum: Checksum, connection: Connection, table: SourceTable
) -> tuple[list[HashedColumn], list[str]]:
    """Returns the columns that checksums include, and the excluded columns as ``name (type)``.

    Args:
        connection: the connection that is used to read the columns' types.
    """
    native: NativeColumns = table.ref.native
    space = (native.catalog if checksum.dialect.uses_catalogs else native.schema) or ""
    types = {
        name: (type_ or "", kind or "", shown or "")
        for name, type_, kind, shown in connection.rows(checksum.types(space, native.table))
    }
    parts, left_out = [], []
    for index, (name, column) in enumerate(zip(native.columns, table.schema.fields, strict=True)):
        if native.has_xmin and name == XMIN:
            continue  # a row's transaction id is not part of its contents
        type_, kind, shown = types.get(name, ("", "", ""))
        form = checksum.form(type_, kind, column.dataType)
        if index in native.as_texts and isinstance(column.dataType, StringType):
            form = TextFormat.TEXT
        if form is not None:
            parts.append(HashedColumn(column.name, column.dataType, form, type_))
        else:
            left_out.append(f"{column.name} ({shown or column.dataType.simpleString()})")
    return parts, left_out


def _join_conditions(*conditions: str) -> str:
    nonempty = [f"({condition})" for condition in conditions if condition]
    return f" where {' and '.join(nonempty)}" if nonempty else ""
