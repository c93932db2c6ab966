"""The `file` connector: folders of files in any format that Spark reads.

Its own cursor is the file's modification time, so a file is read when it is new or was written
again. A column of the files can be the cursor instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from loader.cursor import Cursor, CursorType
from loader.errors import TableError
from loader.failures import clear
from loader.literal import literal
from loader.options import TableOptions
from loader.order import quoted
from loader.sources import Bounds, Snapshot, Source, SourceTable, TableRef, Window, edge

MODIFIED = "_file_modified_at"
PATH = "_file_path"
_DEFAULTS = {"csv": {"header": "true"}}


class FileTableOptions(TableOptions):
    """What one table of files may say beyond the common options.

    Attributes:
        path: a folder, file or glob, relative to the source's path; its name by default.
        format, options: of Spark's reader; the source's by default.
        columns: the columns as DDL (`id bigint, name string`); inferred by Spark where absent.
    """

    path: str | None = None
    format: str | None = None
    options: dict[str, str] = Field(default_factory=dict)
    columns: str | None = None


class FileOptions(BaseModel):
    """The inner `spec` of a source with `path: file`.

    Attributes:
        path: a folder, relative to the spec; each folder and file in it is a table.
        format: csv, json, parquet, orc, text, avro, or any other that Spark has a reader for.
        options: of that reader, such as `sep`; a CSV has a header unless said otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    format: str
    options: dict[str, str] = Field(default_factory=dict)
    table_options: dict[str, FileTableOptions] = Field(default_factory=dict)


@dataclass(frozen=True)
class Native:
    """How to read one table."""

    path: str
    format: str
    options: tuple[tuple[str, str], ...]
    columns: str | None


class FileSource(Source):
    """Reads tables out of folders of files."""

    options_model = FileOptions
    options: FileOptions

    @property
    def base(self) -> str:
        """The folder of the tables, absolute."""
        if urlparse(self.options.path).scheme:
            return self.options.path.rstrip("/")
        return str((self.folder / self.options.path).resolve())

    def tables(self) -> list[TableRef]:
        names = {_table_name(name): name for name in self._listed()}
        for name, options in self.options.table_options.items():
            if options.path is not None:
                names[name] = options.path
        return [TableRef(name, self._native(name, path)) for name, path in sorted(names.items())]

    def _listed(self) -> list[str]:
        jvm: Any = self.spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self.base)
        system = path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())
        if not system.exists(path):
            raise TableError(
                f"there is no folder {self.base}",
                where=f"source {self.name}, path",
                remedy="Create it, or mend the source's path (relative to the spec)",
            )
        names = [status.getPath().getName() for status in system.listStatus(path)]
        # Spark passes over these as well.
        return [name for name in names if not name.startswith((".", "_"))]

    def _native(self, name: str, path: str) -> Native:
        options = self._options_of(name)
        form = options.format or self.options.format
        settings = {**_DEFAULTS.get(form, {}), **self.options.options, **options.options}
        full = path if urlparse(path).scheme or path.startswith("/") else f"{self.base}/{path}"
        return Native(full, form, tuple(sorted(settings.items())), options.columns)

    def _options_of(self, name: str) -> FileTableOptions:
        for known, options in self.options.table_options.items():
            if known.lower() == name.lower():
                return options
        return FileTableOptions()

    def describe(self, ref: TableRef) -> SourceTable:
        try:
            schema = load(self.spark, ref.native).schema
        except (PySparkException, Py4JJavaError) as error:
            what = clear(error, "").what
            if what.endswith(".DefaultSource"):  # the class that Spark looked for
                what = f"Spark has no reader for the format {ref.native.format!r}"
            raise TableError(
                what,
                where=f"table {self.name}.{ref.name} ({ref.native.path})",
                remedy="Check path, format and options of the table's reader; `columns` where "
                "Spark cannot infer them",
            ) from error
        taken = [name for name in schema.names if name.lower() in (MODIFIED, PATH)]
        if taken:
            raise TableError(
                f"the files have a column {taken[0]!r}, which the loader writes itself",
                where=f"table {self.name}.{ref.name}",
                remedy="Rename it in the files, or leave it out with the table's `columns`",
            )
        own = [StructField(MODIFIED, TimestampType()), StructField(PATH, StringType())]
        return SourceTable(
            ref,
            StructType([*schema.fields, *own]),
            cursor_field=MODIFIED,
            column_comments={
                MODIFIED: "When the file that the row comes from was last written, UTC.",
                PATH: "The file that the row comes from.",
            },
        )

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[FileSnapshot]:
        yield FileSnapshot(self.spark)


