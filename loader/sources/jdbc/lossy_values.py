"""Values that the lake cannot hold as they are: none is rounded or changed silently.

Spark's decimals have 38 digits. If the source declares no scale, 18 of them are after the point,
and JDBC readers round to that. PostgreSQL's times may be infinite, or lie before year 1 or beyond
what 64 bits of microseconds hold, or in the ten days of 1582 that Java's calendar lacks; MySQL's
dates may have a month or a day of zero, and Java counts its old times by another calendar. A column
that may hold such values is asked for them whenever it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import types as t

from loader.errors import TableError

FOREVER = "9999-12-31 23:59:59.999999"
"""`infinity` is loaded as this time; in a date column, as its day."""
EVER = "0001-01-01 00:00:00"
"""`-infinity` is loaded as this time; in a date column, as its day."""
BEYOND = "294247-01-01 00:00:00"
"""The first year that a timestamp of 64 bits does not hold in every zone."""

THROUGH = (
    "Load the column as text, column_types: {{name}: string}, or read the table through a view "
    "that leaves them out"
)
"""The remedy for values that no other column of the lake holds."""

Column = Mapping[str, "str | None"]
"""The database's description of a column (``DatabaseMetaData.getColumns``)."""

CHAR, DATE, TIME, TIMESTAMP = "1", "91", "92", "93"  # java.sql.Types
CHARS = (CHAR, "-15")  # of a database's own characters, and of any
BYTES = ("-2", "-3", "-4", "2004")
DISTINCT, ARRAY, BIT = "2001", "2003", "-7"
_DECIMALS = ("2", "3")
_FLOATS = ("6", "7", "8")
_MOST_DIGITS = 1000  # that PostgreSQL lets a numeric declare; without a limit it says more
JAVA_TYPES = {
    "date": DATE,
    "time": TIME,
    "timetz": TIME,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMP,
}
"""By PostgreSQL's names, the types of times: they hold what the lake cannot."""
TIMES = (TIME, "2013")  # without and with a time zone
_FREE = (38, 18)  # Spark's precision and scale for a number that declares neither


@dataclass(frozen=True)
class LossyValue:
    """Values that a column may hold, and the lake cannot.

    Attributes:
        index: the column's position.
        wrong: SQL that is true for such values; ``{}`` stands for the column.
        message: the text of a message about them, after "3 values of c".
        remedy: the remedy if there are any, as they are refused. Empty if they only warn.
        loaded: SQL for the column as it is loaded; empty if as it is.
        cursors: whether a cursor is asked for them, too.
        alike: values, and what each of them is loaded as.
        ordinary: SQL that is true for most values, and for none that the doubts of this column are
            about; empty if there is no such SQL. One look then tells that there are none.
    """

    index: int
    wrong: str
    message: str
    remedy: str = ""
    loaded: str = ""
    cursors: bool = True
    alike: tuple[tuple[str, str], ...] = ()
    ordinary: str = ""

    def condition(self, column: str) -> str:
        """Returns SQL that is true for such values."""
        return self.wrong.replace("{}", column)

    def describe_loss(self, count: int, where: str, column: str) -> str:
        """Returns the warning about so many values.

        Raises:
            TableError: if they are refused.
        """
        what = f"{count} values of {column} {self.message}"
        if self.remedy:
            remedy = self.remedy.replace("{name}", column)
            raise TableError(what, where=f"{where}, column {column}", remedy=remedy)
        return what


def find_rounded_decimals(
    schema: t.StructType, described: Mapping[str, Column], table: str
) -> list[LossyValue]:
    """Returns the columns with numbers that may be rounded.

    Args:
        schema: the columns, with the types that they are read as.
        described: the database's description of each column.
        table: the table's name in the spec.
    """
    found = []
    for index, column in enumerate(schema.fields):
        kind = column.dataType
        as_text = (
            f"Load them as text, table_options.{table}.column_types: {{{column.name}: string}}"
        )
        if isinstance(kind, t.DecimalType):
            if not _fits(kind, described.get(column.name, {})):
                choice = f"{as_text}, or as a decimal that holds them; or declare"
                found.append(_find_rounded_values(index, kind, "{}", choice))
        elif isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.DecimalType):
            element = kind.elementType
            if (element.precision, element.scale) == _FREE:
                found.append(
                    move_into_array(
                        _find_rounded_values(index, element, "value", f"{as_text}, or declare")
                    )
                )
    return found


