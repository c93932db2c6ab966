"""Reads the columns and rows of a table's files, and each row's position in its file.

Spark's CSV and JSON readers silently round decimals and doubles. Columns that a spec declares with
such a type are therefore first read with a type that preserves all digits, and then cast by
:mod:`loader.rows.exact_cast`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.window import Window as Over

from loader.errors import TableError, unknown_column
from loader.rows.exact_cast import cast_exactly, cast_to_text, parse_data_type
from loader.rows.version_order import SEQUENCE, quote_name
from loader.sources.file import listing as list_of
from loader.sources.file.csv import Group, group_by_header, is_matched_by_name, merge_columns
from loader.sources.file.listing import MODIFIED, PATH, SIZE, list_files
from loader.sources.file.parquet_schemas import (
    ParquetSchema,
    find_odd_columns,
    merge_schemas,
    open_session,
    read_schemas,
)
from loader.sources.interface import SourceTable
from loader.spark.error_translation import BROKEN_LINE

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions

_BY_NAME = frozenset({"csv", "json", "parquet", "orc", "avro"})
"""Formats whose readers match the columns of a requested schema by name."""

_CORRUPT = "_cq_corrupt"
"""The column that contains the text of a record that Spark cannot parse."""

_LINES = 1 << 33
"""The number of ids that Spark's `monotonically_increasing_id` reserves for each partition."""

_OF_LISTING = frozenset({"path", "modificationTime", "length", "content"})


def read_columns(spark: SparkSession, native: ReaderOptions) -> tuple[ReaderOptions, StructType]:
    """Returns the columns of a table's files, or those that the spec declares.

    Raises:
        TableError: if a file does not have the format that the spec declares.
        PySparkException, Py4JJavaError: if Spark cannot read a file.
    """
    if native.columns is None and native.format.lower() == "parquet":
        return _read_parquet_columns(spark, native)
    if native.columns is not None or not is_matched_by_name(native):
        return native, _reader(spark, native, None).schema
    # The headers are read first, because Spark's error would not say which file is not text.
    groups = group_by_header(spark, native, _list_paths(list_of.files(spark, native)))
    if groups and native.multiline and not _infers(native):
        # Spark would interpret `{` and `[` in the names of multi-line files as patterns.
        fields = [StructField(name, StringType()) for name in merge_columns(groups)]
        return native, StructType([*fields, *partition_columns(spark, native)])
    schema = _reader(spark, native, None).schema
    if len(groups) < 2:
        return native, schema
    frames = [spark.createDataFrame([], _infer_schema(spark, native, group)) for group in groups]
    merged = reduce(lambda left, right: left.unionByName(right, True), frames).schema
    by_name = {field.name.lower(): field for field in merged.fields}
    ordered = [by_name[name.lower()] for name in merge_columns(groups)]
    return native, StructType([*ordered, *partition_columns(spark, native)])


def _read_parquet_columns(
    spark: SparkSession, native: ReaderOptions
) -> tuple[ReaderOptions, StructType]:
    try:
        return native, _reader(spark, native, None).schema
    except (PySparkException, Py4JJavaError) as error:
        if not re.search("CANNOT_MERGE_SCHEMAS|Illegal Parquet type.*NANOS", str(error)):
            raise
    schemas = read_schemas(open_session(spark), _list_paths(list_of.files(spark, native)))
    schema = merge_schemas(schemas)
    full_schema = StructType([*schema.fields, *partition_columns(spark, native)])
    return replace(native, apart=True), full_schema


def partition_columns(spark: SparkSession, native: ReaderOptions) -> list[StructField]:
    """Returns the partition columns, whose values come from folders named `column=value`."""
    fields = list_files(spark, native).schema.fields
    return [field for field in fields if field.name not in _OF_LISTING]