class FileSnapshot(Snapshot):
    """Files as they are: a file written while it is read has a later time, and is read again."""

    tells_deletes = False

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        cursor = window.cursor
        if cursor is None or cursor.name == MODIFIED:
            # Names and times only: the rows of new files are counted when they are read.
            files = (
                self.spark.read.format("binaryFile")
                .load(table.ref.native.path)
                .select(f.col("modificationTime").alias(MODIFIED))
            )
            rows = files.where(_within(table, window))
            column = f.col(MODIFIED)
        else:
            rows = _with_file(load(self.spark, table.ref.native)).where(_within(table, window))
            column = f.col(quoted(cursor.name))
        [found] = rows.agg(
            f.count(f.lit(1)).alias("rows"),
            f.count(column).alias("dated"),
            f.min(column).cast("string").alias("low"),
            f.max(column).cast("string").alias("high"),
        ).collect()
        if cursor is None:
            return Bounds(None if found["rows"] else 0)
        counted = cursor.name != MODIFIED
        clock = _clock(cursor.type)
        high = edge(found["high"], cursor.type, table, window)
        ahead = high is not None and clock is not None and high.order > clock.order
        return Bounds(
            rows=found["rows"] if counted else (None if found["rows"] else 0),
            nulls=found["rows"] - found["dated"],
            low=edge(found["low"], cursor.type, table, window),
            high=high,
            clock=clock,
            future=_ahead(rows, column, clock, table, window) if ahead and clock else 0,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        rows = _with_file(load(spark, table.ref.native)).where(_within(table, window))
        names = [quoted(name) for name in table.schema.names]
        # Spark packs files into partitions by size; this is the order in which they were written.
        return (
            rows.select(
                *names,
                f.col("_metadata.file_block_start").alias("_cq_block"),
                f.monotonically_increasing_id().alias("_cq_line"),
            )
            .orderBy(MODIFIED, PATH, "_cq_block", "_cq_line")
            .select(*names)
        )


def load(spark: SparkSession, native: Native) -> DataFrame:
    """A lazy read of a table's files."""
    reader = spark.read.format(native.format).options(**dict(native.options))
    if native.columns is not None:
        reader = reader.schema(native.columns)
    return reader.load(native.path)


def _with_file(rows: DataFrame) -> DataFrame:
    return rows.withColumn(MODIFIED, f.col("_metadata.file_modification_time")).withColumn(
        PATH, f.col("_metadata.file_path")
    )


def _within(table: SourceTable, window: Window) -> Column:
    if window.cursor is None:
        return f.lit(True)
    column = f.col(quoted(window.cursor.name))
    data_type = table.schema[window.cursor.name].dataType
    inside = column.isNotNull()
    if window.low is not None:
        inside = inside & (column >= literal(window.low, data_type))
    if window.high is not None:
        inside = inside & (column <= literal(window.high, data_type))
    return inside | column.isNull() if window.nulls else inside


def _ahead(
    rows: DataFrame, column: Column, clock: Cursor, table: SourceTable, window: Window
) -> int:
    assert window.cursor is not None
    return rows.where(column > literal(clock, table.schema[window.cursor.name].dataType)).count()


def _clock(type_: CursorType) -> Cursor | None:
    if not type_.is_time:
        return None
    now = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    return Cursor.parse(now.isoformat(sep=" ", timespec="microseconds"), type_)


def _table_name(name: str) -> str:
    return Path(name).name.split(".")[0]
