"""Detects values that the lake cannot store exactly, for example:

- a decimal that has more than 38 digits, the maximum in Spark;
- a decimal without a declared scale, which the JDBC reader rounds to 18 digits after the point;
- a PostgreSQL time that is infinite, before the year 1, or too late for a 64-bit timestamp;
- a time in the ten days of 1582 that the Java calendar skips;
- a MySQL date whose month or day is zero, or an old MySQL time, which Java converts with a
  different calendar.

Before the loader reads a column that may contain such values, the database counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import types as t

from loader.errors import TableError

LATEST_TIME = "9999-12-31 23:59:59.999999"
"""The value that is loaded instead of `infinity`; in date columns, only its date."""
EARLIEST_TIME = "0001-01-01 00:00:00"
"""The value that is loaded instead of `-infinity`; in date columns, only its date."""
TIMESTAMP_OVERFLOW = "294247-01-01 00:00:00"
"""The start of the first year in which 64-bit timestamps overflow in some time zone."""

LOAD_AS_TEXT = (
    "Load the column as a string (column_types: {{name}: string}), or read the table through a "
    "view that excludes them"
)
"""The remedy for values that the lake can store only in a string column."""

Column = Mapping[str, "str | None"]
"""The database's description of a column (``DatabaseMetaData.getColumns``)."""

CHAR, DATE, TIME, TIMESTAMP = "1", "91", "92", "93"  # java.sql.Types
CHARS = (CHAR, "-15")  # char and nchar
BYTES = ("-2", "-3", "-4", "2004")
DISTINCT, ARRAY, BIT = "2001", "2003", "-7"
_DECIMALS = ("2", "3")
_FLOATS = ("6", "7", "8")
_MOST_DIGITS = 1000  # PostgreSQL's maximum; larger values mean that no precision is declared
JAVA_TYPES = {
    "date": DATE,
    "time": TIME,
    "timetz": TIME,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMP,
}
"""The JDBC type numbers of PostgreSQL's date and time types, keyed by name."""
TIMES = (TIME, "2013")  # without and with time zone
_UNDECLARED = (38, 18)  # Spark's default precision and scale


@dataclass(frozen=True)
class LossyValue:
    """A kind of value that a column may contain but that the lake cannot store exactly.

    In SQL, ``{}`` stands for the column.

    Attributes:
        wrong: an SQL condition that is true for these values. ``{rows}`` stands for `rows`.
        message: the description that follows "3 values of c" in warnings and errors.
        remedy: the remedy for the error; empty if the values cause only a warning.
        loaded: SQL that converts the column; empty if the column is not converted.
        cursors: whether cursor columns are also checked.
        replacements: pairs of an original value and the value that is loaded instead.
        ordinary: an SQL condition that is true for most values and false for every lossy value. If
            it is true for all values, no other check is necessary. May be empty.
        rows: SQL for the rows that the spec selects, for a FROM clause. It may contain braces.
    """

    index: int
    wrong: str
    message: str
    remedy: str = ""
    loaded: str = ""
    cursors: bool = True
    replacements: tuple[tuple[str, str], ...] = ()
    ordinary: str = ""
    rows: str = ""

    def condition(self, column: str) -> str:
        """Returns an SQL condition that is true for these values of a column."""
        parts = self.wrong.split("{rows}")
        return self.rows.join(part.replace("{}", column) for part in parts)

    def describe_loss(self, count: int, where: str, column: str) -> str:
        """Returns a warning about `count` values of this kind.

        Raises:
            TableError: if such values are errors, that is, if they have a remedy.
        """
        what = f"{count} values of {column} {self.message}"
        if self.remedy:
            remedy = self.remedy.replace("{name}", column)
            raise TableError(what, where=f"{where}, column {column}", remedy=remedy)
        return what


def find_rounded_decimals(
    schema: t.StructType, described: Mapping[str, Column], table: str
) -> list[LossyValue]:
    """Returns checks for numbers that Spark would round."""
    checks = []
    for index, column in enumerate(schema.fields):
        kind = column.dataType
        as_text = (
            f"Load them as strings, table_options.{table}.column_types: {{{column.name}: string}}"
        )
        if isinstance(kind, t.DecimalType):
            if not _fits_decimal(kind, described.get(column.name, {})):
                choice = f"{as_text}, or as a large enough decimal; or declare"
                checks.append(_find_rounded_values(index, kind, "{}", choice))
        elif isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.DecimalType):
            element = kind.elementType
            if (element.precision, element.scale) == _UNDECLARED:
                checks.append(
                    move_into_array(
                        _find_rounded_values(index, element, "value", f"{as_text}, or declare")
                    )
                )
    return checks


