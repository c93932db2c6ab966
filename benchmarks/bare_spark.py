"""A first load into an Iceberg table, as people write it by hand.

    python bare_spark.py jdbc WAREHOUSE URL USER TABLE KEY    in four partitions of the key
    python bare_spark.py files WAREHOUSE FORMAT FOLDER TABLE  a CSV has a header

BENCH_PASSWORD contains the database's password, and BENCH_JARS the jars of Iceberg and the driver.
The script uses none of the loader's code, only its Spark installation, and the settings in the
loader's profile that affect its speed.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
FETCHED = 10_000


def open_session(warehouse: str) -> SparkSession:
    """Starts Spark with a catalog in a folder."""
    return (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.jars", os.environ["BENCH_JARS"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", warehouse)
        .getOrCreate()
    )


def read_table(spark: SparkSession, url: str, user: str, table: str, key: str) -> DataFrame:
    """Reads a table of a database."""
    reader = (
        spark.read.format("jdbc")
        .option("url", url)
        .option("user", user)
        .option("password", os.environ["BENCH_PASSWORD"])
        .option("driver", "org.postgresql.Driver")
        .option("fetchsize", FETCHED)
    )
    # Spark needs the range as an option, so users query it first.
    asked = f"(select min({key}) as low, max({key}) as high from {table}) as bounds"
    bounds = reader.option("dbtable", asked).load().first()
    assert bounds is not None
    return (
        reader.option("dbtable", table)
        .option("partitionColumn", key)
        .option("lowerBound", bounds.low)
        .option("upperBound", bounds.high + 1)
        .option("numPartitions", PARTITIONS)
        .load()
    )


def read_files(spark: SparkSession, form: str, folder: str) -> DataFrame:
    """Reads the files of a folder."""
    reader = spark.read.format(form)
    return (reader.option("header", "true") if form == "csv" else reader).load(folder)


def main(kind: str, warehouse: str, *given: str) -> None:
    """Loads one table, and prints the number of rows that Iceberg reports."""
    spark = open_session(warehouse)
    if kind == "jdbc":
        url, user, table, key = given
        frame = read_table(spark, url, user, table, key)
    else:
        form, folder, table = given
        frame = read_files(spark, form, folder)
    frame.writeTo(f"lake.raw.{table}").using("iceberg").create()
    print(spark.table(f"lake.raw.{table}.snapshots").first().summary["total-records"])  # type: ignore[union-attr]
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
