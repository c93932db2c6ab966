"""Creates the Spark session from the profile's target: loader and dbt share one definition."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loader.errors import SpecError
from loader.spark import jvm
from loader.spark.class_path import lacks_iceberg
from loader.spark.spark_version import find_spark, silence_query_log
from loader.spec.redaction import java_regex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from loader.spark.profile import Profile

SUBSTITUTION = "spark.sql.variable.substitute"
"""By default, Spark replaces `${env:NAME}` in all SQL, in quoted names and literals, too: a
column's name could read the environment."""

# Settings that the loader needs, overruling the profile: UTC everywhere, and names that stay as
# they are. The JVM's zone is UTC too: JDBC drivers build wall-clock times in it.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    # Bytes that are no characters become U+FFFD, which readers look for to name the file; Spark 4
    # would end the read without a name.
    "spark.sql.legacy.codingErrorAction": "true",
    SUBSTITUTION: "false",
}

# Limits the history of finished jobs that Spark keeps for its unused UI: in a process that
# runs for weeks that is hundreds of megabytes.
_FORGOTTEN = {
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}

# The classes that Spark compiles for a query are kept for the next query of that form. Each build
# of one snapshot and its proofs needs more than the hundred that Spark keeps, so a warm process
# would compile all of them again, build after build: a third of what its proofs cost.
_COMPILED = {"spark.sql.codegen.cache.maxEntries": "1000"}

_SIMPLE = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.datetime.java8API.enabled": "true",  # times that `hold_rows` keeps
}

# Parquet writes a checksum of each page; by default none is verified. See `_skip_checksums`.
_VERIFIED = {"spark.hadoop.parquet.page.verify-checksum.enabled": "true"}

_MASKED = "spark.redaction.regex"
_BETWEEN = "\x1f"  # ASCII's unit separator, which no setting contains

_DRIVERS = (
    "org.postgresql",
    "org.mariadb",
    "com.mysql",
    "oracle",
    "com.microsoft",
    "net.snowflake",
)


def begin(profile: Profile) -> None:
    """Begins to start Spark's JVM, and does not wait: :func:`session` does."""
    jvm.begin(settings(profile.conf, profile.secrets))


def session(profile: Profile) -> SparkSession:
    """Starts Spark, or joins the session that this process has.

    Raises:
        SpecError: if PySpark, the Iceberg runtime or Java is missing, or Spark does not start.
    """
    wanted = settings(profile.conf, profile.secrets)
    if lacks_iceberg(find_spark(), wanted):
        raise SpecError(
            "Spark lacks the Iceberg runtime", where="Spark", remedy="Run `loader setup`"
        )
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Workers take `python3` from PATH by default.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    silence_query_log()
    builder = SparkSession.builder.appName("strandline")
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        jvm.start(wanted)
        with _handlers_kept():
            spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError, Py4JJavaError) as error:
        lines = str(getattr(error, "java_exception", None) or error).strip().splitlines()
        what = (lines or [type(error).__name__])[0].rstrip(".")
        if "stopped SparkContext" in what:  # its own reason is in its log only
            what = f"no answer from the master {wanted.get('spark.master', '')}"
        raise SpecError(
            f"Spark does not start: {what}",
            where=f"{profile.path}, target {profile.target}",
            remedy="Check the target's server_side_parameters, and `loader setup`",
        ) from error
    _require(spark)
    _skip_checksums(spark)
    return spark


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keeps PySpark from putting its own handler of SIGINT in the place of ours.

    It would call the JVM in the middle of another call, whose connection then breaks.
    """
    from pyspark import SparkContext

    pyspark: Any = sys.modules[SparkContext.__module__]
    real = pyspark.signal
    pyspark.signal = SimpleNamespace(SIGINT=real.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        pyspark.signal = real


def settings(conf: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Returns the profile's settings, and those that the protocol relies on.

    Args:
        secrets: keys whose values Spark must mask in its event log and its UI, besides those
            whose names say so.
    """
    catalog = conf.get("spark.sql.defaultCatalog", "spark_catalog")
    uncached = {f"spark.sql.catalog.{catalog}.cache-enabled": "false"}
    masked = {_MASKED: java_regex(conf.get(_MASKED), secrets)}
    own = {**uncached, **_FORGOTTEN, **_COMPILED, **_VERIFIED}
    return {**own, **conf, **_REQUIRED, **_executor_zone(conf), **masked}


def sibling(spark: SparkSession) -> SparkSession:
    """Returns a session with its own settings and temporary views, on the same Spark."""
    fresh = spark.newSession()
    for key, value in _sql_settings(spark).items():
        fresh.conf.set(key, value)
    return fresh


