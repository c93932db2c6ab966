"""Builds SQL for checksums and digests in PostgreSQL, MariaDB and MySQL.

`loader reconcile` compares a database's checksums with those that :mod:`loader.sources.checksum`
computes in Spark. `tests/reconcile/test_checksum.py` compares both implementations value by value.
A sync uses a digest to detect whether the rows of a window have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pyspark.sql import types as t

from loader.sources.checksum import BETWEEN, DIGITS, NULL, HashedColumn, TextFormat, text_format
from loader.sources.interface import Digest
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.mysql_dialect import MySQL
from loader.sources.jdbc.postgresql_dialect import PostgreSQL

_ARGUMENTS = 50  # PostgreSQL's functions take at most 100 arguments
_EXACT_EXTRACT = 14  # the first version of PostgreSQL whose `extract` returns a decimal
_MOST_DECIMALS = 30  # in MySQL
_NUMBERS = {TextFormat.INTEGER, TextFormat.DECIMAL}
_UNDECLARED = t.DecimalType(38, 18)
"""The type that a decimal without a declared scale has in Spark."""


class ConformedColumn(NamedTuple):
    """A column of a copy, with the same text as in the original if the values are equal.

    Attributes:
        part: the column, with the original's name.
        sql: SQL for the value.
        inexact: an SQL condition that is true if `sql` rounds the value; empty if it never does.
    """

    part: HashedColumn
    sql: str
    inexact: str = ""


class Checksum(ABC):
    """Builds SQL for checksums in one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def types(self, space: str, table: str) -> str:
        """Returns a query for the columns of a table.

        It selects the name of each column, the name and the kind of its type, and the type as the
        database's users write it.
        """

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
    def decimal(self, column: str, scale: int) -> str:
        """Returns SQL that rounds an integer or a decimal to a decimal with a scale."""

    def conform(
        self, original: HashedColumn, copied: HashedColumn, column: str
    ) -> ConformedColumn | None:
        """Returns a column of a copy in a form whose text can be compared with the original's.

        Returns None if equal values of the two types have different texts.

        Args:
            column: SQL for the value in the copy.
        """
        forms = {original.form, copied.form}
        if forms <= _NUMBERS and TextFormat.DECIMAL in forms:
            if original.type == copied.type != _UNDECLARED:
                return ConformedColumn(original, column)
            if original.scale > _MOST_DECIMALS:
                return None
            rounded = self.decimal(column, original.scale)
            part = HashedColumn(original.name, original.type, TextFormat.DECIMAL)
            return ConformedColumn(part, rounded, f"{column} <> {rounded}")
        if len(forms) == 1 or forms == {TextFormat.INTEGER, TextFormat.BOOLEAN}:
            return ConformedColumn(HashedColumn(original.name, copied.type, copied.form), column)
        return None

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
    """SQL for PostgreSQL 10 and later.

    Args:
        version: the major version.
    """

    def __init__(self, dialect: Dialect, version: int) -> None:
        super().__init__(dialect)
        self._has_exact_extract = version >= _EXACT_EXTRACT

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
                coalesce(base.typtype, own.typtype),
                pg_catalog.format_type(coalesce(base.oid, own.oid), null)
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
            return f"trunc(round({column}, {part.scale}) * 1{'0' * part.scale})::text"
        if part.form is TextFormat.BOOLEAN:
            return f"({column})::int::text"
        if part.form is TextFormat.DATE:
            days = f"({column} - date '1970-01-01')::text"
            return f"case when isfinite({column}) then {days} else ({column})::text end"
        if part.form is TextFormat.TIMESTAMP:
            if self._has_exact_extract:
                micros = f"(extract(epoch from {column}) * 1000000)::bigint"
            else:  # extract returns a floating-point number, which is exact for whole seconds
                seconds = f"extract(epoch from date_trunc('second', {column}))::bigint"
                fraction = f"extract(microseconds from {column})::bigint % 1000000"
                micros = f"{seconds} * 1000000 + {fraction}"
            return f"case when isfinite({column}) then ({micros})::text else ({column})::text end"
        if part.form is TextFormat.BINARY:
            return f"encode({column}, 'hex')"
        if part.form is TextFormat.TEXT:
            return f"char_length(({column})::text) || ':' || ({column})::text"
        return f"({column})::text"

    def decimal(self, column: str, scale: int) -> str:
        return f"round(({column})::numeric, {scale})"

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
            select column_name, lower(data_type), '', lower(data_type)
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

    def decimal(self, column: str, scale: int) -> str:
        return f"cast({column} as decimal(65, {scale}))"

    def hash(self, texts: Sequence[str]) -> str:
        parts = ", ".join(f"coalesce({text}, char({NULL} using utf8mb4))" for text in texts)
        return f"md5(concat_ws(char({BETWEEN} using utf8mb4), {parts}))"

    def number(self, md5: str) -> str:
        return f"cast(conv(substr({md5}, 1, {DIGITS}), 16, 10) as unsigned)"

    def total(self, number: str) -> str:
        return f"cast(sum({number}) as char)"


def choose_checksum(dialect: Dialect, connection: Connection) -> Checksum | None:
    """Returns the builder of checksum SQL for a database.

    Returns None if the database has no md5 function, or counts bytes instead of characters.
    """
    if isinstance(dialect, PostgreSQL):
        [(encoding,)] = connection.rows("select pg_catalog.current_setting('server_encoding')")
        return (
            None
            if encoding == "SQL_ASCII"
            else PostgreSQLChecksum(dialect, connection.major_version)
        )
    return MySQLChecksum(dialect) if isinstance(dialect, MySQL) else None


def _match_form(form: TextFormat | None, data_type: t.DataType) -> TextFormat | None:
    """Returns the format, or None if Spark uses another format for the type."""
    return form if form is text_format(data_type) else None


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
    """Returns a digest of rows, or None if computing it would be too expensive.

    Also returns None if a partition is a foreign table, whose rows are not part of the snapshot.

    Args:
        source: the table, or a subquery that selects its rows, for the FROM clause.
        columns: SQL for the stored value of each column.
        where: a WHERE clause; empty selects all rows.
        rows: the number of rows; None if unknown.
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