def _find_rounded_values(index: int, holds: t.DecimalType, value: str, remedy: str) -> LossyValue:
    whole = holds.precision - holds.scale
    # NaN equals itself, but is above every number: the second comparison finds it.
    wrong = f"({value} <> round({value}, {holds.scale}) or abs({value}) >= 1{'0' * whole})"
    message = f"do not fit {holds.simpleString()}: they would be rounded"
    return LossyValue(index, wrong, message, f"{remedy} precision and scale in the source")


def move_into_array(doubt: LossyValue) -> LossyValue:
    """Returns the same doubt about the elements of an array, which its SQL calls `value`."""
    wrong = f"exists (select from unnest({{}}) as value where {doubt.wrong})"
    return LossyValue(doubt.index, wrong, doubt.message, doubt.remedy)


def refuse_in_key(doubt: LossyValue, relation: str) -> list[LossyValue]:
    """Returns the doubts about a column of the key, where different values may become one.

    Args:
        relation: the table in SQL. The database looks through it only if it finds a value that
            another one would be loaded as, or the other.
    """
    message = doubt.message.partition(":")[0]
    remedy = doubt.remedy or "Give the table another key, or leave them out by a view of it"
    if not doubt.alike:
        message += ", and keys that differ would become one"
        return [replace(doubt, message=message, remedy=remedy, loaded="", cursors=True)]
    both = [
        f"({{}} = '{value}' and exists (select from {relation} where {{}} = '{other}'))"
        for pair in doubt.alike
        for value, other in (pair, pair[::-1])
    ]
    message += " or what these are loaded as, and keys that differ would become one"
    rare = ", ".join(f"'{value}'" for pair in doubt.alike for value in pair)
    usual = f"({{}} not in ({rare}))"
    return [
        doubt,
        LossyValue(doubt.index, f"({' or '.join(both)})", message, remedy, ordinary=usual),
    ]


def replace_infinity(column: str) -> str:
    """Returns SQL for a time that may be infinite, as it is loaded."""
    return (
        f"(case when {column} = 'infinity' then '{FOREVER}' "
        f"when {column} = '-infinity' then '{EVER}' else {column} end)"
    )


def find_postgresql_losses(
    index: int, kind: t.DataType, row: Column, binary: bool
) -> list[LossyValue]:
    """Returns the doubts about a time or an array of PostgreSQL.

    Args:
        index, kind, row: the column's position, its type, and the database's description of it.
        binary: whether its values come in binary.
    """
    if isinstance(kind, t.ArrayType):
        of = (row.get("TYPE_NAME") or "").removeprefix("_")
        deep = LossyValue(index, "array_ndims({}) > 1", "have more than one dimension", THROUGH)
        if of not in ("date", "timestamp", "timestamptz"):
            return [deep]
        endless = LossyValue(
            index, "value in ('infinity', '-infinity')", "hold infinite times", THROUGH
        )
        late = [_find_late_times(index, "value")] if of != "date" else []
        return [deep, *map(move_into_array, [endless, *late])]
    if jdbc_type(row) not in (DATE, TIMESTAMP):
        return []
    infinite = LossyValue(
        index,
        "{} in ('infinity', '-infinity')",
        f"are infinite: infinity is loaded as {FOREVER}, -infinity as {EVER}",
        loaded=replace_infinity("{}"),
        cursors=False,  # as cursors, they are refused
        alike=(("infinity", FOREVER), ("-infinity", EVER)),
    )
    skipped = LossyValue(
        index,
        "({} < '1582-10-15' and {} >= '1582-10-05')",
        "lie in the ten days before 15 October 1582: they are loaded ten days later, as Java's "
        "calendar has no such days",
    )
    misread = [_find_misread_times(index)] if binary else []
    if jdbc_type(row) == DATE:
        usual = "({} >= '1582-10-15' and {} < 'infinity')"
        days = tuple((f"1582-10-{day:02}", f"1582-10-{day + 10}") for day in range(5, 15))
        found = [infinite, replace(skipped, alike=days), *misread]
        return [replace(doubt, ordinary=usual) for doubt in found]
    before = f"({{}} < '{EVER}' and {{}} <> '-infinity')"
    ancient = LossyValue(index, before, "lie before year 1, and would lose their era", THROUGH)
    usual = f"({{}} >= '1582-10-15' and {{}} < '{BEYOND}')"
    found = [infinite, skipped, ancient, _find_late_times(index, "{}"), *misread]
    return [replace(doubt, ordinary=usual) for doubt in found]


