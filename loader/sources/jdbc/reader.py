"""Reads a relation with Spark's JDBC reader. Chooses fetch sizes and builds key conditions.

``spark.read.jdbc`` opens a connection just to read the schema. For a small table this takes longer
than the read itself, because PostgreSQL makes the driver hash the password thousands of times. The
schema is therefore read with a connection that is already open.

A driver keeps all fetched rows in memory, regardless of their size. A driver that adapts its fetch
size to earlier rows fails when large rows follow small ones. The fetch size is therefore derived
from the database's statistics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from loader.rows.cursor import Cursor, CursorType
from loader.rows.exact_cast import cast_exactly
from loader.rows.version_order import quote_name
from loader.sources.jdbc.connections import Connection, spark_options
from loader.sources.jdbc.dialect import Dialect, TableSize
from loader.spark.spark_version import jdbc_relation


def read_schema(
    spark: SparkSession, connection: Connection, options: Mapping[str, str], relation: str
) -> StructType:
    """Returns the schema that :func:`read_relation` would use.

    Raises:
        DatabaseError, PySparkException: as in :func:`read_relation`.
    """
    jvm: Any = spark._jvm
    columns = _read_columns(spark, connection, options, relation)
    texts = jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils
    fields = texts.replaceCharVarcharWithStringInSchema(columns).json()
    schema = StructType.fromJson(json.loads(fields))
    if len({name.lower() for name in schema.names}) < len(schema.names):
        _check_names(spark, columns)
    return schema


def read_relation(
    spark: SparkSession,
    connection: Connection,
    options: Mapping[str, str],
    relation: str,
    conditions: Sequence[str] = (),
) -> DataFrame:
    """Lazily reads a relation, as ``spark.read.jdbc`` does.

    Args:
        connection: the connection that is used to read the schema. The readers open their own.
        conditions: a condition for each partition; by default one partition reads all rows.

    Raises:
        DatabaseError: if the relation does not exist.
        PySparkException: if a column's type is not supported, or if two columns have the same name.
    """
    session: Any = spark
    java, jvm = session._jsparkSession, session._jvm
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
    columns = _read_columns(spark, connection, options, relation)
    _check_names(spark, columns)
    partitions = session.sparkContext._gateway.new_array(
        jvm.org.apache.spark.Partition, max(1, len(conditions))
    )
    for index, condition in enumerate(conditions or [None]):
        partitions[index] = jdbc.JDBCPartition(condition, index)
    read = jdbc_relation(spark, columns, partitions, spark_options(spark, options, relation))
    return DataFrame(java.baseRelationToDataFrame(read), spark)


def build_custom_schema(types: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark option that sets the types of columns."""
    if not types:
        return {}
    return {"customSchema": ", ".join(f"{quote_name(name)} {kind}" for name, kind in types.items())}


_RECAST = (
    (TimestampNTZType(), TimestampType()),
    (ArrayType(TimestampType()), ArrayType(TimestampNTZType())),
)
"""Pairs of types for times: the one that Spark's reader may choose, and the correct one."""


def restore_columns(
    rows: DataFrame, schema: StructType, as_texts: Collection[int], others: Sequence[str] = ()
) -> DataFrame:
    """Converts the columns that Spark's reader returns to a table's names and types.

    Args:
        schema: the table's columns, in the order of the rows' columns.
        as_texts: the positions of columns that the database sent as strings.
        others: additional columns that follow the table's columns.
    """
    fields = rows.schema.fields
    names = [field.name for field in fields]
    if len({name.lower() for name in names}) < len(names):  # Spark cannot address them by name
        names = [*schema.names, *others]
        rows = rows.toDF(*names)

    def convert(i: int, column: StructField) -> Column:
        value = f.col(quote_name(names[i]))
        if i in as_texts:
            return cast_exactly(value, column.dataType, column.name)
        must_cast = (fields[i].dataType, column.dataType) in _RECAST
        return value.cast(column.dataType) if must_cast else value

    columns = (convert(i, column).alias(column.name) for i, column in enumerate(schema.fields))
    return rows.select(*columns, *others)