def _find_rounded_values(index: int, target: t.DecimalType, value: str, remedy: str) -> LossyValue:
    integer_digits = target.precision - target.scale
    limit = f"1{'0' * integer_digits}"
    # NaN equals its rounded value, but it is greater than every number, so the second condition
    # detects it.
    wrong = f"({value} <> round({value}, {target.scale}) or abs({value}) >= {limit})"
    message = f"do not fit {target.simpleString()}: they would be rounded"
    return LossyValue(index, wrong, message, f"{remedy} precision and scale in the source")


def move_into_array(check: LossyValue) -> LossyValue:
    """Returns a check that applies `check` to array elements, which its SQL must call `value`."""
    wrong = f"exists (select from unnest({{}}) as value where {check.wrong})"
    return LossyValue(check.index, wrong, check.message, check.remedy)


def refuse_in_key(check: LossyValue, rows: str) -> list[LossyValue]:
    """Returns checks that prevent different keys from becoming equal in the lake.

    Args:
        check: a check for a key column.
        rows: SQL for the rows that the spec selects, for a FROM clause. They are searched for keys
            that are equal to another key's replacement.
    """
    message = check.message.partition(":")[0]
    remedy = check.remedy or "Set another primary_key, or exclude these rows with a view"
    if not check.replacements:
        message += ", so that different keys would become equal"
        return [replace(check, message=message, remedy=remedy, loaded="", cursors=True)]
    both = [
        f"({{}} = '{value}' and exists (select from {{rows}} where {{}} = '{other}'))"
        for pair in check.replacements
        for value, other in (pair, pair[::-1])
    ]
    message += " or equal to the value that is loaded instead"
    message += ", so that different keys would become equal"
    rare = ", ".join(f"'{value}'" for pair in check.replacements for value in pair)
    usual = f"({{}} not in ({rare}))"
    return [
        check,
        LossyValue(
            check.index, f"({' or '.join(both)})", message, remedy, ordinary=usual, rows=rows
        ),
    ]


def replace_infinity(column: str) -> str:
    return (
        f"(case when {column} = 'infinity' then '{LATEST_TIME}' "
        f"when {column} = '-infinity' then '{EARLIEST_TIME}' else {column} end)"
    )


