"""Reads a relation with Spark; its columns are asked over a connection that is open already.

``spark.read.jdbc`` opens a connection for each reader, only to ask for the columns. With a password
that the driver must hash four thousand times, as PostgreSQL has it, that takes longer than most
reads of a small table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from loader.rows.order import quote_name
from loader.sources.jdbc.connection import Connection, spark_options
from loader.spark.spark_line import jdbc_relation


def schema_of(
    spark: SparkSession, connection: Connection, options: Mapping[str, str], relation: str
) -> StructType:
    """Returns a relation's columns as :func:`frame` reads them, without Spark planning a read.

    Raises: as :func:`frame` does.
    """
    jvm: Any = spark._jvm
    columns = _columns(spark, connection, options, relation)
    texts = jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils
    told = texts.replaceCharVarcharWithStringInSchema(columns).json()
    schema = StructType.fromJson(json.loads(told))
    if len({name.lower() for name in schema.names}) < len(schema.names):
        _check_names(spark, columns)
    return schema


def frame(
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
    columns = _columns(spark, connection, options, relation)
    _check_names(spark, columns)
    partitions = session.sparkContext._gateway.new_array(
        jvm.org.apache.spark.Partition, max(1, len(conditions))
    )
    for index, condition in enumerate(conditions or [None]):
        partitions[index] = jdbc.JDBCPartition(condition, index)
    read = jdbc_relation(spark, columns, partitions, spark_options(spark, options, relation))
    return DataFrame(java.baseRelationToDataFrame(read), spark)


def custom_schema(types: Mapping[str, str]) -> dict[str, str]:
    """Returns Spark's option to read columns as other types than it would choose."""
    if not types:
        return {}
    return {"customSchema": ", ".join(f"{quote_name(name)} {kind}" for name, kind in types.items())}


def _columns(
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
    tells_letters = session._jsparkSession.sessionState().conf().caseSensitiveAnalysis()
    session._jvm.org.apache.spark.sql.util.SchemaUtils.checkSchemaColumnNameDuplication(
        columns, tells_letters
    )
