"""The types that a spec gives to the columns of files, and as which their readers get them.

Readers of CSV and JSON round a decimal to its scale, and a double to the nearest, without a word.
Such columns are read as what holds all digits, and cast by :mod:`loader.rows.exact_cast`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import types as t

from loader.error_report import did_you_mean
from loader.errors import TableError
from loader.rows.exact_cast import data_type
from loader.sources.file.rows import partitions

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions

_PARSED = ("csv", "json")
"""Formats whose readers turn texts into values of the type that they are asked for."""


def typed(
    spark: SparkSession, native: ReaderOptions, schema: t.StructType, where: str
) -> tuple[ReaderOptions, t.StructType]:
    """Returns the columns with the types that the spec gives them, and how to read these.

    Args:
        schema: the columns as the files have them, or as the spec declares all of them.
        where: the table, for errors.

    Raises:
        TableError: if there is no such column.
    """
    by_name = {name.lower(): name for name in schema.names}
    chosen: dict[str, t.DataType] = {}
    for name, text in native.types:
        if name.lower() not in by_name:
            raise TableError(
                f"there is no column {name!r}",
                where=f"{where}, column_types",
                remedy=f"{did_you_mean(name, schema.names)} Its columns: "
                f"{', '.join(schema.names)}".strip(),
            )
        chosen[by_name[name.lower()]] = data_type(text)
    fields = [t.StructField(c.name, chosen.get(c.name, c.dataType)) for c in schema.fields]
    of_folders = {field.name for field in partitions(spark, native)} if chosen else set()
    declared = schema.names if native.columns is not None else list(chosen)
    as_read = []
    for name in declared:
        own, wanted = schema[name].dataType, chosen.get(name, schema[name].dataType)
        kind = wanted if name in of_folders else _read_as(native, own, wanted)
        if kind != wanted:
            as_read.append((name, kind))
    return replace(native, as_read=tuple(as_read)), t.StructType(fields)


def _read_as(native: ReaderOptions, own: t.DataType, wanted: t.DataType) -> t.DataType:
    """Returns the type that a reader is asked for, of which nothing is lost."""
    form = native.format.lower()
    if form not in _PARSED:
        return own
    if (native.option("mode") or "").lower() not in ("", "failfast"):
        return wanted  # the spec wants nulls for what does not fit
    if form == "json" and native.columns is None and isinstance(own, t.StringType):
        return own  # the reader makes a number of a number only
    if isinstance(wanted, t.DecimalType):
        if form == "json":  # its reader makes a text of a number by way of a double
            return t.DecimalType(38, 38 - (wanted.precision - wanted.scale))
        return wanted if native.option("locale") else t.StringType()
    rounds = form == "csv" and isinstance(wanted, (t.FloatType, t.DoubleType))
    return t.StringType() if rounds else wanted