def _sql_settings(spark: SparkSession) -> dict[str, str]:
    prefixes = ("spark.sql.catalog.", "spark.sql.session.", "spark.sql.default")
    partitions = "spark.sql.shuffle.partitions"
    found = {k: v for k, v in _all_settings(spark).items() if k.startswith((*prefixes, partitions))}
    return {**found, **_REQUIRED}


def silence_drivers(spark: SparkSession) -> None:
    """Keeps database drivers from logging: they repeat URLs, and passwords in them, as they are."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for package in _DRIVERS:
        log4j.core.config.Configurator.setLevel(package, log4j.Level.OFF)


def plan_simply(spark: SparkSession) -> None:
    """Turns off optimizations that do not pay for queries over a few thousand rows.

    Code generated for a query, stages that are planned again halfway and several partitions then
    cost more CPU than they save.
    """
    for key, value in _SIMPLE.items():
        spark.conf.set(key, value)


def hold_rows(rows: DataFrame) -> DataFrame:
    """Runs a query over a few thousand rows and returns them as a frame that the driver holds.

    Further queries of it need no other source, and most of them no job. Call :func:`plan_simply`
    before. Texts must be valid UTF-8, as a database driver's are: they pass through Java's strings.
    """
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    found: Any = rows._jdf
    return DataFrame(
        spark._jsparkSession.createDataFrame(found.collectAsList(), found.schema()), spark
    )


def plan_now(rows: DataFrame) -> DataFrame:
    """Returns rows whose query is planned already, so that tables that it reads may be altered.

    Spark 4.1 resolves each table again when a query runs, and refuses other columns than before.
    """
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    found: Any = rows._jdf
    planned = found.queryExecution().toRdd()
    made = spark._jsparkSession.internalCreateDataFrame(planned, found.schema(), False)
    return DataFrame(made, spark)


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """Returns a frame without rows. PySpark's own takes a second to start a process for them."""
    from pyspark.sql import DataFrame

    session: Any = spark
    kind = session._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    rows = session._jvm.java.util.ArrayList()
    return DataFrame(session._jsparkSession.createDataFrame(rows, kind), spark)


@contextmanager
def restore_settings(spark: SparkSession) -> Iterator[None]:
    """Puts a session's settings back afterwards: dbt writes its profile's, and models their own."""
    before = _all_settings(spark)
    try:
        yield
    finally:
        for key, value in _all_settings(spark).items():
            if before.get(key) != value:
                with suppress(Exception):  # a static one, which a session cannot change
                    if key in before:
                        spark.conf.set(key, before[key])
                    else:
                        spark.conf.unset(key)


def _all_settings(spark: SparkSession) -> dict[str, str]:
    every: Any = spark._jsparkSession.conf().getAll()
    # In one text, as each call to the JVM costs, and a table needs a session.
    pairs = (pair.partition(" -> ") for pair in every.mkString(_BETWEEN).split(_BETWEEN))
    return {key: value for key, _, value in pairs}


def _require(spark: SparkSession) -> None:
    """Applies the settings that the loader needs, also to a session that was started elsewhere."""
    jvm: Any = spark._jvm
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone("UTC"))
    for key, value in _REQUIRED.items():
        spark.conf.set(key, value)


def _skip_checksums(spark: SparkSession) -> None:
    """Keeps Hadoop from writing a second file, `.name.crc`, beside each file in a local folder.

    Hadoop starts `chmod` for each of the two, 4 ms each, and a small batch writes many files. Other
    engines neither write nor read these sums. Those of Parquet's pages are in the file itself,
    wherever it lies, and are verified instead; metadata has none.
    """
    jvm: Any = spark._jvm
    local = jvm.java.net.URI.create("file:///")
    configured = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.get(local, configured).setWriteChecksum(False)


def _executor_zone(conf: Mapping[str, str]) -> dict[str, str]:
    key = "spark.executor.extraJavaOptions"
    given = conf.get(key, "")
    return {key: given if "user.timezone" in given else f"{given} -Duser.timezone=UTC".strip()}


def describe_jobs(spark: SparkSession, table: str) -> None:
    """Names this thread's jobs after the table, in Spark's UI and for :func:`rows_written`."""
    spark.sparkContext.setLocalProperty("spark.job.description", table)


def rows_written(spark: SparkSession, table: str) -> int | None:
    """Counts the rows that running stages named by :func:`describe_jobs` have read or written."""
    try:
        context: Any = spark.sparkContext._jsc.sc()
        stages = context.statusStore().activeStages().iterator()
        done = None
        while stages.hasNext():
            stage = stages.next()
            described = stage.description()
            if described.isDefined() and described.get() == table:
                done = (done or 0) + max(stage.outputRecords(), stage.inputRecords())
        return done
    except Exception:  # Spark is stopping, or Java has ended; progress is not worth an error
        return None
