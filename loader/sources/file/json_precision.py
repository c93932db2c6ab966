"""Rejects JSON numbers that Spark would round because doubles have only 15 to 17 digits.

Spark's JSON reader parses a number that has a fraction as a double, even for a string column.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.errors import TableError
from loader.rows.exact_cast import extract_digits
from loader.rows.mask_values import REDACTED
from loader.sources.file.lines import read_lines
from loader.sources.file.listing import MODIFIED, PATH

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions
    from loader.sources.interface import SourceTable

_LONG = r"\d[\d.]{15,}|\d[eE][+-]?\d{3}"
_NUMBER = r"(-?\d[\d.]*(?:[eE][+-]?\d+)?)"
_TEXTS = r""""[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"""
_AT_ONCE = 1000
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)


@dataclass(frozen=True)
class _Number:
    """A number, as it is written in a file."""

    text: str

    @property
    def fraction(self) -> bool:
        return bool(re.search(r"[.eE]", self.text))

    @property
    def rounded(self) -> bool:
        """Whether the number changes when it is converted to a double."""
        double = float(self.text)
        if not math.isfinite(double) or (not double and re.match(r"[-0.]*[1-9]", self.text)):
            return True
        exact = Decimal(self.text)
        digits = len(exact.as_tuple().digits)
        return Context(prec=digits).create_decimal(Decimal(double)) != exact


def check_numbers(spark: SparkSession, table: SourceTable, chosen: Column | None) -> None:
    """Raises a TableError if a number would lose digits, unless the spec declares it as a double.

    Args:
        chosen: a condition on the columns MODIFIED and PATH; None selects all files.
    """
    native: ReaderOptions = table.ref.native
    if native.format.lower() != "json":
        return
    columns = t.StructType([c for c in table.schema.fields if c.name not in (MODIFIED, PATH)])
    doubles = native.columns is None
    leaves = list(_leaves(columns))
    if all(_holds_any(leaf, doubles) or isinstance(leaf, _WHOLE) for _, leaf in leaves):
        return
    read = _suspect(read_lines(spark, native, chosen), leaves, doubles)
    rows = read.take(_AT_ONCE)
    more = read.toLocalIterator() if len(rows) == _AT_ONCE else iter(())
    for path, line in chain(rows, islice(more, _AT_ONCE, None)):
        for column, number in _find_rounded(line, columns, doubles):
            shown = REDACTED if native.masks else number.text[:60]
            raise TableError(
                f"the number {shown} of {path} has more digits than a double, and Spark "
                "reads it as a double",
                where=f"table {table.ref.name}, column {column}",
                remedy="Declare the column's type in the table's `column_types`: decimal(38, 20), "
                "or another scale, for all digits; double to round",
            )


def _leaves(data_type: t.DataType, name: str = "") -> Iterator[tuple[str, t.DataType]]:
    if isinstance(data_type, t.StructType):
        for field in data_type.fields:
            yield from _leaves(field.dataType, field.name)
    elif isinstance(data_type, t.ArrayType):
        yield from _leaves(data_type.elementType)
    elif isinstance(data_type, t.MapType):
        yield from _leaves(data_type.valueType)
    else:
        yield name, data_type


def _holds_any(leaf: t.DataType, doubles: bool) -> bool:
    """Returns whether a column needs no check, because Spark does not read its values as doubles.

    Columns of type double are checked only if `doubles` is true.
    """
    return not isinstance(leaf, (*_WHOLE, t.StringType, t.DoubleType)) or (
        isinstance(leaf, t.DoubleType) and not doubles
    )


def _suspect(read: DataFrame, leaves: Sequence[tuple[str, t.DataType]], doubles: bool) -> DataFrame:
    """Returns the path and text of lines that contain numbers that a Java double may round.

    Ignores numbers in columns whose types are exact, so that few lines remain.
    """
    text = left = f.col("value")
    exact_names = {n for n, leaf in leaves} - {
        n for n, leaf in leaves if not _holds_any(leaf, doubles)
    }
    integer_names = {n for n, _ in leaves} - {
        n for n, leaf in leaves if isinstance(leaf, t.DoubleType)
    }
    for names, number in ((exact_names, r"-?\d[\d.eE+-]*+"), (integer_names, r"-?\d++(?![\d.eE])")):
        if any(names):
            named = "|".join(re.escape(name) for name in sorted(names) if name)
            left = f.regexp_replace(left, rf'"(?:{named})"\s*+:\s*+{number}', "")
    left = f.regexp_replace(left, _TEXTS, "")
    odd = f.exists(
        f.regexp_extract_all(left, f.lit(_NUMBER), f.lit(1)),
        lambda number: (
            number.rlike(_LONG)
            & (extract_digits(number) != extract_digits(number.cast("double").cast("string")))
        ),
    )
    # Without the nesting, Spark would evaluate the repeated expression for all lines.
    suspect = f.when(text.rlike(_LONG), f.when(left.rlike(_LONG), odd))
    return read.where(suspect).select(PATH, "value")


def _find_rounded(line: str, schema: t.StructType, doubles: bool) -> Iterator[tuple[str, _Number]]:
    try:
        value = json.loads(line, parse_float=_Number, parse_int=_Number)
    except ValueError:  # non-standard JSON that the reader options allow
        bare = re.sub(_TEXTS.replace("*+", "*"), "", line)
        value = [{"?": _Number(text)} for text in re.findall(_NUMBER, bare)]
        schema = t.StructType([t.StructField("?", t.DoubleType())])
    for record in value if isinstance(value, list) else [value]:
        yield from _find_rounded_in(record, schema, "", doubles)


def _find_rounded_in(
    value: Any, data_type: t.DataType, path: str, doubles: bool
) -> Iterator[tuple[str, _Number]]:
    if isinstance(value, _Number):
        as_double = isinstance(data_type, t.DoubleType) and doubles
        as_text = isinstance(data_type, t.StringType) and value.fraction
        if (as_double or as_text) and value.rounded:
            yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            inner_type = _field(data_type, name)
            if inner_type is not None:
                yield from _find_rounded_in(
                    inner, inner_type, f"{path}.{name}".lstrip("."), doubles
                )
    elif isinstance(value, list):
        inner_type = data_type.elementType if isinstance(data_type, t.ArrayType) else data_type
        for inner in value:
            yield from _find_rounded_in(inner, inner_type, path, doubles)


def _field(data_type: t.DataType, name: str) -> t.DataType | None:
    """Returns the type of an object's field, or None if the schema has no such field.

    The fields of an object in a string column are strings, because Spark stores the object as JSON.
    """
    if isinstance(data_type, t.StructType):
        fields = (c.dataType for c in data_type.fields if c.name.lower() == name.lower())
        return next(fields, None)
    if isinstance(data_type, t.MapType):
        return data_type.valueType
    return data_type if isinstance(data_type, t.StringType) else None