def _reader(spark: SparkSession, native: ReaderOptions, schema: StructType | None) -> DataFrame:
    reader = spark.read.format(native.format).options(**dict(native.options))
    hides_values = bool(native.masks) and native.fails_on_malformed_records
    if hides_values:
        # Without columnPruning=false, Spark would not read columns whose mask is `null`, and would
        # not detect lines that have too few or too many values.
        reader = reader.options(
            mode="PERMISSIVE", columnNameOfCorruptRecord=_CORRUPT, columnPruning="false"
        )
    wanted = schema if schema is not None else native.columns
    if wanted is not None and hides_values:
        corrupt = StructField(_CORRUPT, StringType())
        wanted = (
            f"{wanted}, {_CORRUPT} string"
            if isinstance(wanted, str)
            else StructType([*wanted.fields, corrupt])
        )
    if wanted is not None:
        reader = reader.schema(wanted)
    rows = reader.load(native.pattern)
    if hides_values and _CORRUPT in rows.columns:
        return _refuse_malformed_records(rows, native, is_inferred=wanted is None)
    return rows


def _refuse_malformed_records(
    rows: DataFrame, native: ReaderOptions, is_inferred: bool
) -> DataFrame:
    """Returns the rows, but reading them fails on malformed records without quoting them.

    In FAILFAST mode, Spark would write these records' values to its log and its event log. Raises a
    TableError if `is_inferred`, because Spark found a malformed record when it inferred the schema.
    """
    if is_inferred:
        raise TableError(
            f"malformed records are detected in {native.path}. Their text is not shown, because "
            "the table has masked columns",
            remedy=BROKEN_LINE,
        )
    reason = f.concat(f.lit("malformed records are detected in "), list_of.path())
    reason = f.concat(reason, f.lit(" (not shown, because the table has masked columns)"))
    refusal = f.when(f.col(_CORRUPT).isNotNull(), f.raise_error(reason).cast("boolean"))
    return rows.where(refusal.otherwise(f.lit(True))).drop(_CORRUPT)


def _infers(native: ReaderOptions) -> bool:
    return (native.option("inferschema") or "").lower() == "true"


def _infer_schema(spark: SparkSession, native: ReaderOptions, group: Group) -> StructType:
    if not _infers(native):
        return StructType([StructField(name, StringType()) for name in group.columns])
    path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    uri = spark._jvm.java.net.URI  # type: ignore[union-attr]
    return (
        spark.read.format(native.format)
        .options(**{**dict(native.options), "__globPaths__": "false"})
        .load([str(path(uri(file_path)).toString()) for file_path in group.paths])
        .schema
    )


def read_rows(spark: SparkSession, table: SourceTable, chosen: Column | None) -> DataFrame:
    """Reads the table's columns, `_cq_block` and `_cq_line` from the selected files.

    Args:
        chosen: a condition on the columns MODIFIED and PATH; None selects all files.
    """
    as_read = dict(table.ref.native.as_read)
    if not as_read:
        return _rows_as_read(spark, table, chosen)
    fields = [StructField(c.name, as_read.get(c.name, c.dataType)) for c in table.schema.fields]
    rows = _rows_as_read(spark, replace(table, schema=StructType(fields)), chosen)
    cast: dict[str, Column] = {}
    for name, kind in as_read.items():
        text = cast_to_text(f.col(quote_name(name)), kind, name)
        hides_value = bool(table.ref.native.masks)
        cast[name] = cast_exactly(text, table.schema[name].dataType, name, hides_value)
    return rows.select(
        *(cast[n].alias(n) if n in cast else f.col(quote_name(n)) for n in rows.columns)
    )


def _rows_as_read(spark: SparkSession, table: SourceTable, chosen: Column | None) -> DataFrame:
    native: ReaderOptions = table.ref.native
    file_columns = StructType([c for c in table.schema.fields if c.name not in (MODIFIED, PATH)])
    if native.format.lower() == "parquet" and (native.apart or native.columns is not None):
        rows = _read_parquet_rows(spark, table, file_columns, chosen)
        if rows is not None:
            return rows
    if not is_matched_by_name(native):
        by_name = native.format.lower() in _BY_NAME
        if native.format.lower() == "csv" and native.all_columns is not None:  # by position
            file_columns = StructType(
                [
                    file_columns[c.name] if c.name in file_columns.names else c
                    for c in native.all_columns.fields
                ]
            )
        return _arrange_columns(
            _reader(spark, native, file_columns if by_name else None), table.schema, chosen
        )
    files = list_of.files(spark, native)
    try:
        groups = group_by_header(
            spark, native, _list_paths(files if chosen is None else files.where(chosen))
        )
    except TableError as error:
        where = f"table {table.ref.name}"
        raise TableError(error.what, where=where, remedy=error.remedy) from error
    folders = partition_columns(spark, native)
    frames = [
        _read_group(spark, table, group, folders, len(groups) > 1, chosen) for group in groups
    ]
    if not frames:
        return _arrange_columns(_reader(spark, native, file_columns), table.schema, f.lit(False))
    return reduce(DataFrame.unionByName, frames)


