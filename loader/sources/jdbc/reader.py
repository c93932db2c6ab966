"""Reads a relation with Spark: its columns, how many rows to fetch at once, conditions on its key.

The columns are asked over a connection that is open already: ``spark.read.jdbc`` opens one for each
reader, only to ask for them. With a password that the driver must hash four thousand times, as
PostgreSQL has it, that takes longer than most reads of a small table.

A driver keeps the fetched rows until the reader has used them, whether a row has a hundred bytes or
a hundred megabytes. Drivers that adapt to what they have seen so far fail at a wide row after
narrow ones; the database's statistics know both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from loader.rows.cursor import Cursor, CursorType
from loader.rows.version_order import quote_name
from loader.sources.jdbc.connections import Connection, spark_options
from loader.sources.jdbc.dialect import Dialect, Extent
from loader.spark.spark_version import jdbc_relation


def read_schema(
    spark: SparkSession, connection: Connection, options: Mapping[str, str], relation: str
) -> StructType:
    """Returns a relation's columns as :func:`read_relation` reads them; Spark plans no read.

    Raises: as :func:`read_relation` does.
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
    """Reads a relation lazily, as ``spark.read.jdbc`` does.

    Args:
        connection: where to ask for the columns; the readers open their own.
        options: Spark's JDBC options, without the relation.
        conditions: one for each partition; without any, there is one.

    Raises:
        DatabaseError: if the database has no such relation.
        PySparkException: if Spark has no type for one of its columns, or two have one name.
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
    """Returns Spark's option to read columns as other types than it would choose."""
    if not types:
        return {}
    return {"customSchema": ", ".join(f"{quote_name(name)} {kind}" for name, kind in types.items())}


def _read_columns(
    spark: SparkSession, connection: Connection, options: Mapping[str, str], relation: str
) -> Any:
    """Returns the columns as Spark's own ``StructType``, in Java."""
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
"""More at once saves nothing."""

UNKNOWN = 1_000
"""Rows at once where values may be long, and the database does not tell how long they are."""

SAMPLE = 100
"""Rows of which the lengths are asked, as a table may store them compressed."""

_BYTES = 8 << 20  # for each reader
_COLUMN = 16  # bytes of a value that is not long, for the driver's own objects
_FEW = 20


def needs_row_width(schema: StructType, rows: int | None) -> bool:
    """Returns whether to ask the database how wide rows are: if they may be of any length.

    Args:
        rows: how many are read; None if that is not known.
    """
    if rows is not None and rows <= _FEW:
        return False
    return any(isinstance(c.dataType, (StringType, BinaryType, ArrayType)) for c in schema.fields)


def choose_fetch_size(
    schema: StructType,
    rows: int | None,
    extent: Extent | None = None,
    sampled: int = 0,
    *,
    whole: bool = False,
) -> int:
    """Returns how many rows to fetch at once.

    Args:
        rows: how many are read; None if that is not known.
        extent: the table's statistics; None if there are none.
        sampled: how many bytes some of its rows have on average; 0 if that was not asked.
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


_NAMED = 2_000  # keys in an SQL list; for more, all rows are read
_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?")


def build_key_predicate(dialect: Dialect, columns: Mapping[str, str], keys: DataFrame) -> str:
    """Returns a where clause that selects at least the rows with these keys; empty selects all.

    A value is compared only if the database and Spark write it as the same text: whole numbers,
    and printable ASCII without blanks at its ends. Any other value may have changed on the way to
    Spark: a date in October 1582, a fraction cut off, bytes in an unknown encoding.

    Args:
        columns: SQL for the key's columns, by their names.
        keys: the keys, in columns of these names.
    """
    types = {name: keys.schema[name].dataType for name in columns}
    if not all(map(_is_comparable, types.values())):
        return ""
    rows = keys.select(*(keys[f"`{name.replace('`', '``')}`"] for name in columns))
    found = rows.distinct().limit(_NAMED + 1).collect()
    if not found or len(found) > _NAMED:
        return ""
    conditions = []
    for row in found:
        literals = [_build_literal(dialect, value) for value in row]
        if None in literals:
            return ""
        pairs = zip(columns.values(), literals, strict=True)
        conditions.append(" and ".join(f"{column} = {literal}" for column, literal in pairs))
    if len(columns) == 1:
        [column] = columns.values()
        values = ", ".join(one.removeprefix(f"{column} = ") for one in conditions)
        return f" where {column} in ({values})"
    return f" where ({') or ('.join(conditions)})"


def _is_comparable(data_type: t.DataType) -> bool:
    if isinstance(data_type, t.DecimalType):
        return data_type.scale == 0
    return isinstance(data_type, (t.IntegralType, t.StringType))


def _build_literal(dialect: Dialect, value: object) -> str | None:
    """Returns a value as an SQL literal; None if it cannot be compared in SQL."""
    if isinstance(value, str):
        return dialect.text(value) if _PLAIN.fullmatch(value) else None
    if value is None:
        return None
    return dialect.literal(Cursor.parse(str(value), CursorType.DECIMAL))
