"""The texts, hashes and sums of :mod:`loader.sources.checksum` in SQL: for PostgreSQL and MySQL.

`tests/reconcile/test_checksum.py` compares them with Spark's, value by value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pyspark.sql import types as t

from loader.sources.checksum import BETWEEN, DIGITS, NULL, Form, Part, spark_form
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.mysql import MySQL
from loader.sources.jdbc.postgres import PostgreSQL

_ARGUMENTS = 50  # PostgreSQL's functions take 100 arguments at most


class Checksum(ABC):
    """The SQL expressions; one class for each kind of database that has md5.

    Args:
        dialect: how the database quotes.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def types(self, space: str, table: str) -> str:
        """Returns SQL that lists a table's columns: name, the database's type name, its kind."""

    @abstractmethod
    def form(self, type_: str, kind: str, data_type: t.DataType) -> Form | None:
        """Returns the form of a column of that type; None if it cannot be compared."""

    @abstractmethod
    def text(self, part: Part, column: str) -> str:
        """Returns SQL for a column's text; null if the value is null.

        Args:
            column: SQL for the value.
        """

    @abstractmethod
    def hash(self, texts: Sequence[str]) -> str:
        """Returns SQL for the md5 of texts."""

    @abstractmethod
    def number(self, md5: str) -> str:
        """Returns SQL for the first 60 bits of an md5."""

    @abstractmethod
    def total(self, number: str) -> str:
        """Returns SQL for the sum of numbers, as text."""


class PostgreSQLChecksum(Checksum):
    """PostgreSQL 10 and later."""

    _FORMS: ClassVar[dict[str, Form]] = {
        **dict.fromkeys(("int2", "int4", "int8", "oid"), Form.INTEGER),
        **dict.fromkeys(("text", "varchar", "name", "uuid", "json", "jsonb", "citext"), Form.TEXT),
        **dict.fromkeys(("bpchar", "bit", "varbit"), Form.TEXT),
        "numeric": Form.DECIMAL,
        "bool": Form.BOOLEAN,
        "date": Form.DATE,
        "timestamp": Form.TIMESTAMP,
        "timestamptz": Form.TIMESTAMP,
        "time": Form.TEXT,
        "timetz": Form.TEXT,
        "bytea": Form.BINARY,
    }

    def types(self, space: str, table: str) -> str:
        # The values of a domain are those of its base type.
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

    def form(self, type_: str, kind: str, data_type: t.DataType) -> Form | None:
        found = Form.TEXT if kind == "e" else self._FORMS.get(type_)
        return _fitting(found, data_type)

    def text(self, part: Part, column: str) -> str:
        if part.form is Form.DECIMAL:
            return f"replace(round({column}, {part.scale})::text, '.', '')::numeric::text"
        if part.form is Form.BOOLEAN:
            return f"({column})::int::text"
        if part.form is Form.DATE:
            days = f"({column} - date '1970-01-01')::text"
            return f"case when isfinite({column}) then {days} else ({column})::text end"
        if part.form is Form.TIMESTAMP:
            # Takes whole seconds: versions before 14 extract floating point numbers.
            seconds = f"extract(epoch from date_trunc('second', {column}))::bigint"
            micros = f"{seconds} * 1000000 + extract(microseconds from {column})::bigint % 1000000"
            return f"case when isfinite({column}) then ({micros})::text else ({column})::text end"
        if part.form is Form.BINARY:
            return f"encode({column}, 'hex')"
        if part.form is Form.TEXT:
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
    """MariaDB and MySQL."""

    _FORMS: ClassVar[dict[str, Form]] = {
        **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit"), Form.INTEGER),
        **dict.fromkeys(
            ("varchar", "char", "tinytext", "text", "mediumtext", "longtext", "json"),
            Form.TEXT,
        ),
        **dict.fromkeys(
            ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), Form.BINARY
        ),
        **dict.fromkeys(("enum", "set", "uuid", "time"), Form.TEXT),
        "decimal": Form.DECIMAL,
        "date": Form.DATE,
        "datetime": Form.TIMESTAMP,
        "timestamp": Form.TIMESTAMP,
    }

    def types(self, space: str, table: str) -> str:
        return f"""
            select column_name, lower(data_type), ''
            from information_schema.columns
            where table_schema = {self.dialect.text(space)}
                and table_name = {self.dialect.text(table)}
            """

    def form(self, type_: str, kind: str, data_type: t.DataType) -> Form | None:
        found = self._FORMS.get(type_)
        if found is Form.INTEGER and isinstance(data_type, t.BooleanType):
            found = Form.BOOLEAN  # tinyint(1) or bit(1), if the driver reports them as booleans
        elif type_ == "bit" and isinstance(data_type, t.StringType):
            found = Form.TEXT
        elif found is Form.INTEGER and isinstance(data_type, t.DecimalType):
            found = Form.DECIMAL  # bigint unsigned
        return _fitting(found, data_type)

    def text(self, part: Part, column: str) -> str:
        if part.form is Form.DECIMAL:
            # Adding 0 removes the leading zeros of a `zerofill`.
            digits = f"replace(cast(round({column} + 0, {part.scale}) as char), '.', '')"
            return f"cast(cast({digits} as decimal(65, 0)) as char)"
        if part.form is Form.BOOLEAN:
            return f"cast({column} <> 0 as char)"
        if part.form is Form.DATE:
            return f"cast(datediff({column}, '1970-01-01') as char)"
        if part.form is Form.TIMESTAMP:
            start = "timestamp '1970-01-01 00:00:00'"
            return f"cast(timestampdiff(microsecond, {start}, {column}) as char)"
        if part.form is Form.BINARY:
            return f"lower(hex({column}))"
        if part.form is Form.TEXT:
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


def checksum(dialect: Dialect) -> Checksum | None:
    """Returns the expressions for a database; None if it has no md5."""
    if isinstance(dialect, PostgreSQL):
        return PostgreSQLChecksum(dialect)
    return MySQLChecksum(dialect) if isinstance(dialect, MySQL) else None


def _fitting(form: Form | None, data_type: t.DataType) -> Form | None:
    """Returns the form if it fits the type that Spark reads the column as, otherwise None."""
    return form if form is spark_form(data_type) else None