def _read_parquet_rows(
    spark: SparkSession, table: SourceTable, file_columns: StructType, chosen: Column | None
) -> DataFrame | None:
    """Reads Parquet files with their own types, and casts the values to the table's types.

    Returns None if Spark can read all files with the table's types.
    """
    native: ReaderOptions = table.ref.native
    session, files = open_session(spark), list_of.files(spark, native)
    try:
        of_files = read_schemas(
            session, _list_paths(files if chosen is None else files.where(chosen))
        )
    except (Py4JJavaError, PySparkException, TableError):
        if native.columns is None:
            raise
        return None  # the error may concern a column that the spec excludes
    names = find_odd_columns(of_files, file_columns)
    if not names:
        return None
    by_types: dict[tuple[object, ...], list[ParquetSchema]] = {}
    for form in of_files:
        types = {c.name.lower(): c.dataType for c in form.schema.fields}
        of_form = tuple((types.get(name), form.nanos.get(name)) for name in names)
        by_types.setdefault(of_form, []).append(form)
    odd = [c for c in file_columns.fields if c.name.lower() in names]
    # A union runs in the session of its first DataFrame, which must be `spark`.
    rows = _arrange_columns(_reader(spark, native, file_columns), table.schema, f.lit(False))
    for first, *others in by_types.values():
        file_types = {c.name.lower(): c.dataType for c in first.schema.fields}
        as_is = {c.name: file_types.get(c.name.lower(), c.dataType) for c in odd}
        read, output = (
            StructType([StructField(c.name, as_is.get(c.name, c.dataType)) for c in schema.fields])
            for schema in (file_columns, table.schema)
        )
        of_forms = f.col(PATH).isin([path for form in (first, *others) for path in form.paths])
        selected = _arrange_columns(_reader(session, native, read), output, of_forms)
        values = {c.name: first.value(c.name, c.dataType, table.ref.name) for c in odd}
        rows = rows.unionByName(selected.withColumns(values))
    return rows


def _read_group(
    spark: SparkSession,
    table: SourceTable,
    group: Group,
    folders: list[StructField],
    several: bool,
    chosen: Column | None,
) -> DataFrame:
    native: ReaderOptions = table.ref.native
    types = {field.name.lower(): field.dataType for field in table.schema.fields}
    wanted = types.keys() - {field.name.lower() for field in folders} - {MODIFIED, PATH}
    if not wanted & {name.lower() for name in group.columns}:
        raise TableError(
            f"the header of {group.paths[0]} has none of the table's columns: it has "
            f"{', '.join(group.columns)}",
            where=f"table {table.ref.name}, column_types",
            remedy="Use the names in the header; or set the option header: 'false' if the files "
            "have no header, or enforceSchema: 'true' to read by position",
        )
    fields = [StructField(n, types.get(n.lower(), StringType())) for n in group.columns]
    folder_fields = [
        StructField(field.name, types.get(field.name.lower(), field.dataType)) for field in folders
    ]
    rows = _reader(spark, group.guard_options(native), StructType([*fields, *folder_fields]))
    if several:
        of_group = f.col(PATH).isin(*group.paths)
        chosen = of_group if chosen is None else chosen & of_group
    return _arrange_columns(rows, table.schema, chosen)


def _arrange_columns(rows: DataFrame, schema: StructType, chosen: Column | None) -> DataFrame:
    existing = {name.lower(): name for name in (*rows.columns, MODIFIED, PATH)}
    rows = rows.withColumns(
        {
            MODIFIED: f.col("_metadata.file_modification_time"),
            PATH: list_of.path(),
            "_cq_block": f.col("_metadata.file_block_start"),
        }
    )
    rows = rows if chosen is None else rows.where(chosen)

    def name_column(field: StructField) -> Column | str:
        existing_name = existing.get(field.name.lower())
        if existing_name is None:
            return f.lit(None).cast(field.dataType).alias(field.name)
        # A name needs fewer Py4J calls than an expression, and there may be thousands of columns.
        name = quote_name(field.name)
        return name if existing_name == field.name else f.col(name).alias(field.name)

    return rows.select(
        *map(name_column, schema.fields),
        "_cq_block",
        f.monotonically_increasing_id().alias("_cq_line"),
    )


