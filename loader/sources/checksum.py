"""Formats rows as strings, so that a database and Spark compute the same md5 hashes.

The formats are:

- integers and booleans: digits;
- decimals: the digits of the unscaled value;
- dates: days since 1970;
- times: microseconds since 1970;
- bytes: hexadecimal digits;
- strings: the length, a colon and the string;
- null: the control character 1.

The formatted values of a row are joined with the control character 31. A row's checksum is the
first 60 bits of the md5 of the joined string. A bucket's checksum is the sum of its rows'
checksums. A key's hash is the full md5 of the key's formatted values, so that SQL can select a key
of any type by its hash. The first 60 bits of the hash determine the key's bucket.

Databases and Spark format floating-point numbers differently, so checksums that a database computes
exclude floating-point columns. They also exclude columns whose types have no text format.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.rows.version_order import quote_name

DIGITS = 15
"""The number of hexadecimal md5 digits that are used. Their 60 bits fit in a signed bigint."""

NULL, BETWEEN = 1, 31
"""The control characters for a null and for the separator between values."""


class TextFormat(enum.Enum):
    INTEGER = "integer"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    BINARY = "binary"
    OTHER = "other"  # Spark's format, which no database reproduces


@dataclass(frozen=True)
class HashedColumn:
    """A column to compare: its name and type in Spark, and its text format.

    Attributes:
        stored: the database's name for the column's type; empty if there is no database.
    """

    name: str
    type: t.DataType
    form: TextFormat
    stored: str = ""

    @property
    def scale(self) -> int:
        """The number of digits after the decimal point; 0 for types other than decimal."""
        return self.type.scale if isinstance(self.type, t.DecimalType) else 0


def text_format(data_type: t.DataType) -> TextFormat:
    if isinstance(data_type, t.IntegralType):
        return TextFormat.INTEGER
    for kind, form in _FORMS:
        if isinstance(data_type, kind):
            return form
    return TextFormat.OTHER


_FORMS: tuple[tuple[type[t.DataType], TextFormat], ...] = (
    (t.DecimalType, TextFormat.DECIMAL),
    (t.BooleanType, TextFormat.BOOLEAN),
    (t.DateType, TextFormat.DATE),
    (t.TimestampType, TextFormat.TIMESTAMP),
    (t.TimestampNTZType, TextFormat.TIMESTAMP),
    (t.StringType, TextFormat.TEXT),
    (t.BinaryType, TextFormat.BINARY),
)


# By default, JSON has only milliseconds.
_TIME_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def spark_text(part: HashedColumn) -> Column:
    """Returns an expression that formats a column's values as strings."""
    value = f.col(quote_name(part.name))
    if part.form is TextFormat.DECIMAL:
        # Spark formats a small decimal as 1.2E-7; the digits before the E are its unscaled value.
        digits = f.translate(f.substring_index(value.cast("string"), "E", 1), ".", "")
        text = digits.cast("decimal(38, 0)").cast("string")
    elif part.form is TextFormat.BOOLEAN:
        text = value.cast("int").cast("string")
    elif part.form is TextFormat.DATE:
        text = f.unix_date(value).cast("string")
    elif part.form is TextFormat.TIMESTAMP:
        text = f.unix_micros(value.cast("timestamp")).cast("string")
    elif part.form is TextFormat.BINARY:
        text = f.lower(f.hex(value))
    elif part.form is TextFormat.TEXT:
        text = f.concat(f.char_length(value).cast("string"), f.lit(":"), value)
    elif part.form is TextFormat.OTHER and not isinstance(part.type, t.FractionalType):
        text = f.when(value.isNotNull(), f.to_json(f.struct(value.alias("v")), _TIME_FORMATS))
    else:
        text = value.cast("string")
    return f.coalesce(text, f.lit(chr(NULL)))


def spark_hash(parts: Sequence[HashedColumn]) -> Column:
    """Returns the md5 of a row's formatted values, as 32 hexadecimal digits."""
    return f.md5(f.concat_ws(chr(BETWEEN), *map(spark_text, parts)))


def spark_number(md5: Column) -> Column:
    """Returns the first 60 bits of an md5 as a bigint."""
    return f.conv(f.substring(md5, 1, DIGITS), 16, 10).cast("bigint")


def spark_total(number: Column) -> Column:
    """Returns a sum of 60-bit numbers as a string, because the sum may overflow a bigint."""
    return f.sum(number.cast("decimal(20, 0)")).cast("string")