def _find_misread_times(index: int) -> LossyValue:
    """Returns the times that PostgreSQL's driver misreads in binary.

    In years like 1300, and 101 before Christ, it counts the leap day of Java's old calendar early:
    up to eleven days, and 46 in the oldest year.
    """
    return LossyValue(
        index,
        "({} < '1400-03-02' and to_char({}, 'YYYYMMDDBC') ~ "
        "'^((0[1235679]|1[0134])00(02(1[789]|2.)|0301)AD|"
        "(?!(0[048]|[13][26]|2[048]|4[04])01)..01(01(1[4-9]|[23].)|02..|0301)BC)')",
        "are among the days that the driver may read as later ones: 17 February to 1 March of a "
        "year like 1300 or 1400, 14 January to 1 March of a year like 101 BC",
        'Set `properties: {binaryTransfer: "false"}` in the source: then they are read as they are',
    )


def _find_late_times(index: int, value: str) -> LossyValue:
    wrong = f"({value} >= '{BEYOND}' and {value} <> 'infinity')"
    message = "lie after the year 294246, which a timestamp cannot hold"
    return LossyValue(index, wrong, message, THROUGH)


def find_mysql_losses(index: int, row: Column) -> list[LossyValue]:
    """Returns the doubts about a value of MariaDB or MySQL."""
    kind = jdbc_type(row)
    if kind not in (DATE, TIMESTAMP) or (row.get("TYPE_NAME") or "").upper().startswith("YEAR"):
        return []
    none = LossyValue(
        index,
        "(month({}) = 0 or day({}) = 0)",
        "are no dates (their month or day is zero): they are loaded as null",
        loaded="(case when month({}) = 0 or day({}) = 0 then null else {} end)",
    )
    if kind == DATE:
        return [none]
    old = "({} < '1582-10-15' and month({}) > 0 and day({}) > 0)"
    message = (
        "lie before 15 October 1582: they are loaded up to ten days later or earlier, as Java "
        "counts such times by another calendar"
    )
    return [none, LossyValue(index, old, message)]


def jdbc_type(row: Column) -> str | None:
    """Returns a column's type; that of a domain is its base type's."""
    distinct = row.get("DATA_TYPE") == DISTINCT
    return row.get("SOURCE_DATA_TYPE" if distinct else "DATA_TYPE")


def is_bits(row: Column) -> bool:
    """Returns whether a column holds several bits; one bit is a boolean."""
    return jdbc_type(row) == BIT and int(row.get("COLUMN_SIZE") or 1) > 1


def has_odd_scale(row: Column) -> bool:
    """Whether a decimal has a scale below zero, or one above its precision: Spark has none such."""
    try:
        size, scale = int(row.get("COLUMN_SIZE") or ""), int(row.get("DECIMAL_DIGITS") or 0)
    except ValueError:
        return False
    return jdbc_type(row) in _DECIMALS and (scale < 0 or scale > size > 0)


def has_many_texts(row: Column) -> bool:
    """Returns whether a value may have several texts: 1.0 is 1.00, a day is 24 hours, 0 is -0."""
    kind = jdbc_type(row)
    if kind in _DECIMALS:
        try:
            return not 0 < int(row.get("COLUMN_SIZE") or "") <= _MOST_DIGITS
        except ValueError:
            return True
    return kind in _FLOATS or row.get("TYPE_NAME") in ("interval", "timetz")


def _fits(holds: t.DecimalType, row: Column) -> bool:
    try:
        size, scale = int(row.get("COLUMN_SIZE") or ""), int(row.get("DECIMAL_DIGITS") or 0)
    except ValueError:
        return not row  # the column of a domain may be described differently
    declared = size > 0 and scale >= 0
    return declared and scale <= holds.scale and size - scale <= holds.precision - holds.scale
