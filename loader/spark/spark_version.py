"""Lists the supported versions of Spark.

No other module checks the version of Spark, Scala, Iceberg or Java.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.errors import SpecError
from loader.spark.jars import DRIVERS, Jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

INSTALL = "pip install 'strandline[embedded]'"

# Spark's options for Java modules (org.apache.spark.launcher.JavaModuleOptions), except Spark 4.1's
# `--add-modules=jdk.incubator.vector`: only MLlib needs this module, and a Java without it would
# not start.
_ADD_OPENS = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_MODULES = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _ADD_OPENS),
    "-Djdk.reflect.useDirectMethodHandle=false",
)


@dataclass(frozen=True)
class SparkLine:
    """A minor version of Spark, with the versions of its dependencies.

    Attributes:
        version: the major and minor version.
        aws: the jar that `loader setup aws` fetches; Iceberg needs it for S3FileIO and Glue.
        java: the supported versions of Java, in ascending order.
        options: the required JVM options.
    """

    version: str
    scala: str
    iceberg: Jar
    aws: Jar
    java: tuple[int, ...]
    options: tuple[str, ...]

    def describe_java(self) -> str:
        *others, last = map(str, self.java)
        return f"Java {', '.join(others)} or {last}"


def _iceberg(artifact: str, version: str, sha256: str) -> Jar:
    return Jar("org.apache.iceberg", f"iceberg-{artifact}", version, sha256)


LINES: Mapping[str, SparkLine] = {
    line.version: line
    for line in (
        SparkLine(
            version="4.1",
            scala="2.13",
            iceberg=_iceberg(
                "spark-runtime-4.1_2.13",
                "1.11.0",
                "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242",
            ),
            aws=_iceberg(
                "aws-bundle",
                "1.11.0",
                "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
            ),
            # Hadoop calls Subject.getSubject, which Java 24 and later do not support.
            java=(17, 21),
            options=(
                *_MODULES,
                "-Dio.netty.tryReflectionSetAccessible=true",
                "-Dio.netty.allocator.type=pooled",
                "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
                "--enable-native-access=ALL-UNNAMED",
            ),
        ),
        SparkLine(
            version="3.5",
            scala="2.12",
            iceberg=_iceberg(
                "spark-runtime-3.5_2.12",
                "1.10.2",
                "c562d482dcd16b666e808b755469fbc4b2604284b41622c9d87e2c02b7cc6c5f",
            ),
            # Maven Central has no version 1.10.2 of this jar.
            aws=_iceberg(
                "aws-bundle",
                "1.10.1",
                "86bf20892ea5b4c17688f19b075399885f6aa5303f6b2dc9f491e76ceef9633b",
            ),
            java=(11, 17, 21),
            options=_MODULES,
        ),
    )
}


ALL_JARS: tuple[Jar, ...] = (
    *(jar for line in LINES.values() for jar in (line.iceberg, line.aws)),
    *(driver.jar for driver in DRIVERS.values()),
)
"""All jars that `loader setup` can fetch, for audits and bills of materials."""


@dataclass(frozen=True)
class SparkHome:
    """An installation of Spark.

    Attributes:
        folder: the folder in which PySpark finds Spark.
    """

    folder: Path
    line: SparkLine


def find_spark() -> SparkHome:
    """Finds Spark in `SPARK_HOME` or in the `pyspark` package, as PySpark does.

    Raises:
        SpecError: if Spark is missing, or if its version is not supported.
    """
    configured = os.environ.get("SPARK_HOME")
    module = find_spec("pyspark")
    folder = (
        Path(configured) if configured else module and module.origin and Path(module.origin).parent
    )
    if not folder:
        raise SpecError("PySpark is not installed", where="Spark", remedy=f"Run `{INSTALL}`")
    home = _read_line(folder.absolute())
    if home is None:
        lines = " or ".join(f"{line.version} with Scala {line.scala}" for line in LINES.values())
        raise SpecError(
            f"{folder} is not Spark {lines}",
            where="SPARK_HOME" if configured else "Spark",
            remedy="Unset SPARK_HOME" if configured else f"Run `{INSTALL}`",
        )
    if os.pathsep in str(folder):
        raise SpecError(
            f"Spark cannot run in a folder whose path has a `{os.pathsep}`: {folder}",
            where="Spark",
            remedy="Move the virtual environment",
        )
    return home


@cache
def _read_line(folder: Path) -> SparkHome | None:
    names = [jar.name for jar in (folder / "jars").glob("spark-core_*.jar")]
    for line in LINES.values():
        pattern = re.escape(f"spark-core_{line.scala}-{line.version}.")
        if any(re.match(pattern, name) for name in names):
            return SparkHome(folder, line)
    return None


def silence_query_log() -> None:
    """Prevents PySpark 4 from logging SQL errors as JSON. PySpark 3.5 does not log them."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        return
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def jdbc_schema(jvm: Any, connection: Any, result: Any, dialect: Any) -> Any:
    """Returns the columns of a JDBC result as a Java `StructType`. Spark 4 needs the connection."""
    utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
    first = () if _is_version_3() else (connection,)
    return utils.getSchema(*first, result, dialect, True, True)


def jdbc_relation(spark: SparkSession, columns: Any, partitions: Any, options: Any) -> Any:
    """Returns Spark's lazy JDBC relation, whose constructor has a new parameter since Spark 4.1."""
    session: Any = spark
    jvm = session._jvm
    metrics: tuple[Any, ...] = ()
    if not _is_version_3():
        no_metrics = jvm.java.util.HashMap()
        metrics = (jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(no_metrics),)
    relation = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation
    return relation(columns, partitions, options, *metrics, session._jsparkSession)


def record_writers(iceberg: Any, table: Any, spec: Any, form: Any) -> Callable[[Any, Any], Any]:
    """Returns a function that opens a writer of Iceberg records for an output file and a partition.

    Iceberg 1.12 removes `GenericAppenderFactory`, but its successor is not public in 1.10.
    """
    if _is_version_3():
        older = iceberg.data.GenericAppenderFactory(
            table, table.schema(), spec, table.properties(), None, None, None
        )
        return lambda output, partition: older.newDataWriter(output, form, partition)
    newer = iceberg.data.GenericFileWriterFactory.Builder(table).dataFileFormat(form)
    newer = newer.dataSchema(table.schema()).build()
    return lambda output, partition: newer.newDataWriter(output, spec, partition)


def can_rewrite_position_deletes(columns: StructType) -> bool:
    """Returns whether Iceberg can read the position deletes of a table with these columns.

    Iceberg 1.10 fails on lists and maps ("Invalid partition field parent").
    """
    return not (_is_version_3() and _has_list_or_map(columns))


def _has_list_or_map(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_list_or_map(field.dataType) for field in kind.fields)
    return isinstance(kind, ArrayType | MapType)


@cache
def _is_version_3() -> bool:
    import pyspark

    return pyspark.__version__.startswith("3.")
