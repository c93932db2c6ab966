"""Spark's reader of a relation, whose columns are asked over a connection that is open already.

``spark.read.jdbc`` opens a connection for each reader, only to ask for the columns. With a password
that the driver must hash four thousand times, as PostgreSQL has it, that takes longer than most
reads of a small table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from loader.sources.jdbc.connection import Connection, spark_options


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
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
    columns = connection.columns(dialect, dialect.getSchemaQuery(relation))
    chosen = options.get("customSchema")
    if chosen:
        resolver = java.sessionState().conf().resolver()
        columns = jdbc.JdbcUtils.getCustomSchema(columns, chosen, resolver)
    tells_letters = java.sessionState().conf().caseSensitiveAnalysis()
    jvm.org.apache.spark.sql.util.SchemaUtils.checkSchemaColumnNameDuplication(
        columns, tells_letters
    )
    partitions = session.sparkContext._gateway.new_array(
        jvm.org.apache.spark.Partition, max(1, len(conditions))
    )
    for index, condition in enumerate(conditions or [None]):
        partitions[index] = jdbc.JDBCPartition(condition, index)
    read = jdbc.JDBCRelation(columns, partitions, spark_options(spark, options, relation), java)
    return DataFrame(java.baseRelationToDataFrame(read), spark)