def _list_paths(files: DataFrame) -> list[str]:
    return [row[PATH] for row in files.orderBy(MODIFIED, PATH).select(PATH).collect()]


def number_rows(rows: DataFrame, files: DataFrame) -> DataFrame:
    """Adds a row's number (SEQUENCE), by its file's time and path, then by position in the file.

    Spark assigns files to partitions by size, so it does not read the rows in this order. The rows
    are numbered instead of sorted, because sorting would read them twice and shuffle them.

    Args:
        rows: rows with the columns PATH, `_cq_block` and `_cq_line`.
    """
    session: Any = files.sparkSession
    conf = session._jsparkSession.sessionState().conf()
    # Spark splits files into blocks of at least this size.
    block = max(1, min(int(conf.filesOpenCostInBytes()), int(conf.filesMaxPartitionBytes())))
    blocks = f.expr(f"{SIZE} div {block}") + 1
    before = (
        Over.partitionBy(f.lit(0)).orderBy(MODIFIED, PATH).rowsBetween(Over.unboundedPreceding, -1)
    )
    first = f.coalesce(f.sum(blocks).over(before), f.lit(0))
    place = f.col("_cq_first") + f.expr(f"_cq_block div {block}")
    line = f.col("_cq_line").bitwiseAND(f.lit(_LINES - 1))
    first_blocks = files.select(PATH, first.alias("_cq_first"))
    return rows.join(f.broadcast(first_blocks), PATH).withColumn(SEQUENCE, place * _LINES + line)


_PARSED = ("csv", "json")
"""Formats whose readers parse strings into the types of a requested schema."""


def apply_types(
    spark: SparkSession, native: ReaderOptions, schema: t.StructType, where: str
) -> tuple[ReaderOptions, t.StructType]:
    """Applies the spec's types to the columns. Returns the new reader options and columns.

    Args:
        schema: the columns of the files, or the columns that the spec declares.

    Raises:
        TableError: if the spec declares a type for an unknown column.
    """
    by_name = {name.lower(): name for name in schema.names}
    chosen: dict[str, t.DataType] = {}
    for name, text in native.types:
        if name.lower() not in by_name:
            raise unknown_column(name, schema.names, f"{where}, column_types")
        chosen[by_name[name.lower()]] = parse_data_type(text)
    fields = [t.StructField(c.name, chosen.get(c.name, c.dataType)) for c in schema.fields]
    of_folders = {field.name for field in partition_columns(spark, native)} if chosen else set()
    declared = schema.names if native.columns is not None else list(chosen)
    as_read = []
    for name in declared:
        file_type, wanted = schema[name].dataType, chosen.get(name, schema[name].dataType)
        kind = wanted if name in of_folders else _read_as(native, file_type, wanted)
        if kind != wanted:
            as_read.append((name, kind))
    return replace(native, as_read=tuple(as_read)), t.StructType(fields)


def _read_as(native: ReaderOptions, file_type: t.DataType, wanted: t.DataType) -> t.DataType:
    """Returns the type that lets Spark read a column without losing digits."""
    form = native.format.lower()
    if form not in _PARSED:
        return file_type
    if (native.option("mode") or "").lower() not in ("", "failfast"):
        return wanted  # values that do not fit become null
    if form == "json" and native.columns is None and isinstance(file_type, t.StringType):
        return file_type  # the JSON reader would not parse a number in quotes
    if isinstance(wanted, t.DecimalType):
        if form == "json":  # the JSON reader converts numbers to strings through doubles
            return t.DecimalType(38, 38 - (wanted.precision - wanted.scale))
        return wanted if native.option("locale") else t.StringType()
    rounds = form == "csv" and isinstance(wanted, (t.FloatType, t.DoubleType))
    return t.StringType() if rounds else wanted
