"""Creates the Spark session with the settings in the profile's target, as dbt does."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loader.errors import SpecError
from loader.spark import jvm
from loader.spark.class_path import JARS, lacks_iceberg
from loader.spark.spark_version import find_spark, silence_query_log
from loader.spec.redaction import java_regex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from loader.spark.profile import Profile

SUBSTITUTION = "spark.sql.variable.substitute"
"""This must be off. Otherwise, Spark would replace `${env:NAME}` even in a quoted column name."""

# These settings override the profile. The JVM's time zone must also be UTC, because JDBC drivers
# use it for timestamps without a time zone.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    # Undecodable bytes become U+FFFD, which the loader detects. Unlike Spark 4's error, the
    # loader's error contains the path of the file.
    "spark.sql.legacy.codingErrorAction": "true",
    SUBSTITUTION: "false",
}

# The history of finished jobs, which only Spark's UI uses, would need hundreds of megabytes in a
# process that runs for weeks.
_STATUS_STORE_LIMITS = {
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}

# By default, Spark caches only 100 classes that it compiled for queries. A dbt build of one latest
# table and its tests needs more, so each build would compile all of them again, which would take a
# third of the tests' run time.
_CODEGEN_CACHE = {"spark.sql.codegen.cache.maxEntries": "1000"}

_SINGLE_PROCESS_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.datetime.java8API.enabled": "true",  # `hold_rows` needs it for timestamps
}

# Makes Parquet verify the checksums of its pages, which replace Hadoop's checksum files
# (`_skip_checksums`).
_CHECKSUM_SETTINGS = {"spark.hadoop.parquet.page.verify-checksum.enabled": "true"}

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_UTC = "-Duser.timezone=UTC"
_REDACTION_KEY = "spark.redaction.regex"
_SEPARATOR = "\x1f"  # the ASCII unit separator, which no setting contains

_UNKNOWN_HOST = re.compile(r"UnknownHostException: ([^\s:]+):")

_DRIVERS = (
    "org.postgresql",
    "org.mariadb",
    "com.mysql",
    "oracle",
    "com.microsoft",
    "net.snowflake",
)


def begin(profile: Profile) -> None:
    """Starts Spark's JVM without waiting for it. :func:`session` waits."""
    jvm.begin(settings(profile.conf, profile.secrets))


def session(profile: Profile) -> SparkSession:
    """Starts Spark, or returns this process's session if it has one.

    Raises:
        SpecError: if PySpark, the Iceberg runtime or Java is missing, or if Spark does not start.
    """
    wanted = settings(profile.conf, profile.secrets)
    if lacks_iceberg(find_spark(), wanted):
        raise SpecError(
            "Spark lacks the Iceberg runtime", where="Spark", remedy="Run `loader setup`"
        )
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # By default, Spark's Python workers would run the `python3` in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    silence_query_log()
    builder = SparkSession.builder.appName("strandline")
    for key, value in wanted.items():
        if key != JARS:
            builder = builder.config(key, value)
    try:
        jvm.start(wanted)
        with _keep_signal_handlers():
            spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError, Py4JJavaError) as error:
        what, remedy = _explain_failed_start(error, wanted)
        raise SpecError(
            f"Spark does not start: {what}",
            where=f"{profile.path}, target {profile.target}",
            remedy=remedy,
        ) from error
    _apply_required_settings(spark)
    _skip_checksums(spark)
    return spark


def _explain_failed_start(error: Exception, wanted: Mapping[str, str]) -> tuple[str, str]:
    remedy = "Check the target's server_side_parameters, and `loader setup`"
    host = _UNKNOWN_HOST.search(str(error))
    if host is not None and host[1] == socket.gethostname():
        return (
            f"this machine's host name {host[1]} does not resolve",
            "Set spark.driver.host in the target (STRANDLINE_DRIVER_HOST) to an address of this "
            "machine that executors can reach, or add the name to /etc/hosts",
        )
    if "UnresolvedAddressException" in str(error):
        return (
            f"the host name {wanted.get('spark.driver.host', '')} (spark.driver.host) does not "
            "resolve",
            "Set STRANDLINE_DRIVER_HOST to a name or an address of this machine that executors can "
            "reach",
        )
    lines = str(getattr(error, "java_exception", None) or error).strip().splitlines()
    what = (lines or [type(error).__name__])[0].rstrip(".")
    if "stopped SparkContext" in what:  # only Spark's log contains the reason
        what = f"no answer from the master {wanted.get('spark.master', '')}"
    return what, remedy


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Prevents PySpark from replacing the loader's SIGINT handler.

    PySpark's handler could call the JVM during another call, which would break the connection.
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
    """Returns the profile's settings and the loader's. Required ones override the profile's.

    Args:
        secrets: keys whose values Spark must mask in its event log and UI.
    """
    catalog = conf.get("spark.sql.defaultCatalog", "spark_catalog")
    uncached = {f"spark.sql.catalog.{catalog}.cache-enabled": "false"}
    masked = {_REDACTION_KEY: java_regex(conf.get(_REDACTION_KEY), secrets)}
    own = {**uncached, **_STATUS_STORE_LIMITS, **_CODEGEN_CACHE, **_CHECKSUM_SETTINGS}
    return {**own, **conf, **_REQUIRED, **_executor_zone(conf), **masked}


