"""Reads a table's files: those in a window, and their rows in the order they were written."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from loader.errors import TableError
from loader.rows.cursor import Cursor, CursorType, clock_now, later
from loader.rows.literal import literal
from loader.rows.order import quoted
from loader.sources import Bounds, Snapshot, SourceTable, Window, edge
from loader.sources.file import listing as list_of
from loader.sources.file.headers import Group, groups, matched, union
from loader.sources.file.lines import checked
from loader.sources.file.listing import MODIFIED, PATH, held_anyway, listed, moved_in
from loader.sources.file.numerals import check_numbers

if TYPE_CHECKING:
    from loader.sources.file.options import Native

_BY_NAME = frozenset({"csv", "json", "parquet", "orc", "avro"})
"""Formats whose reader can be given the columns to read."""

_OF_LISTING = frozenset({"path", "modificationTime", "length", "content"})


class FileSnapshot(Snapshot):
    """The files as they are: one written during the read gets a later time, and is read again."""

    tells_deletes = False

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        cursor = window.cursor
        if cursor is None or cursor.name == MODIFIED:
            return self._bounds_of_files(table, window)
        rows = _rows(self.spark, table, None).where(_within(table, window, window.high))
        column = f.col(quoted(cursor.name))
        [found] = rows.agg(
            f.count(f.lit(1)).alias("rows"),
            f.count(column).alias("dated"),
            f.min(column).cast("string").alias("low"),
            f.max(column).cast("string").alias("high"),
        ).collect()
        clock = clock_now(cursor.type)
        high = edge(found["high"], cursor.type, table, window)
        ahead = high is not None and clock is not None and high.order > clock.order
        return Bounds(
            rows=found["rows"],
            nulls=found["rows"] - found["dated"],
            low=edge(found["low"], cursor.type, table, window),
            high=high,
            clock=clock,
            future=_ahead(rows, column, clock, table, window) if ahead and clock else 0,
        )

    def _bounds_of_files(self, table: SourceTable, window: Window) -> Bounds:
        """Uses only names and times: the rows of new files are counted when they are read."""
        files = list_of.files(self.spark, table.ref.native).localCheckpoint(eager=True)
        inside = files.where(list_of.within(window, window.high))
        if window.cursor is None:
            return Bounds(None if inside.take(1) else 0)
        clock = clock_now(CursorType.TIMESTAMPTZ)
        assert clock is not None
        future = f.col(MODIFIED) > literal(clock, files.schema[MODIFIED].dataType)
        [found] = inside.agg(
            f.count(f.lit(1)).alias("files"),
            f.min(MODIFIED).cast("string").alias("low"),
            f.max(MODIFIED).cast("string").alias("high"),
            f.count_if(future).alias("future"),
        ).collect()
        moved = moved_in(files, window)
        oldest = None
        if moved is not None:
            [[oldest]] = moved.agg(f.min(MODIFIED).cast("string")).collect()
        low, high, reach = (
            edge(text, CursorType.TIMESTAMPTZ, table, window)
            for text in (found["low"], found["high"], oldest)
        )
        mark = None
        passed = clock if high is not None and high.order > clock.order else high
        before = later(window.low, passed)
        if before is not None and window.high is None:
            mark = list_of.remembered(files, window, before)
        return Bounds(
            rows=None if found["files"] or reach else 0,
            low=low,
            high=high,
            clock=clock,
            future=found["future"],
            reach=reach,
            mark=mark,
            settled=mark != window.mark,
        )

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        names = [quoted(name) for name in table.schema.names]
        by_time = window.cursor is None or window.cursor.name == MODIFIED
        end = window.end(bounds)
        chosen = list_of.within(window, end) if by_time else None
        if by_time and bounds.reach is not None:
            moved = moved_in(list_of.files(spark, table.ref.native), window)
            paths = [row[PATH] for row in moved.select(PATH).collect()] if moved is not None else []
            chosen = list_of.within(window, end) | f.col(PATH).isin(paths)
        if by_time:
            held = held_anyway(window, table)
            chosen = chosen if held is None or chosen is None else chosen & ~held
        check_numbers(spark, table, chosen)
        rows = _rows(spark, table, chosen)
        rows = rows if by_time else rows.where(_within(table, window, end))
        # Spark packs files into partitions by size, so restore the order they were written in.
        rows = rows.orderBy(MODIFIED, PATH, "_cq_block", "_cq_line").select(*names)
        return checked(rows, spark, table.ref.native, chosen)


def columns_of(spark: SparkSession, native: Native) -> tuple[Native, StructType]:
    """Returns the columns that any of a table's files has, unless the spec names them.

    Raises:
        TableError: if the files are not what the spec says.
        PySparkException, Py4JJavaError: if Spark cannot read them.
    """
    if native.columns is not None or not matched(native):
        return native, _reader(spark, native, None).schema
    # Before Spark reads them: it does not say which file is not text.
    found = groups(spark, native, _paths(list_of.files(spark, native)))
    schema = _reader(spark, native, None).schema
    if len(found) < 2:
        return native, schema
    frames = [spark.createDataFrame([], _inferred(spark, native, group)) for group in found]
    whole = reduce(lambda left, right: left.unionByName(right, True), frames).schema
    by_name = {field.name.lower(): field for field in whole.fields}
    ordered = [by_name[name.lower()] for name in union(found)]
    return native, StructType([*ordered, *partitions(spark, native)])


def partitions(spark: SparkSession, native: Native) -> list[StructField]:
    """Returns the columns that come from folders named `column=value`."""
    fields = listed(spark, native).schema.fields
    return [field for field in fields if field.name not in _OF_LISTING]


def _reader(spark: SparkSession, native: Native, schema: StructType | None) -> DataFrame:
    reader = spark.read.format(native.format).options(**dict(native.options))
    if schema is not None:
        reader = reader.schema(schema)
    elif native.columns is not None:
        reader = reader.schema(native.columns)
    return reader.load(native.path)


def _inferred(spark: SparkSession, native: Native, group: Group) -> StructType:
    options = {name.lower(): value for name, value in native.options}
    if options.get("inferschema", "").lower() != "true":
        return StructType([StructField(name, StringType()) for name in group.columns])
    path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    uri = spark._jvm.java.net.URI  # type: ignore[union-attr]
    return (
        spark.read.format(native.format)
        .options(**{**dict(native.options), "__globPaths__": "false"})
        .load([str(path(uri(one)).toString()) for one in group.paths])
        .schema
    )


def _rows(spark: SparkSession, table: SourceTable, chosen: Column | None) -> DataFrame:
    """Reads the rows of the chosen files: the table's columns, `_cq_block` and `_cq_line`.

    Args:
        chosen: a condition on MODIFIED and PATH that chooses the files; None means all.
    """
    native: Native = table.ref.native
    own = StructType([c for c in table.schema.fields if c.name not in (MODIFIED, PATH)])
    if not matched(native):
        by_name = native.format.lower() in _BY_NAME
        return _placed(_reader(spark, native, own if by_name else None), table, chosen)
    files = list_of.files(spark, native)
    try:
        found = groups(spark, native, _paths(files if chosen is None else files.where(chosen)))
    except TableError as error:
        where = f"table {table.ref.name}"
        raise TableError(error.what, where=where, remedy=error.remedy) from error
    folders = partitions(spark, native)
    frames = [_of_group(spark, table, group, folders, len(found) > 1, chosen) for group in found]
    if not frames:
        return _placed(_reader(spark, native, own), table, f.lit(False))
    return reduce(DataFrame.unionByName, frames)


def _of_group(
    spark: SparkSession,
    table: SourceTable,
    group: Group,
    folders: list[StructField],
    several: bool,
    chosen: Column | None,
) -> DataFrame:
    native: Native = table.ref.native
    types = {field.name.lower(): field.dataType for field in table.schema.fields}
    wanted = types.keys() - {field.name.lower() for field in folders} - {MODIFIED, PATH}
    if not wanted & {name.lower() for name in group.columns}:
        raise TableError(
            f"the header of {group.paths[0]} names none of the table's columns: it has "
            f"{', '.join(group.columns)}",
            where=f"table {table.ref.name}, columns",
            remedy="Name the columns as the header does; or set the option header: 'false' if "
            "there is none, or enforceSchema: 'true' to read by position",
        )
    fields = [StructField(n, types.get(n.lower(), StringType())) for n in group.columns]
    made = [StructField(field.name, types[field.name.lower()]) for field in folders]
    rows = _reader(spark, group.guarded(native), StructType([*fields, *made]))
    if several:
        of_group = f.col(PATH).isin(*group.paths)
        chosen = of_group if chosen is None else chosen & of_group
    return _placed(rows, table, chosen)


def _placed(rows: DataFrame, table: SourceTable, chosen: Column | None) -> DataFrame:
    """Returns rows with the table's columns, and each row's position in its file."""
    there = {name.lower() for name in rows.columns} | {MODIFIED, PATH}
    rows = rows.withColumns(
        {
            MODIFIED: f.col("_metadata.file_modification_time"),
            PATH: list_of.path(),
            "_cq_block": f.col("_metadata.file_block_start"),
        }
    )
    rows = rows if chosen is None else rows.where(chosen)
    return rows.select(
        *(
            f.col(quoted(c.name)).alias(c.name)
            if c.name.lower() in there
            else f.lit(None).cast(c.dataType).alias(c.name)
            for c in table.schema.fields
        ),
        "_cq_block",
        f.monotonically_increasing_id().alias("_cq_line"),
    )


def _paths(files: DataFrame) -> list[str]:
    return [row[PATH] for row in files.orderBy(MODIFIED, PATH).select(PATH).collect()]


def _within(table: SourceTable, window: Window, end: Cursor | None) -> Column:
    if window.cursor is None:
        return f.lit(True)
    column = f.col(quoted(window.cursor.name))
    data_type = table.schema[window.cursor.name].dataType
    inside = column.isNotNull()
    if window.low is not None:
        inside = inside & (column >= literal(window.low, data_type))
    if end is not None:
        inside = inside & (column <= literal(end, data_type))
    return inside | column.isNull() if window.nulls else inside


def _ahead(
    rows: DataFrame, column: Column, clock: Cursor, table: SourceTable, window: Window
) -> int:
    assert window.cursor is not None
    return rows.where(column > literal(clock, table.schema[window.cursor.name].dataType)).count()
