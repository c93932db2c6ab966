"""Builds SQL for checksums and digests in PostgreSQL, MariaDB and MySQL.

`loader reconcile` compares a database's checksums with those that :mod:`loader.sources.checksum`
computes in Spark. `tests/reconcile/test_checksum.py` compares both implementations value by value.
A sync uses a digest to detect whether the rows of a window have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.types import StringType

from loader.sources.checksum import BETWEEN, DIGITS, NULL, HashedColumn, TextFormat, text_format
from loader.sources.contents import BUCKET, CHECKSUM, COUNT, KEY, WANTED, Contents, KeySelection
from loader.sources.interface import Digest
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.postgresql.continuity import XMIN
from loader.sources.jdbc.postgresql_dialect import PostgreSQL

if TYPE_CHECKING:
    from loader.sources.interface import SourceTable
    from loader.sources.jdbc.connections import Connection
    from loader.sources.jdbc.metadata import NativeColumns

_ARGUMENTS = 50  # PostgreSQL's functions take at most 100 arguments


class Checksum(ABC):
    """Builds SQL for checksums in one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def types(self, space: str, table: str) -> str:
        """Returns a query for the name, type name and kind of type of a table's columns."""

    @abstractmethod
    def form(self, type_: str, kind: str, data_type: t.DataType) -> TextFormat | None:
        """Returns the text format of a column, or None if checksums must exclude the column.

        Args:
            type_, kind: the results of the query of :meth:`types`.
        """

    @abstractmethod
    def text(self, part: HashedColumn, column: str) -> str:
        """Returns SQL that formats the value of an SQL expression as a string; null stays null."""

    @abstractmethod
    def hash(self, texts: Sequence[str]) -> str:
        """Returns SQL for the md5 of several strings."""

    @abstractmethod
    def number(self, md5: str) -> str:
        """Returns SQL for the first 60 bits of an md5."""

    @abstractmethod
    def total(self, number: str) -> str:
        """Returns SQL for the sum of numbers as a string."""


class PostgreSQLChecksum(Checksum):
    """SQL for PostgreSQL 10 and later."""

    _FORMS: ClassVar[dict[str, TextFormat]] = {
        **dict.fromkeys(("int2", "int4", "int8", "oid"), TextFormat.INTEGER),
        **dict.fromkeys(
            ("text", "varchar", "name", "uuid", "json", "jsonb", "citext"), TextFormat.TEXT
        ),
        **dict.fromkeys(("bpchar", "bit", "varbit"), TextFormat.TEXT),
        "numeric": TextFormat.DECIMAL,
        "bool": TextFormat.BOOLEAN,
        "date": TextFormat.DATE,
        "timestamp": TextFormat.TIMESTAMP,
        "timestamptz": TextFormat.TIMESTAMP,
        "time": TextFormat.TEXT,
        "timetz": TextFormat.TEXT,
        "bytea": TextFormat.BINARY,
    }

    def types(self, space: str, table: str) -> str:
        # A domain is treated as its base type.
        return f"""
            select
                a.attname,
                coalesce(base.typname, own.typname),
                coalesce(base.typtype, own.typtype)
            from pg_catalog.pg_attribute as a
            join pg_catalog.pg_class as c on c.oid = a.attrelid
            join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
            join pg_catalog.pg_type as own on own.oid = a.atttypid
            left join pg_catalog.pg_type as base on base.oid = own.typbasetype
            where n.nspname = {self.dialect.text(space)}
                and c.relname = {self.dialect.text(table)}
                and a.attnum > 0
                and not a.attisdropped
            """

    def form(self, type_: str, kind: str, data_type: t.DataType) -> TextFormat | None:
        form = TextFormat.TEXT if kind == "e" else self._FORMS.get(type_)  # "e": an enum
        return _match_form(form, data_type)

    def text(self, part: HashedColumn, column: str) -> str:
        if part.form is TextFormat.DECIMAL:
            return f"replace(round({column}, {part.scale})::text, '.', '')::numeric::text"
        if part.form is TextFormat.BOOLEAN:
            return f"({column})::int::text"
        if part.form is TextFormat.DATE:
            days = f"({column} - date '1970-01-01')::text"
            return f"case when isfinite({column}) then {days} else ({column})::text end"
        if part.form is TextFormat.TIMESTAMP:
            # Before version 14, extract returns a floating-point number, so only whole seconds are
            # cast.
            seconds = f"extract(epoch from date_trunc('second', {column}))::bigint"
            micros = f"{seconds} * 1000000 + extract(microseconds from {column})::bigint % 1000000"
            return f"case when isfinite({column}) then ({micros})::text else ({column})::text end"
        if part.form is TextFormat.BINARY:
            return f"encode({column}, 'hex')"
        if part.form is TextFormat.TEXT:
            return f"char_length(({column})::text) || ':' || ({column})::text"
        return f"({column})::text"

    def hash(self, texts: Sequence[str]) -> str:
        parts = [f"coalesce({text}, chr({NULL}))" for text in texts]
        while len(parts) > 1 or not parts[0].startswith("concat_ws"):
            parts = [
                f"concat_ws(chr({BETWEEN}), {', '.join(parts[i : i + _ARGUMENTS])})"
                for i in range(0, len(parts), _ARGUMENTS)
            ]
        return f"md5(convert_to({parts[0]}, 'UTF8'))"

    def number(self, md5: str) -> str:
        return f"('x' || substr({md5}, 1, {DIGITS}))::bit({DIGITS * 4})::bigint"

    def total(self, number: str) -> str:
        return f"sum({number})::text"


