"""Values that the lake cannot hold as they are: none is rounded or changed silently.

Spark's decimals have 38 digits. If the source declares no scale, 18 of them are after the point,
and JDBC readers round to that. PostgreSQL's times may be infinite; Spark has no such times. A time
of day passes through Java's `Time`, which has no fractions of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as t

from loader.errors import TableError

FOREVER = "9999-12-31 23:59:59.999999"
"""`infinity` is loaded as this time; in a date column, as its day."""
EVER = "0001-01-01 00:00:00"
"""`-infinity` is loaded as this time; in a date column, as its day."""

_FREE = (38, 18)  # Spark's precision and scale for a number that declares neither
_DISTINCT, _DATE, _TIME, _TIMESTAMP = "2001", "91", "92", "93"  # java.sql.Types


@dataclass(frozen=True)
class Doubt:
    """A column that may hold such values.

    Attributes:
        index: its position.
        holds: the decimal type that it is read as; None if it is a time that may be infinite.
        array: whether it holds arrays of such values.
    """

    index: int
    holds: t.DecimalType | None = None
    array: bool = False

    def condition(self, column: str) -> str:
        """Returns SQL that is true for such values."""
        if self.holds is None:
            return f"{column} in ('infinity', '-infinity')"
        value = "value" if self.array else column
        whole = self.holds.precision - self.holds.scale
        # NaN equals itself, but is above every number: the second comparison finds it.
        wrong = f"({value} <> round({value}, {self.holds.scale}) or abs({value}) >= 1{'0' * whole})"
        return (
            f"exists (select from unnest({column}) as value where {wrong})" if self.array else wrong
        )

    def refused(self, count: int, where: str, table: str, column: str) -> TableError:
        """Returns the error for a table that has such values."""
        assert self.holds is not None
        choice = (
            f"Choose the type to load them as, table_options.{table}.column_types: "
            f'{{{column}: string}}, or "decimal(38, 30)"; or declare'
        )
        return TableError(
            f"{count} values of {column} do not fit {self.holds.simpleString()}: they would be "
            "rounded",
            where=f"{where}, column {column}",
            remedy=f"{'Declare' if self.array else choice} precision and scale in the source",
        )

    def note(self, count: int, column: str) -> str:
        """Returns the warning about a table that has such values."""
        return (
            f"{count} values of {column} are infinite: infinity is loaded as {FOREVER}, "
            f"-infinity as {EVER}"
        )


def finite(column: str) -> str:
    """Returns SQL for a time that may be infinite, as it is loaded."""
    return (
        f"(case when {column} = 'infinity' then '{FOREVER}' "
        f"when {column} = '-infinity' then '{EVER}' else {column} end)"
    )


def doubts(
    schema: t.StructType, told: Mapping[str, Mapping[str, str | None]], infinite: bool
) -> tuple[Doubt, ...]:
    """Returns the columns of a table that may hold such values.

    Args:
        schema: the columns, with the types that they are read as.
        told: the database's description of each column (``DatabaseMetaData.getColumns``).
        infinite: whether the database has infinite times.
    """
    found = []
    for index, column in enumerate(schema.fields):
        row = told.get(column.name, {})
        if isinstance(column.dataType, t.DecimalType):
            if not _fits(column.dataType, row):
                found.append(Doubt(index, column.dataType))
        elif isinstance(column.dataType, t.ArrayType):
            element = column.dataType.elementType
            if isinstance(element, t.DecimalType) and (element.precision, element.scale) == _FREE:
                found.append(Doubt(index, element, array=True))
        elif infinite and _jdbc_type(row) in (_DATE, _TIMESTAMP):
            found.append(Doubt(index))
    return tuple(found)


def clocks(schema: t.StructType, told: Mapping[str, Mapping[str, str | None]]) -> tuple[int, ...]:
    """Returns the positions of the columns that are times of day."""
    names = enumerate(schema.names)
    return tuple(i for i, name in names if _jdbc_type(told.get(name, {})) == _TIME)


def _jdbc_type(row: Mapping[str, str | None]) -> str | None:
    """Returns a column's type; that of a domain is its base type's."""
    distinct = row.get("DATA_TYPE") == _DISTINCT
    return row.get("SOURCE_DATA_TYPE" if distinct else "DATA_TYPE")


def _fits(holds: t.DecimalType, row: Mapping[str, str | None]) -> bool:
    try:
        size, scale = int(row.get("COLUMN_SIZE") or ""), int(row.get("DECIMAL_DIGITS") or 0)
    except ValueError:
        return not row  # the column of a domain may be described differently
    declared = size > 0 and scale >= 0
    return declared and scale <= holds.scale and size - scale <= holds.precision - holds.scale
