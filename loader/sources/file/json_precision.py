"""Refuses JSON numbers that Spark would round: its doubles hold 15 to 17 digits.

Spark reads a number with a fraction as a double also where the column is a text.
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
from loader.sources.file.lines import lines
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
    """A number as a file has it.

    Attributes:
        text: its digits.
    """

    text: str

    @property
    def fraction(self) -> bool:
        return bool(re.search(r"[.eE]", self.text))

    @property
    def rounded(self) -> bool:
        """Whether a double, written with as many digits, is another number."""
        double = float(self.text)
        if not math.isfinite(double) or (not double and re.match(r"[-0.]*[1-9]", self.text)):
            return True
        exact = Decimal(self.text)
        digits = len(exact.as_tuple().digits)
        return Context(prec=digits).create_decimal(Decimal(double)) != exact


def check_numbers(spark: SparkSession, table: SourceTable, chosen: Column | None) -> None:
    """Refuses numbers of JSON files that a table's columns cannot hold to the last digit.

    A column that the spec itself declares as a double may round.

    Args:
        chosen: a condition on MODIFIED and PATH that chooses the files; None means all.

    Raises:
        TableError: names the column, the number and the file.
    """
    native: ReaderOptions = table.ref.native
    if native.format.lower() != "json":
        return
    own = t.StructType([c for c in table.schema.fields if c.name not in (MODIFIED, PATH)])
    doubles = native.columns is None
    leaves = list(_leaves(own))
    if all(_holds_any(leaf, doubles) or isinstance(leaf, _WHOLE) for _, leaf in leaves):
        return
    read = _suspect(lines(spark, native, chosen), leaves, doubles)
    rows = read.take(_AT_ONCE)
    more = read.toLocalIterator() if len(rows) == _AT_ONCE else iter(())
    for path, line in chain(rows, islice(more, _AT_ONCE, None)):
        for column, number in _found(line, own, doubles):
            raise TableError(
                f"the number {number.text[:60]} of {path} has more digits than a double holds, as "
                "which Spark reads it",
                where=f"table {table.ref.name}, column {column}",
                remedy="Declare the table's `column_types`: the column as decimal(38, 20), or of "
                "another scale, keeps its digits; as double it is rounded",
            )


def _leaves(data_type: t.DataType, name: str = "") -> Iterator[tuple[str, t.DataType]]:
    """Yields each scalar type within a type, with the name of the field that it belongs to."""
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
    """Whether any number may stand in a column: it is held, or the spec says how to round it."""
    return not isinstance(leaf, (*_WHOLE, t.StringType, t.DoubleType)) or (
        isinstance(leaf, t.DoubleType) and not doubles
    )


def _suspect(read: DataFrame, leaves: Sequence[tuple[str, t.DataType]], doubles: bool) -> DataFrame:
    """Returns path and text of lines with a number that Java writes in other digits as a double.

    These are few: numbers of columns that hold them do not count.
    """
    text = left = f.col("value")
    held = {n for n, leaf in leaves} - {n for n, leaf in leaves if not _holds_any(leaf, doubles)}
    whole = {n for n, _ in leaves} - {n for n, leaf in leaves if isinstance(leaf, t.DoubleType)}
    for names, number in ((held, r"-?\d[\d.eE+-]*+"), (whole, r"-?\d++(?![\d.eE])")):
        if any(names):
            named = "|".join(re.escape(name) for name in sorted(names) if name)
            left = f.regexp_replace(left, rf'"(?:{named})"\s*+:\s*+{number}', "")
    left = f.regexp_replace(left, _TEXTS, "")
    odd = f.exists(
        f.regexp_extract_all(left, f.lit(_NUMBER), f.lit(1)),
        lambda number: (
            number.rlike(_LONG) & (_digits(number) != _digits(number.cast("double").cast("string")))
        ),
    )
    # Each within the one before: Spark would evaluate what is there twice for all lines.
    suspect = f.when(text.rlike(_LONG), f.when(left.rlike(_LONG), odd))
    return read.where(suspect).select(PATH, "value")


def _digits(number: Column) -> Column:
    digits = f.regexp_replace(number, r"[eE].*|[-.]", "")
    return f.regexp_replace(digits, r"^0+|0+$", "")


def _found(line: str, schema: t.StructType, doubles: bool) -> Iterator[tuple[str, _Number]]:
    """Yields the numbers of a line that are rounded, each with its column."""
    try:
        value = json.loads(line, parse_float=_Number, parse_int=_Number)
    except ValueError:  # what only the table's reader options allow
        bare = re.sub(_TEXTS.replace("*+", "*"), "", line)
        value = [{"?": _Number(text)} for text in re.findall(_NUMBER, bare)]
        schema = t.StructType([t.StructField("?", t.DoubleType())])
    for record in value if isinstance(value, list) else [value]:
        yield from _rounded(record, schema, "", doubles)


def _rounded(
    value: Any, data_type: t.DataType, path: str, doubles: bool
) -> Iterator[tuple[str, _Number]]:
    if isinstance(value, _Number):
        as_double = isinstance(data_type, t.DoubleType) and doubles
        as_text = isinstance(data_type, t.StringType) and value.fraction
        if (as_double or as_text) and value.rounded:
            yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            of = _field(data_type, name)
            if of is not None:
                yield from _rounded(inner, of, f"{path}.{name}".lstrip("."), doubles)
    elif isinstance(value, list):
        of = data_type.elementType if isinstance(data_type, t.ArrayType) else data_type
        for inner in value:
            yield from _rounded(inner, of, path, doubles)


def _field(data_type: t.DataType, name: str) -> t.DataType | None:
    """Returns the type of a field of an object; None if the object has no such field.

    An object in a text is written again, with its numbers.
    """
    if isinstance(data_type, t.StructType):
        fields = (c.dataType for c in data_type.fields if c.name.lower() == name.lower())
        return next(fields, None)
    if isinstance(data_type, t.MapType):
        return data_type.valueType
    return data_type if isinstance(data_type, t.StringType) else None