def find_session() -> SparkSession | None:
    """Returns this process's Spark session; None if it has none. Does not import PySpark."""
    module = sys.modules.get("pyspark.sql")
    found: Any = module.SparkSession._instantiatedSession if module is not None else None
    return None if found is None or is_stopped(found) else found


def is_stopped(spark: SparkSession) -> bool:
    context: Any = spark.sparkContext
    return context._jsc is None


def adopt_session(spark: SparkSession) -> SparkSession:
    """Returns a new session with the required settings, in the Spark that the caller started.

    The settings and temporary views of `spark` do not change. JDBC driver logs are disabled.

    Raises:
        SpecError: if Spark does not run in this process, or if it lacks settings without which the
            loader would read wrong times or stale tables.
    """
    context: Any = getattr(spark, "_sc", None)  # Spark Connect has none
    if context is None or context._jsc is None:
        raise SpecError(
            "it is stopped" if context is not None else "it is a session of Spark Connect",
            where="spark",
            remedy="Pass a running session whose driver is this process, or no session",
        )
    missing = _list_missing_settings(spark)
    if missing:
        raise SpecError(
            f"this Spark session lacks settings: {'; '.join(missing)}",
            where="spark",
            remedy="Set them before the session is created, or pass no session: the loader then "
            "starts Spark with the profile's settings",
        )
    silence_drivers(spark)
    return sibling(spark)


def _list_missing_settings(spark: SparkSession) -> list[str]:
    conf = _all_settings(spark)
    catalog = f"spark.sql.catalog.{conf.get('spark.sql.defaultCatalog', 'spark_catalog')}"
    wanted = {
        f"{catalog}.cache-enabled": "false",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    }
    missing = [f"{k}={v}" for k, v in wanted.items() if conf.get(k, "").lower() != v]
    if not conf.get(catalog, "").startswith("org.apache.iceberg.spark."):
        missing.append("spark.sql.defaultCatalog=<the name of an Iceberg catalog>")
    if _EXTENSIONS not in conf.get("spark.sql.extensions", ""):
        missing.append(f"spark.sql.extensions={_EXTENSIONS}")
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    if not zones.getDefault().hasSameRules(zones.getTimeZone("UTC")):
        missing.append(f"spark.driver.extraJavaOptions={_UTC}")
    is_local = str(spark.sparkContext.master).startswith("local")
    if not is_local and _UTC not in conf.get("spark.executor.extraJavaOptions", ""):
        missing.append(f"spark.executor.extraJavaOptions={_UTC}")
    return missing


def check_same_lake(spark: SparkSession, profile: Profile) -> None:
    """Raises a SpecError if a running session does not have a profile's catalog settings.

    The error contains the names of the settings, but not their values.
    """
    conf = _all_settings(spark)
    differing = [
        key
        for key, value in profile.conf.items()
        if key.startswith(("spark.sql.catalog.", "spark.sql.defaultCatalog"))
        and conf.get(key) != value
    ]
    if differing:
        raise SpecError(
            f"the Spark session of this process has other values of {', '.join(differing)}",
            where=f"{profile.path}, target {profile.target}",
            remedy="Stop that session, or set the profile's values when you create it",
        )


def sibling(spark: SparkSession) -> SparkSession:
    """Returns a session of the same Spark with its own settings and temporary views."""
    fresh = spark.newSession()
    prefixes = (
        *("spark.sql.catalog.", "spark.sql.session.", "spark.sql.default"),
        "spark.sql.shuffle.partitions",
    )
    current = {k: v for k, v in _all_settings(spark).items() if k.startswith(prefixes)}
    for key, value in {**current, **_REQUIRED}.items():
        fresh.conf.set(key, value)
    return fresh


