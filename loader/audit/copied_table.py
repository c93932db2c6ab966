"""Reads a table that another tool has loaded, with the columns and types of its source."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.audit.presets import NONE, PRESETS, Preset, find_preset
from loader.errors import SpecError, did_you_mean, sentence
from loader.rows.version_order import quote_name
from loader.sources.contents import Contents
from loader.sources.file.read_errors import find_differing_types
from loader.sources.jdbc.contents import JdbcContents

_AIRBYTE_RAW = "_airbyte_data"
_ANOTHER_TYPE = "the copy has a type that cannot be converted to the source's"
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_PRECISE = (t.NumericType, *_TIMES)


@dataclass(frozen=True)
class CopyRows:
    """The rows of a copy at one moment.

    Attributes:
        read: returns the rows, which Spark reads.
        find_contents: takes the key columns; returns the rows with the checksums that the copy's
            database computes, if it can. None if the copy is not in a database.
    """

    schema: t.StructType
    read: Callable[[], DataFrame]
    find_contents: Callable[[Sequence[str]], Contents] | None = None

    @cached_property
    def frame(self) -> DataFrame:
        """The rows, which are read only if they are needed."""
        return self.read()


Open = Callable[[], AbstractContextManager[CopyRows]]


@dataclass(frozen=True)
class CopyOptions:
    """How to read a copy.

    Attributes:
        tool: the name of a preset. If it is empty, the tool is recognised by the copy's columns.
            If it is "none", no preset is used.
        keeps_versions: whether the copy contains old versions of rows, so that only the newest
            version of each key is compared.
        newest_by: the columns that order the versions of a row, instead of the preset's.
        deleted: the column that flags deleted rows, instead of the preset's.
    """

    tool: str = ""
    keeps_versions: bool = False
    newest_by: tuple[str, ...] = ()
    deleted: str | None = None


@dataclass(frozen=True)
class CopiedTable:
    """A copy of a source's table.

    Attributes:
        open: yields the table's rows. Each call reads the table again. All actions on the rows from
            one call read the same version of the table, if its format permits this.
        schema: the copy's columns.
        tool: the tool that loads the copy; empty if unknown.
        columns: maps the source's columns that can be compared to the copy's columns.
        not_compared: maps the source's other columns to the reason.
        additional: the copy's columns that are neither the source's nor the tool's.
    """

    name: str
    open: Open
    schema: t.StructType
    tool: str
    preset: Preset
    columns: Mapping[str, str]
    not_compared: Mapping[str, str]
    additional: tuple[str, ...]
    options: CopyOptions

    @property
    def keeps_versions(self) -> bool:
        """Whether only the newest version of each key is compared."""
        return self.options.keeps_versions or self.preset.keeps_versions

    def find_contents(self, rows: CopyRows, original: Contents) -> JdbcContents | None:
        """Returns the copy's rows with the checksums that its database computes.

        Returns None if only Spark can compare the rows. This is the case if the copy is not in a
        database, if it contains old row versions or rows flagged as deleted, or if a column's type
        in the copy has a different text format from its type in the original.
        """
        preset = self.preset
        flags = {*preset.superseded, *preset.current, *self.deleted}
        is_filtered = bool(flags & {name.lower() for name in self.schema.names})
        if rows.find_contents is None or self.keeps_versions or is_filtered:
            return None
        found = rows.find_contents([self.columns[part.name] for part in original.key])
        if not isinstance(found, JdbcContents):
            return None
        return found.conform(original, self.columns)

    @property
    def deleted(self) -> Sequence[str]:
        """The columns that flag deleted rows, in lower case."""
        return (self.options.deleted.lower(),) if self.options.deleted else self.preset.deleted

    def highest(
        self, rows: DataFrame, cursor: str, data_type: t.DataType, until: dt.datetime
    ) -> DataFrame:
        """Returns the highest value of the cursor, in one row.

        Args:
            until: a time in UTC. If the cursor is a time, later times are ignored.
        """
        value = convert(self.schema[self.columns[cursor]], data_type)
        if isinstance(data_type, _TIMES):
            value = f.when(value <= f.lit(str(until)).cast(data_type), value)
        return rows.select(f.max(value))


def convert(copied: t.StructField, data_type: t.DataType) -> Column:
    """Returns a column's value in the source's type; null if it does not fit.

    A number or a time does not fit either if it is more precise than the source's type.
    """
    value = f"try_cast({quote_name(copied.name)} as {data_type.simpleString()})"
    is_exact = not isinstance(data_type, (t.FloatType, t.DoubleType, t.StringType))
    if copied.dataType != data_type and is_exact and isinstance(copied.dataType, _PRECISE):
        restored = f.expr(f"try_cast({value} as {copied.dataType.simpleString()})")
        return f.when(restored == f.col(quote_name(copied.name)), f.expr(value))
    return f.expr(value)


def _can_convert(copied: t.StructField, data_type: t.DataType) -> bool:
    """Returns whether a column's values can be converted to a type at all."""
    rows = SparkSession.active().createDataFrame([], t.StructType([copied]))
    try:
        rows.select(convert(copied, data_type)).schema  # noqa: B018 - analyses it
    except AnalysisException:
        return False
    return True