class MySQLChecksum(Checksum):
    _FORMS: ClassVar[dict[str, TextFormat]] = {
        **dict.fromkeys(
            ("tinyint", "smallint", "mediumint", "int", "bigint", "bit"), TextFormat.INTEGER
        ),
        **dict.fromkeys(
            ("varchar", "char", "tinytext", "text", "mediumtext", "longtext", "json"),
            TextFormat.TEXT,
        ),
        **dict.fromkeys(
            ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), TextFormat.BINARY
        ),
        **dict.fromkeys(("enum", "set", "uuid", "time"), TextFormat.TEXT),
        "decimal": TextFormat.DECIMAL,
        "date": TextFormat.DATE,
        "datetime": TextFormat.TIMESTAMP,
        "timestamp": TextFormat.TIMESTAMP,
    }

    def types(self, space: str, table: str) -> str:
        return f"""
            select column_name, lower(data_type), ''
            from information_schema.columns
            where table_schema = {self.dialect.text(space)}
                and table_name = {self.dialect.text(table)}
            """

    def form(self, type_: str, kind: str, data_type: t.DataType) -> TextFormat | None:
        form = self._FORMS.get(type_)
        if form is TextFormat.INTEGER and isinstance(data_type, t.BooleanType):
            form = TextFormat.BOOLEAN  # the driver reports tinyint(1) and bit(1) as boolean
        elif type_ == "bit" and isinstance(data_type, t.StringType):
            form = TextFormat.TEXT
        elif form is TextFormat.INTEGER and isinstance(data_type, t.DecimalType):
            form = TextFormat.DECIMAL  # bigint unsigned
        return _match_form(form, data_type)

    def text(self, part: HashedColumn, column: str) -> str:
        if part.form is TextFormat.DECIMAL:
            # Adding 0 removes the leading zeros of a `zerofill`.
            digits = f"replace(cast(round({column} + 0, {part.scale}) as char), '.', '')"
            return f"cast(cast({digits} as decimal(65, 0)) as char)"
        if part.form is TextFormat.BOOLEAN:
            return f"cast({column} <> 0 as char)"
        if part.form is TextFormat.DATE:
            return f"cast(datediff({column}, '1970-01-01') as char)"
        if part.form is TextFormat.TIMESTAMP:
            start = "timestamp '1970-01-01 00:00:00'"
            return f"cast(timestampdiff(microsecond, {start}, {column}) as char)"
        if part.form is TextFormat.BINARY:
            return f"lower(hex({column}))"
        if part.form is TextFormat.TEXT:
            value = f"convert({column} using utf8mb4)"
            return f"concat(char_length({value}), ':', {value})"
        return f"cast({column} + 0 as char)"

    def hash(self, texts: Sequence[str]) -> str:
        parts = ", ".join(f"coalesce({text}, char({NULL} using utf8mb4))" for text in texts)
        return f"md5(concat_ws(char({BETWEEN} using utf8mb4), {parts}))"

    def number(self, md5: str) -> str:
        return f"cast(conv(substr({md5}, 1, {DIGITS}), 16, 10) as unsigned)"

    def total(self, number: str) -> str:
        return f"cast(sum({number}) as char)"


