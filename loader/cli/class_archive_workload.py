"""Workload for recording Java's class archive: small syncs and the SQL of a build.

:mod:`loader.spark.class_archive` runs ``python -m loader.cli.class_archive_workload FOLDER`` in a
new process and folder. The archive contains the classes that this workload loads, so the workload
goes through the steps of a normal run, with a few rows.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from py4j.protocol import Py4JJavaError

from loader.errors import LoaderError
from loader.spark.class_archive import JVM_FILE
from loader.spark.jars import DRIVERS, find_drivers
from loader.spark.profile import Profile
from loader.spark.session import session
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPEC = """\
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
  spec:
    url: "jdbc:derby:shop"
    table_options: {orders: {cursor_field: updated_at}}
---
kind: source
spec:
  name: drop
  path: file
  tables: [events]
  destinations: [lake]
  spec: {path: drop, format: csv, table_options: {events: {primary_key: id}}}
---
kind: destination
spec: {name: lake, path: spark, spec: {schema: raw}}
"""
# The settings of profiles/profiles.yml that determine which classes are loaded.
_CONF = {
    "spark.master": "local[*]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -Dderby.stream.error.file=/dev/null",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.defaultCatalog": "lake",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
_SOURCE = (
    "create table orders (id int primary key, note varchar(9), amount decimal(9, 2), "
    "updated_at timestamp)",
    "insert into orders values (1, 'a', 1.50, timestamp('2025-01-01 00:00:00.5')), "
    "(2, null, null, timestamp('2025-01-02 00:00:00'))",
)
_SOURCE_CHANGES = ("insert into orders values (3, 'c', 3, timestamp('2025-01-03 00:00:00'))",)
# The SQL of a build: queries of the dbt package's materializations and tests.
_NEWEST = """
select newest.* from (
    select max_by(struct(*), struct(_cq_generation, updated_at, _cq_batch, _cq_seq)) as newest
    from raw.orders where _cq_batch > {low} group by id
)"""
_BUILD = (
    "create namespace if not exists analytics",
    "show tables in analytics",
    "select max(_cq_batch), max(_cq_generation) from (select * from raw.orders) as versions",
    "create or replace table analytics.orders using iceberg tblproperties "
    "('format-version' = '2', 'write.merge.mode' = 'merge-on-read', 'made.by' = 'setup') as "
    + _NEWEST.format(low=0),
    "describe extended analytics.orders",
    "show tblproperties analytics.orders",
    f"merge into analytics.orders as target using ({_NEWEST.format(low=1)}) as delta "
    "on target.id <=> delta.id when matched and delta._cq_deleted then delete "
    "when matched then update set * when not matched then insert *",
    "alter table analytics.orders set tblproperties ('strandline.watermark' = '2')",
    "alter table analytics.orders alter column note comment 'a note'",
    "select id, count(*) from analytics.orders group by id having count(*) > 1",
    "select a.id from analytics.orders a full outer join raw.orders b on a.id = b.id "
    "where a.id is null or b.id not in (select id from analytics.orders) limit 5",
    "select snapshot_id, summary['total-records'] from analytics.orders.snapshots",
    "create or replace temporary view looked_at as select * from raw._cq_syncs",
    "select get_json_object(value, '$.cursor') from raw._cq_state order by version desc limit 1",
)


def main(folder: Path) -> None:
    """Syncs, runs the SQL of a build, and waits for the JVM to exit."""
    (folder / "loader.yml").write_text(_SPEC)
    (folder / "drop" / "events").mkdir(parents=True)
    (folder / "drop" / "events" / "one.csv").write_text("id,name\n1,first\n2,second\n")
    conf = {**_CONF, "spark.sql.catalog.lake.warehouse": str(folder / "warehouse")}
    spark = session(Profile("strandline", "embedded", "analytics", conf, folder))
    gateway: Any = spark.sparkContext._gateway
    class_path = str(gateway.jvm.java.lang.System.getProperty("java.class.path"))
    info = {"group": gateway.proc.pid, "class_path": class_path.split(os.pathsep)}
    (folder / JVM_FILE).write_text(json.dumps(info))
    try:
        spark.sparkContext.setLogLevel("OFF")
        _load_drivers(spark)
        for statements in (_SOURCE, _SOURCE_CHANGES):
            _execute(spark, statements)
            _sync(spark, folder)
        _sync(spark, folder)  # no new rows
        for statement in _BUILD:
            spark.sql(statement).collect()
    finally:
        _end(spark)


def _load_drivers(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    jvm.javax.crypto.Mac.getInstance("HmacSHA256")  # used for most databases' passwords
    classes = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in find_drivers():
        if not any(driver.owns(jar.name) for driver in DRIVERS.values()):
            continue
        for name in classes_in(jar):
            with suppress(Py4JJavaError):  # the class needs a library that is not installed
                jvm.java.lang.Class.forName(name, False, classes)


def classes_in(jar: Path) -> list[str]:
    """Returns the names of a jar's classes. Ignores a damaged jar, as Java does."""
    try:
        with ZipFile(jar) as archive:
            files = archive.namelist()
    except (OSError, BadZipFile):
        return []
    return [
        name.removesuffix(".class").replace("/", ".") for name in files if name.endswith(".class")
    ]


def _execute(spark: SparkSession, statements: tuple[str, ...]) -> None:
    jvm: Any = spark._jvm
    connection = jvm.java.sql.DriverManager.getConnection("jdbc:derby:shop;create=true")
    for statement in statements:
        connection.createStatement().execute(statement)
    connection.close()


def _sync(spark: SparkSession, folder: Path) -> None:
    pipeline = Pipeline(load_spec(folder / "loader.yml"), spark)
    for outcome in run_tables(pipeline, Watch()):
        if outcome.error is not None:
            raise outcome.error


def _end(spark: SparkSession) -> None:
    """Stops Spark. Unlike PySpark, waits until the JVM has written the archive."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except LoaderError as error:
        sys.exit(str(error))