def open_copy(
    name: str,
    open_rows: Open,
    source: t.StructType,
    options: CopyOptions,
    ignored: Collection[str] = (),
) -> CopiedTable:
    """Finds the columns of a copy.

    A column of the copy belongs to a column of the source if the names are equal, or differ only in
    case and in characters other than letters and digits, such as `OrderID` and `order_id`.

    Args:
        source: the columns of the source.
        ignored: columns of the source that are not compared.

    Raises a SpecError if an option names a column that the copy lacks.
    """
    with open_rows() as rows:
        schema = rows.schema
    if _AIRBYTE_RAW in schema.names:
        open_rows = _expand_json(open_rows, source)
        with open_rows() as rows:
            schema = rows.schema
    tool, preset = _choose_preset(schema.names, options.tool)
    own = [column for column in schema.names if not preset.is_bookkeeping(column)]
    columns = match_columns(source.names, own)
    for option, chosen in (("--newest-by", options.newest_by), ("--deleted", (options.deleted,))):
        for column in filter(None, chosen):
            if column.lower() not in map(str.lower, schema.names):
                raise SpecError(
                    f"{name} has no column {column!r}",
                    where=option,
                    remedy=f"{did_you_mean(column, schema.names)} "
                    f"Its columns: {', '.join(schema.names)}".strip(),
                )
    flags = {options.deleted.lower()} if options.deleted else set()
    comparable = {
        original: column
        for original, column in columns.items()
        if original not in ignored and _can_convert(schema[column], source[original].dataType)
    }
    not_compared = {
        column: _ANOTHER_TYPE if column in columns else "the copy lacks it"
        for column in source.names
        if column not in comparable and column not in ignored
    }
    return CopiedTable(
        name,
        open_rows,
        schema,
        tool,
        preset,
        comparable,
        not_compared,
        tuple(c for c in own if c not in columns.values() and c.lower() not in flags),
        options,
    )


def _expand_json(open_rows: Open, source: t.StructType) -> Open:
    """Adds the source's columns to one of Airbyte's raw tables, as text from its JSON column."""
    texts = t.StructType([t.StructField(name, t.StringType()) for name in source.names])

    @contextmanager
    def open_expanded() -> Iterator[CopyRows]:
        with open_rows() as rows:
            parsed = f.from_json(f.col(_AIRBYTE_RAW).cast("string"), texts)
            frame = rows.frame.select("*", parsed.alias("_cq_parsed"))
            frame = frame.select("*", "_cq_parsed.*").drop("_cq_parsed")
            yield CopyRows(frame.schema, lambda: frame)

    return open_expanded


def _choose_preset(columns: Sequence[str], tool: str) -> tuple[str, Preset]:
    if tool == "none":
        return "", NONE
    return (tool, PRESETS[tool]) if tool else find_preset(columns)


def match_columns(source: Sequence[str], copy: Sequence[str]) -> dict[str, str]:
    """Maps the source's columns to the copy's columns with the same or a similar name.

    Example:
        >>> match_columns(["OrderID", "note"], ["order_id", "extra"])
        {'OrderID': 'order_id'}
    """
    found: dict[str, str] = {}
    for form in (str, str.lower, _simplify):
        candidates: dict[str, list[str]] = {}
        for name in copy:
            if name not in found.values():
                candidates.setdefault(form(name), []).append(name)
        for name in source:
            matches = candidates.get(form(name), [])
            if name not in found and len(matches) == 1:
                found[name] = matches[0]
    return {name: found[name] for name in source if name in found}


def _simplify(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower()) or name


def find_spark_table(spark: SparkSession, name: str) -> Open:
    """Returns a function that opens a table in one of Spark's catalogs, or the files at a path.

    A name with a slash is a path. The format is detected from the files: Delta, Iceberg or Parquet.
    Raises a SpecError if the table or the path cannot be read.
    """
    format_ = _find_format(spark, name) if "/" in name else ""

    def read() -> CopyRows:
        try:
            if format_:
                # Tools add columns to later files. Other formats ignore the option.
                frame = spark.read.format(format_).option("mergeSchema", "true").load(name)
            else:
                spark.catalog.refreshTable(name)
                frame = spark.table(name)
            return CopyRows(frame.schema, lambda: frame)
        except Exception as error:
            if format_ == "parquet":
                raise _explain_parquet_error(name, error) from error
            raise SpecError(
                f"it cannot be read: {sentence(error)}",
                where=f"table {name}",
                remedy=_suggest_remedy(format_),
            ) from error

    return lambda: nullcontext(read())


def _explain_parquet_error(path: str, error: Exception) -> SpecError:
    types = find_differing_types(error)
    if types is not None:
        return SpecError(
            f"its Parquet files have different types for {types}",
            where=f"path {path}",
            remedy="Write all files with one type, or leave the column out of the files",
        )
    if "UNABLE_TO_INFER_SCHEMA" in str(error):
        return SpecError(
            "it has no Parquet files, and neither _delta_log (Delta) nor metadata (Iceberg)",
            where=f"path {path}",
            remedy="Specify the folder that contains the table's files",
        )
    return SpecError(
        f"it cannot be read as Parquet: {sentence(error)}",
        where=f"path {path}",
        remedy="Specify the folder that contains the table's files: Parquet, Delta or Iceberg",
    )


def _suggest_remedy(format_: str) -> str:
    if format_ == "delta":
        return (
            "Spark needs the package io.delta:delta-spark: add it to spark.jars.packages and "
            "spark.sql.extensions in the profile"
        )
    return (
        "Write a table as catalog.schema.table, as Spark's catalogs in the profile name it, or "
        "a path with a slash. `loader audit --copy-url` reads a table of a database"
    )


def _find_format(spark: SparkSession, path: str) -> str:
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    try:
        files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
        if not files.exists(folder):
            raise SpecError(
                "it does not exist", where=f"path {path}", remedy="Write the folder of the table"
            )
        for name, format_ in (("_delta_log", "delta"), ("metadata", "iceberg")):
            if files.exists(jvm.org.apache.hadoop.fs.Path(folder, name)):
                return format_
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(
            f"it cannot be read: {sentence(error)}",
            where=f"path {path}",
            remedy="The profile needs the settings of this file system",
        ) from error
    return "parquet"