def _read_columns(
    spark: SparkSession, connection: Connection, options: Mapping[str, str], relation: str
) -> Any:
    session: Any = spark
    jvm = session._jvm
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
    columns = connection.columns(dialect, dialect.getSchemaQuery(relation))
    chosen = options.get("customSchema")
    if chosen:
        resolver = session._jsparkSession.sessionState().conf().resolver()
        utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        columns = utils.getCustomSchema(columns, chosen, resolver)
    return columns


def _check_names(spark: SparkSession, columns: Any) -> None:
    session: Any = spark
    is_case_sensitive = session._jsparkSession.sessionState().conf().caseSensitiveAnalysis()
    session._jvm.org.apache.spark.sql.util.SchemaUtils.checkSchemaColumnNameDuplication(
        columns, is_case_sensitive
    )


MOST_ROWS = 10_000
"""The maximum fetch size. A larger fetch size saves no time."""

UNKNOWN = 1_000
"""The maximum fetch size if values may be long and there are no statistics."""

SAMPLE = 100
"""The number of rows to measure, because statistics contain the compressed size of long values."""

_BYTES = 8 << 20  # the memory for the rows of one fetch
_COLUMN = 16  # the bytes in memory for each fixed-size value
_FEW = 20


def needs_row_width(schema: StructType, rows: int | None) -> bool:
    if rows is not None and rows <= _FEW:
        return False
    return any(isinstance(c.dataType, (StringType, BinaryType, ArrayType)) for c in schema.fields)


def choose_fetch_size(
    schema: StructType,
    rows: int | None,
    extent: TableSize | None = None,
    sampled: int = 0,
    *,
    whole: bool = False,
) -> int:
    """Returns the number of rows to fetch per round trip.

    Args:
        extent: the table's size according to statistics; None if there are none.
        sampled: the average size of a row in a sample, in bytes; 0 if there is no sample.
        whole: whether all rows of the table are read.
    """
    width = max(_COLUMN * len(schema.fields), sampled)
    most = MOST_ROWS
    if needs_row_width(schema, rows):
        counted = extent and (extent.rows or (rows if whole else 0))
        if extent is not None and counted:
            width = max(width, extent.size // counted)
        else:
            most = UNKNOWN
    return max(1, min(most, _BYTES // width))


_MAX_KEYS = 2_000  # keys in an SQL list; if there are more, all rows are read
_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?")


def build_key_predicate(dialect: Dialect, columns: Mapping[str, str], keys: DataFrame) -> str:
    """Returns a WHERE clause that selects at least the rows that have these keys.

    Only integers and printable ASCII strings without leading or trailing spaces can be compared.
    Other values may differ between the database and Spark, for example dates in October 1582,
    truncated fractions, and bytes in an unknown encoding. For such keys, the result is an empty
    string, which selects all rows.

    Args:
        columns: SQL for each key column, keyed by name.
        keys: the keys, in columns that have the same names.
    """
    types = {name: keys.schema[name].dataType for name in columns}
    if not all(map(_is_comparable, types.values())):
        return ""
    rows = keys.select(*(keys[quote_name(name)] for name in columns))
    distinct = rows.distinct().limit(_MAX_KEYS + 1).collect()
    if not distinct or len(distinct) > _MAX_KEYS:
        return ""
    conditions = []
    for row in distinct:
        literals = [_build_literal(dialect, value) for value in row]
        if None in literals:
            return ""
        pairs = zip(columns.values(), literals, strict=True)
        conditions.append(" and ".join(f"{column} = {literal}" for column, literal in pairs))
    if len(columns) == 1:
        [column] = columns.values()
        values = ", ".join(condition.removeprefix(f"{column} = ") for condition in conditions)
        return f" where {column} in ({values})"
    return f" where ({') or ('.join(conditions)})"


def _is_comparable(data_type: t.DataType) -> bool:
    if isinstance(data_type, t.DecimalType):
        return data_type.scale == 0
    return isinstance(data_type, (t.IntegralType, t.StringType))


def _build_literal(dialect: Dialect, value: object) -> str | None:
    """Formats a value as an SQL literal. Returns None if it may differ in the database."""
    if isinstance(value, str):
        return dialect.text(value) if _PLAIN.fullmatch(value) else None
    if value is None:
        return None
    return dialect.literal(Cursor.parse(str(value), CursorType.DECIMAL))
