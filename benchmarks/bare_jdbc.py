"""A first load as people write it by hand: ``python bare_jdbc.py URL USER TABLE KEY WAREHOUSE``.

Spark's JDBC reader in four partitions of the key, into an Iceberg table. The password comes in
BENCH_PASSWORD, Iceberg's jar and the driver's in BENCH_JARS. It uses nothing of ours but the Spark
installation; settings are those of our profile that matter for its speed.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

PARTITIONS = 4
FETCHED = 10_000


def main(url: str, user: str, table: str, key: str, warehouse: str) -> None:
    """Loads the table; prints how many rows Iceberg says that it has."""
    spark = (
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
    reader = (
        spark.read.format("jdbc")
        .option("url", url)
        .option("user", user)
        .option("password", os.environ["BENCH_PASSWORD"])
        .option("driver", "org.postgresql.Driver")
        .option("fetchsize", FETCHED)
    )
    # Spark wants to be told the range: people ask for it first.
    asked = f"(select min({key}) as low, max({key}) as high from {table}) as bounds"
    bounds = reader.option("dbtable", asked).load().first()
    assert bounds is not None
    frame = (
        reader.option("dbtable", table)
        .option("partitionColumn", key)
        .option("lowerBound", bounds.low)
        .option("upperBound", bounds.high + 1)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    frame.writeTo(f"lake.raw.{table}").using("iceberg").create()
    print(spark.table(f"lake.raw.{table}.snapshots").first().summary["total-records"])  # type: ignore[union-attr]
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