def find_postgresql_losses(
    index: int, kind: t.DataType, row: Column, binary: bool
) -> list[LossyValue]:
    """Returns the checks for a PostgreSQL column; see :meth:`Dialect.find_lossy_values`.

    Only time and array columns have checks.
    """
    if isinstance(kind, t.ArrayType):
        element_type = (row.get("TYPE_NAME") or "").removeprefix("_")
        deep = LossyValue(
            index, "array_ndims({}) > 1", "have more than one dimension", LOAD_AS_TEXT
        )
        if element_type not in ("date", "timestamp", "timestamptz"):
            return [deep]
        endless = LossyValue(
            index, "value in ('infinity', '-infinity')", "contain infinite times", LOAD_AS_TEXT
        )
        late = [_find_late_times(index, "value")] if element_type != "date" else []
        return [deep, *map(move_into_array, [endless, *late])]
    if jdbc_type(row) not in (DATE, TIMESTAMP):
        return []
    infinite = LossyValue(
        index,
        "{} in ('infinity', '-infinity')",
        f"are infinite: infinity is loaded as {LATEST_TIME}, -infinity as {EARLIEST_TIME}",
        loaded=replace_infinity("{}"),
        cursors=False,  # the cursor's parser rejects infinity
        replacements=(("infinity", LATEST_TIME), ("-infinity", EARLIEST_TIME)),
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
        checks = [infinite, replace(skipped, replacements=days), *misread]
        return [replace(check, ordinary=usual) for check in checks]
    before = f"({{}} < '{EARLIEST_TIME}' and {{}} <> '-infinity')"
    ancient = LossyValue(index, before, "lie before year 1, and would lose their era", LOAD_AS_TEXT)
    usual = f"({{}} >= '1582-10-15' and {{}} < '{TIMESTAMP_OVERFLOW}')"
    checks = [infinite, skipped, ancient, _find_late_times(index, "{}"), *misread]
    return [replace(check, ordinary=usual) for check in checks]


def _find_misread_times(index: int) -> LossyValue:
    """Returns the check for times that the PostgreSQL driver misreads in the binary format.

    In years such as 1300 and 101 BC, the driver inserts the leap day of the Julian calendar up to
    eleven days too early; in the earliest year, 46 days too early.
    """
    return LossyValue(
        index,
        "({} < '1400-03-02' and to_char({}, 'YYYYMMDDBC') ~ "
        "'^((0[1235679]|1[0134])00(02(1[789]|2.)|0301)AD|"
        "(?!(0[048]|[13][26]|2[048]|4[04])01)..01(01(1[4-9]|[23].)|02..|0301)BC)')",
        "are among the days that the driver may read as later ones: 17 February to 1 March of a "
        "year like 1300 or 1400, 14 January to 1 March of a year like 101 BC",
        'Set `properties: {binaryTransfer: "false"}` in the source, to read them unchanged',
    )


def _find_late_times(index: int, value: str) -> LossyValue:
    wrong = f"({value} >= '{TIMESTAMP_OVERFLOW}' and {value} <> 'infinity')"
    message = "lie after the year 294246, the last year of a timestamp"
    return LossyValue(index, wrong, message, LOAD_AS_TEXT)


def find_mysql_losses(index: int, row: Column) -> list[LossyValue]:
    """Returns the checks for a MariaDB or MySQL column. Only dates and times have checks."""
    kind = jdbc_type(row)
    if kind not in (DATE, TIMESTAMP) or (row.get("TYPE_NAME") or "").upper().startswith("YEAR"):
        return []
    none = LossyValue(
        index,
        "(month({}) = 0 or day({}) = 0)",
        "are not dates (their month or day is zero): they are loaded as null",
        loaded="(case when month({}) = 0 or day({}) = 0 then null else {} end)",
    )
    if kind == DATE:
        return [none]
    old = "({} < '1582-10-15' and month({}) > 0 and day({}) > 0)"
    message = (
        "lie before 15 October 1582: they are loaded up to ten days later or earlier, as Java "
        "converts such times by another calendar"
    )
    return [none, LossyValue(index, old, message)]


def jdbc_type(row: Column) -> str | None:
    """Returns the ``java.sql.Types`` number of a column's type; for a domain, of its base type."""
    distinct = row.get("DATA_TYPE") == DISTINCT
    return row.get("SOURCE_DATA_TYPE" if distinct else "DATA_TYPE")


def is_bits(row: Column) -> bool:
    """Returns whether a column is a string of several bits. A single bit is a boolean."""
    return jdbc_type(row) == BIT and int(row.get("COLUMN_SIZE") or 1) > 1


def has_odd_scale(row: Column) -> bool:
    """Returns whether a decimal has a negative scale or a scale above its precision."""
    try:
        size, scale = int(row.get("COLUMN_SIZE") or ""), int(row.get("DECIMAL_DIGITS") or 0)
    except ValueError:
        return False
    return jdbc_type(row) in _DECIMALS and (scale < 0 or scale > size > 0)


def has_many_texts(row: Column) -> bool:
    """Returns whether equal values may become different strings, such as 1.0 and 1.00."""
    kind = jdbc_type(row)
    if kind in _DECIMALS:
        try:
            return not 0 < int(row.get("COLUMN_SIZE") or "") <= _MOST_DIGITS
        except ValueError:
            return True
    return kind in _FLOATS or row.get("TYPE_NAME") in ("interval", "timetz")


def _fits_decimal(target: t.DecimalType, row: Column) -> bool:
    try:
        size, scale = int(row.get("COLUMN_SIZE") or ""), int(row.get("DECIMAL_DIGITS") or 0)
    except ValueError:
        return not row  # domain columns may lack a description
    integer_digits = target.precision - target.scale
    is_declared = size > 0 and scale >= 0
    return is_declared and scale <= target.scale and size - scale <= integer_digits
