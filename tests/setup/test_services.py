"""The servers that the suite starts have the passwords and time zones that tests assume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest

from tests.services import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVERS = {"postgresql": "org.postgresql.Driver", "mariadb": "org.mariadb.jdbc.Driver"}


def _read_by_spark(spark: SparkSession, database: Database, query: str) -> list[tuple[object, ...]]:
    protocol = database.url.split(":")[1]
    frame = (
        spark.read.format("jdbc")
        .option("url", database.url)
        .option("user", database.user)
        .option("password", database.password)
        .option("driver", _DRIVERS[protocol])
        .option("query", query)
        .load()
    )
    return [tuple(row) for row in frame.collect()]


def test_postgresql_checks_passwords(postgres_database: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(
            host="127.0.0.1",
            port=postgres_database.server.port,
            user=postgres_database.user,
            password="wrong",
            dbname=postgres_database.name,
        )


def test_mariadb_checks_passwords(mariadb_database: Database) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(
            host="127.0.0.1",
            port=mariadb_database.server.port,
            user=mariadb_database.user,
            password="wrong",
        )


def test_each_server_has_its_own_time_zone(
    postgres_database: Database, mariadb_database: Database
) -> None:
    assert postgres_database.query("show timezone") == [("America/New_York",)]
    assert mariadb_database.query("select @@session.time_zone") == [("+05:00",)]


def test_spark_reads_postgresql(spark: SparkSession, postgres_database: Database) -> None:
    postgres_database.execute("create table tide (height int)", "insert into tide values (42)")

    assert _read_by_spark(spark, postgres_database, "select height from tide") == [(42,)]


def test_spark_reads_mariadb(spark: SparkSession, mariadb_database: Database) -> None:
    mariadb_database.execute("create table tide (height int)", "insert into tide values (42)")

    # MariaDB quotes with backticks, Spark's generic JDBC dialect with double quotes.
    ansi = Database(
        mariadb_database.server, f"{mariadb_database.name}?sessionVariables=sql_mode='ANSI_QUOTES'"
    )
    assert _read_by_spark(spark, ansi, "select height from tide") == [(42,)]


def test_the_session_is_in_utc_on_a_machine_that_is_not(
    spark: SparkSession, warehouse: Path
) -> None:
    spark.sql("create namespace if not exists zones")
    spark.sql("create table zones.noon (at timestamp) using iceberg")
    spark.sql("insert into zones.noon values (timestamp '2025-06-01 12:00:00')")

    micros = spark.sql("select unix_micros(at) from zones.noon").collect()[0][0]

    assert micros == 1_748_779_200_000_000
    assert spark.sql("select date_format(at, 'HH:mm') from zones.noon").collect()[0][0] == "12:00"
    assert (warehouse / "zones" / "noon" / "metadata").is_dir()