def choose_checksum(dialect: Dialect) -> Checksum | None:
    """Returns the builder for a kind of database, or None if the database has no md5 function."""
    if isinstance(dialect, PostgreSQL):
        return PostgreSQLChecksum(dialect)
    return MySQLChecksum(dialect) if isinstance(dialect, MySQL) else None


def _match_form(form: TextFormat | None, data_type: t.DataType) -> TextFormat | None:
    """Returns the format, or None if Spark uses another format for the type."""
    return form if form is text_format(data_type) else None


Query = Callable[[str], DataFrame]
Read = Callable[[str, str], DataFrame]
Judge = Callable[[str], object]


class JdbcContents(Contents):
    """The contents of a table with unique keys in PostgreSQL, MariaDB or MySQL.

    The database computes the sums and hashes, and sends rows only from buckets that differ.

    Args:
        relation: the table or a subquery of its rows, for the FROM clause.
        wanted: an SQL condition for the rows that the spec loads; empty if it loads all rows.
        columns: SQL for each column, keyed by its name in Spark.
        parts: the columns that a row's checksum includes.
        query: runs a query in Spark.
        read: reads the rows that match a WHERE clause. Adds a column KEY for an SQL expression.
        judge: raises a TableError if rows that match a WHERE clause have values that the lake
            cannot store exactly.
    """

    def __init__(
        self,
        checksum: Checksum,
        relation: str,
        wanted: str,
        columns: Mapping[str, str],
        key: Sequence[HashedColumn],
        parts: Sequence[HashedColumn],
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

    def sums(self, share: KeySelection, parts: int) -> DataFrame:
        number = self._sql.number(self._hash(self.checksum_columns))
        numbered = (
            f"select {self._bucket(share.of * parts)} as b, {number} as n "
            f"from {self._relation}{_join_conditions(self._holds(share), self._wanted)}"
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

    def hashes(self, share: KeySelection) -> DataFrame:
        is_wanted = f"case when {self._wanted} then 1 else 0 end" if self._wanted else "1"
        hashed = (
            f"select {self._hash(self.key)} as k, "
            f"{self._sql.number(self._hash(self.checksum_columns))} as n, "
            f"{is_wanted} as w from {self._relation}{_join_conditions(self._holds(share))}"
        )
        return self._query(hashed).select(
            f.col("k").alias(KEY),
            f.col("n").cast("bigint").alias(CHECKSUM),
            (f.col("w") == 1).alias(WANTED),
        )

    def rows(self, share: KeySelection) -> DataFrame:
        return self._read(_join_conditions(self._holds(share)), self._hash(self.key))

    def check_storable(self, share: KeySelection) -> None:
        self._judge(_join_conditions(self._holds(share), self._wanted))

    def _hash(self, parts: Sequence[HashedColumn]) -> str:
        return self._sql.hash([self._sql.text(part, self._columns[part.name]) for part in parts])

    def _bucket(self, of: int) -> str:
        return f"mod({self._sql.number(self._hash(self.key))}, {of})"

    def _holds(self, share: KeySelection) -> str:
        if share.keys is not None:
            # Hexadecimal digits need no escaping.
            return f"{self._hash(self.key)} in ({', '.join(map(repr, share.keys))})"
        if share.buckets is None:
            return ""
        return f"{self._bucket(share.of)} in ({', '.join(map(str, share.buckets))})"


def list_comparable(
    checksum: Checksum, connection: Connection, table: SourceTable
) -> tuple[list[HashedColumn], list[str]]:
    """Returns the columns that checksums include, and the excluded columns as ``name (type)``."""
    native: NativeColumns = table.ref.native
    space = (native.catalog if checksum.dialect.uses_catalogs else native.schema) or ""
    types = {
        name: (type_ or "", kind or "")
        for name, type_, kind in connection.rows(checksum.types(space, native.table))
    }
    parts, left_out = [], []
    for index, (name, column) in enumerate(zip(native.columns, table.schema.fields, strict=True)):
        if native.has_xmin and name == XMIN:
            continue  # a row's transaction id is not part of its contents
        type_, kind = types.get(name, ("", ""))
        form = checksum.form(type_, kind, column.dataType)
        if index in native.as_texts and isinstance(column.dataType, StringType):
            form = TextFormat.TEXT
        if form is not None:
            parts.append(HashedColumn(column.name, column.dataType, form))
        else:
            left_out.append(f"{column.name} ({type_ or column.dataType.simpleString()})")
    return parts, left_out


def _join_conditions(*conditions: str) -> str:
    nonempty = [f"({condition})" for condition in conditions if condition]
    return f" where {' and '.join(nonempty)}" if nonempty else ""


MAX_DIGEST_ROWS = 1_000_000
"""The maximum number of rows in a digest. Their hashes need 32 MB in the database's memory."""

_MAX_SCAN_BYTES = 64 * 1024 * 1024
"""The maximum size of a table that is scanned for a digest. Larger tables need an index."""


def read_digest(
    connection: Connection,
    dialect: Dialect,
    relation: str,
    source: str,
    columns: Sequence[str],
    where: str,
    rows: int | None,
    indexed: bool,
) -> Digest | None:
    """Returns a digest of rows, or None if it is too expensive.

    Also returns None if a partition is a foreign table, whose rows are not part of the snapshot.

    Args:
        source: the table or a subquery of its rows, for the FROM clause.
        columns: SQL for the stored value of each column.
        indexed: whether the rows can be read with an index.
    """
    allowed = "" if indexed else f" and size <= {_MAX_SCAN_BYTES}"
    counted = f"(select count(*) from {source}{where})" if rows is None else str(rows)
    # A row that is cast to text distinguishes null from an empty string, and delimits the columns.
    hashed = f"select md5(row({', '.join(columns)})::text) as hash from {source}{where}"
    # `offset 0` prevents the planner from merging the subqueries, so the rows are counted and
    # hashed only if the conditions hold. With a `limit`, the planner might scan the table instead
    # of using the index.
    [(count, text)] = connection.text_rows(
        f"""
        select
            rows,
            case when rows <= {MAX_DIGEST_ROWS} then (
                select count(*) || ' ' || encode(
                    sha256(convert_to(coalesce(string_agg(hash, '' order by hash), ''), 'UTF8')),
                    'hex'
                )
                from ({hashed}) as few
            ) end
        from (
            select case when foreign_parts = 0{allowed} then {counted} end as rows
            from ({_select_parts(dialect.text(relation))}) as parts
            offset 0
        ) as found
        """
    )
    if count is None or text is None:
        return None
    number, _, digest = text.partition(" ")
    return Digest(int(number), digest)


def _select_parts(relation: str) -> str:
    """Returns SQL for the number of a table's foreign partitions and its size in bytes."""
    return f"""
        with recursive parts (oid) as (
            select {relation}::regclass::oid
            union all
            select i.inhrelid
            from pg_catalog.pg_inherits as i
            join parts as p on p.oid = i.inhparent
        )
        select
            count(*) filter (where c.relkind = 'f') as foreign_parts,
            sum(pg_catalog.pg_relation_size(c.oid)) as size
        from parts as p
        join pg_catalog.pg_class as c on c.oid = p.oid
        """
