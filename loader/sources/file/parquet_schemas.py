"""Merges the schemas of Parquet files whose columns have different types.

Spark merges columns only if their types are equal, and it does not support times in nanoseconds. If
Spark fails for one of these reasons, this module reads the footers of the files instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.errors import TableError
from loader.rows.version_order import quote_name

_READERS = 16
_NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"
_SIZES: dict[type[t.DataType], int] = {
    t.ByteType: 1,
    t.ShortType: 2,
    t.IntegerType: 4,
    t.LongType: 8,
    t.FloatType: 4,
    t.DoubleType: 8,
}
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_BROKEN = (t.FloatType, t.DoubleType)


@dataclass(frozen=True)
class ParquetSchema:
    """A schema that some of the files share.

    Attributes:
        schema: the columns as Spark reads them. Times in nanoseconds are read as bigint.
        nanos: the timestamp types of the columns with times in nanoseconds, keyed by lower-case
            name.
        paths: the files, in the format of :data:`loader.sources.file.listing.PATH`.
    """

    schema: t.StructType
    nanos: dict[str, t.DataType]
    paths: tuple[str, ...]

    @property
    def types(self) -> dict[str, t.DataType]:
        return {
            c.name.lower(): self.nanos.get(c.name.lower(), c.dataType) for c in self.schema.fields
        }

    def value(self, name: str, wanted: t.DataType, where: str) -> Column:
        """Casts a column to its type in the table. Reading fails on sub-microsecond precision."""
        value = f.col(quote_name(name))
        if name.lower() in self.nanos and not isinstance(wanted, t.LongType):
            too_precise = (
                f"column {name} of {where} contains a timestamp with sub-microsecond precision"
            )
            micros = f.timestamp_micros(f.call_function("div", value, f.lit(1000)))
            value = f.when(value % 1000 == 0, micros).when(
                value.isNotNull(), f.raise_error(too_precise)
            )
        return value.cast(wanted)


def open_session(spark: SparkSession) -> SparkSession:
    """Returns a session that reads times in nanoseconds as bigint."""
    session = spark.newSession()
    session.conf.set(_NANOS_AS_LONG, "true")
    return session


def read_schemas(spark: SparkSession, paths: Sequence[str]) -> list[ParquetSchema]:
    """Groups Parquet files by schema.

    Args:
        spark: a session from :func:`open_session`.

    Raises:
        Py4JJavaError: if a file is not a Parquet file.
        TableError: if a struct, an array or a map contains times in nanoseconds.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        footers = list(pool.map(lambda path: _footer(spark, path), paths))
    by_text: dict[str, list[str]] = {}
    for path, text in zip(paths, footers, strict=True):
        by_text.setdefault(text, []).append(path)
    return [_parse(spark, text, of_text) for text, of_text in by_text.items()]


def _parse(spark: SparkSession, text: str, paths: Sequence[str]) -> ParquetSchema:
    session: Any = spark
    jvm = session._jvm
    message = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(text)
    parquet = jvm.org.apache.spark.sql.execution.datasources.parquet
    conf = session._jsparkSession.sessionState().conf()
    read = parquet.ParquetToSparkSchemaConverter(conf).convert(message).asNullable()
    schema = t.StructType.fromJson(json.loads(read.json()))
    return ParquetSchema(schema, _nanos(message, paths[0]), tuple(paths))


def _file(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))


def _footer(spark: SparkSession, path: str) -> str:
    session: Any = spark
    parquet = session._jvm.org.apache.parquet.hadoop
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    file = parquet.util.HadoopInputFile.fromPath(_file(spark, path), hadoop)
    reader = parquet.ParquetFileReader.open(file)
    try:
        return str(reader.getFileMetaData().getSchema().toString())
    finally:
        reader.close()


def _nanos(schema: Any, path: str) -> dict[str, t.DataType]:
    types: dict[str, t.DataType] = {}
    for column in schema.getColumns():
        kind = str(column.getPrimitiveType().getLogicalTypeAnnotation())
        name = ".".join(column.getPath())
        if not kind.startswith("TIMESTAMP(NANOS,"):
            continue
        if len(column.getPath()) > 1:
            raise TableError(
                f"the column {name} of {path} has times in nanoseconds within a nested value",
                remedy="Write it in microseconds (pyarrow: coerce_timestamps='us'), or exclude the "
                "column with the table's `column_types`",
            )
        zoned = kind.endswith("true)")
        types[name.lower()] = t.TimestampType() if zoned else t.TimestampNTZType()
    return types


def merge_schemas(schemas: Sequence[ParquetSchema]) -> t.StructType:
    """Returns columns whose types can represent the values in all files.

    Raises:
        TableError: if two files have different types for a column, and no type fits both.
    """
    columns: dict[str, t.StructField] = {}
    first: dict[str, str] = {}
    for form in schemas:
        for name, data_type in form.types.items():
            existing = columns.get(name)
            first.setdefault(name, form.paths[0])
            both = data_type if existing is None else widen(existing.dataType, data_type)
            if both is None and existing is not None:
                raise TableError(
                    f"the column {existing.name} is {existing.dataType.simpleString()} in "
                    f"{first[name]} and {data_type.simpleString()} in {form.paths[0]}",
                    remedy="Write it with one type in all files, or define two tables with "
                    "patterns as `path`",
                )
            shown = existing.name if existing is not None else _name_in(form, name)
            columns[name] = t.StructField(shown, both or data_type)
    return t.StructType(list(columns.values()))


def _name_in(form: ParquetSchema, name: str) -> str:
    return next(c.name for c in form.schema.fields if c.name.lower() == name)


def find_odd_columns(schemas: Iterable[ParquetSchema], schema: t.StructType) -> tuple[str, ...]:
    """Returns the columns that, in some files, Spark cannot read with the table's type."""
    schemas = list(schemas)
    odd = {name for form in schemas for name in form.nanos}
    for field in schema.fields:
        name = field.name.lower()
        if isinstance(field.dataType, (t.StructType, t.ArrayType, t.MapType)):
            continue  # Spark reads missing nested fields as null
        other_types = {form.types.get(name, field.dataType) for form in schemas} - {field.dataType}
        if any(widen(kind, field.dataType) == field.dataType for kind in other_types):
            odd.add(name)
    return tuple(sorted(odd))


def widen(one: t.DataType, other: t.DataType, within: bool = False) -> t.DataType | None:
    """Returns a type that can represent the values of both types, or None if there is none.

    The rules are those of raw tables (docs/drift.md).

    Args:
        within: whether the types are nested in another type, where Spark requires them to be equal.
    """
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields = {field.name: field for field in one.fields}
        for field in other.fields:
            existing = fields.get(field.name)
            both = (
                field.dataType
                if existing is None
                else widen(existing.dataType, field.dataType, True)
            )
            if both is None:
                return None
            fields[field.name] = t.StructField(field.name, both)
        return t.StructType(list(fields.values()))
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        element = widen(one.elementType, other.elementType, True)
        return None if element is None else t.ArrayType(element)
    if isinstance(one, t.MapType) and isinstance(other, t.MapType):
        value = widen(one.valueType, other.valueType, True)
        same = one.keyType == other.keyType
        return t.MapType(one.keyType, value) if same and value is not None else None
    if one == other or within:
        return one if one == other else None
    if isinstance(one, t.DecimalType) and isinstance(other, t.DecimalType):
        return max(one, other, key=lambda d: d.precision) if one.scale == other.scale else None
    for kind in (_WHOLE, _BROKEN):
        if isinstance(one, kind) and isinstance(other, kind):
            return max(one, other, key=lambda number: _SIZES[type(number)])
    return None