def silence_drivers(spark: SparkSession) -> None:
    """Disables JDBC driver logs, which contain URLs with passwords."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for package in _DRIVERS:
        log4j.core.config.Configurator.setLevel(package, log4j.Level.OFF)


def plan_simply(spark: SparkSession) -> None:
    """Turns off code generation and adaptive query execution, and uses one partition.

    In queries on few rows, these optimizations take more time than they save.
    """
    for key, value in _SINGLE_PROCESS_SETTINGS.items():
        spark.conf.set(key, value)


@contextmanager
def generate_code(spark: SparkSession) -> Iterator[None]:
    """Restores the profile's code generation within the block, for queries that scan many rows.

    Afterwards turns it off, as :func:`plan_simply` does. No other thread may use the session
    within the block.
    """
    for key in _SINGLE_PROCESS_SETTINGS:
        if key.startswith("spark.sql.codegen."):
            configured = spark.sparkContext._conf.get(key, None)
            if configured is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, configured)
    try:
        yield
    finally:
        plan_simply(spark)


def hold_rows(rows: DataFrame) -> DataFrame:
    """Runs a query, and returns its rows as a DataFrame in the driver's memory.

    The query must return at most a few thousand rows. Queries on the DataFrame do not reread the
    source, and most of them run no job. Call :func:`plan_simply` first. Strings must be valid
    UTF-8, because they are converted to Java strings.
    """
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    java_rows: Any = rows._jdf
    return DataFrame(
        spark._jsparkSession.createDataFrame(java_rows.collectAsList(), java_rows.schema()), spark
    )


def plan_now(rows: DataFrame) -> DataFrame:
    """Plans a query now, so that its tables may be altered before it runs.

    Spark 4.1 would otherwise resolve the tables again when the query runs, and fail if their
    columns have changed.
    """
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    java_rows: Any = rows._jdf
    planned = java_rows.queryExecution().toRdd()
    planned_frame = spark._jsparkSession.internalCreateDataFrame(planned, java_rows.schema(), False)
    return DataFrame(planned_frame, spark)


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """Returns an empty DataFrame. PySpark's `createDataFrame` would start a Python worker."""
    from pyspark.sql import DataFrame

    session: Any = spark
    kind = session._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    rows = session._jvm.java.util.ArrayList()
    return DataFrame(session._jsparkSession.createDataFrame(rows, kind), spark)


@contextmanager
def restore_settings(spark: SparkSession) -> Iterator[None]:
    """Restores a session's settings after the block, because dbt and models change them."""
    before = _all_settings(spark)
    try:
        yield
    finally:
        for key, value in _all_settings(spark).items():
            if before.get(key) != value:
                with suppress(Exception):  # static settings cannot be changed
                    if key in before:
                        spark.conf.set(key, before[key])
                    else:
                        spark.conf.unset(key)


def _all_settings(spark: SparkSession) -> dict[str, str]:
    every: Any = spark._jsparkSession.conf().getAll()
    # One call to the JVM per setting would be slow.
    pairs = (pair.partition(" -> ") for pair in every.mkString(_SEPARATOR).split(_SEPARATOR))
    return {key: value for key, _, value in pairs}


def _apply_required_settings(spark: SparkSession) -> None:
    """Applies the required settings, because another program may have started the session."""
    jvm: Any = spark._jvm
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone("UTC"))
    for key, value in _REQUIRED.items():
        spark.conf.set(key, value)


def _skip_checksums(spark: SparkSession) -> None:
    """Prevents Hadoop from writing a checksum file (`.name.crc`) for each local file.

    Hadoop runs `chmod` for each checksum file, which takes 4 ms, and a small batch writes many
    files. Other engines neither write nor read checksum files. The loader verifies the checksums
    inside Parquet files instead; Iceberg's metadata has none.
    """
    jvm: Any = spark._jvm
    local = jvm.java.net.URI.create("file:///")
    configured = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.get(local, configured).setWriteChecksum(False)


def _executor_zone(conf: Mapping[str, str]) -> dict[str, str]:
    key = "spark.executor.extraJavaOptions"
    given = conf.get(key, "")
    return {key: given if "user.timezone" in given else f"{given} {_UTC}".strip()}


def describe_jobs(spark: SparkSession, table: str) -> None:
    """Sets the description of this thread's jobs to a table's name, for :func:`rows_written`."""
    spark.sparkContext.setLocalProperty("spark.job.description", table)


def rows_written(spark: SparkSession, table: str) -> int | None:
    """Counts the rows that the running stages of a table's jobs have read or written so far."""
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
    except Exception:  # a failed progress report must not fail the run
        return None
