"""Finds out which jar the driver or an executor lacks, from an error about a missing class."""

from __future__ import annotations

import re

from loader.package import page
from loader.spark.jars import DRIVERS
from loader.spark.spark_version import find_spark

# Java writes slashes between packages if another class refers to the missing class.
_MISSING_CLASS = re.compile(
    r"(?:ClassNotFoundException|NoClassDefFoundError): ([\w$]+(?:[./][\w$]+)+)"
)
_ON_EXECUTOR = re.compile(r"\(TID \d+\) \([^()]* executor (?!driver\b)")
# Java's message if an executor lacks the class of a lambda, which the message does not name.
_MISSING_LAMBDA = "cannot assign instance of java.lang.invoke.SerializedLambda to field"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \"?(s3[an]?)\b")
_DRIVER_PACKAGES = {
    "org.postgresql.": "postgresql",
    "org.mariadb.": "mariadb",
    "com.mysql.": "mysql",
    "org.sqlite.": "sqlite",
}


def find_missing_jar(text: str) -> tuple[str, str] | None:
    """Returns the problem and the remedy if an error reports a missing class, else None.

    Args:
        text: the error, including the stack traces of its causes.
    """
    scheme = _NO_FILE_SYSTEM.search(text)
    if scheme is not None:
        aws = find_spark().line.aws.file_name
        return (
            f"Spark lacks {aws}, without which it cannot use {scheme[1]}:// (no FileSystem)",
            f"Run `loader setup aws`, or add the jar to spark.jars: {page('cluster', 'Jars')}",
        )
    missing = _MISSING_CLASS.search(text)
    if missing is None and _MISSING_LAMBDA not in text:
        return None
    name = missing[1].replace("/", ".") if missing else "org.apache.iceberg.spark"
    jar, setup = _find_jar(name)
    if not jar:
        return None
    if missing is None or _ON_EXECUTOR.search(text):
        detail = f"class {name}" if missing else "or run another version of Spark"
        return (
            f"the executors lack {jar} ({detail})",
            "The loader sends executors the jars of `loader setup`, but not those in the `jars` "
            f"folder of PySpark. Remove {jar} from that folder and run `{setup}`, or put it into "
            "the `jars` folder of each worker's Spark, or add it to spark.jars "
            f"(STRANDLINE_SPARK_JARS): {page('cluster', 'Jars')}",
        )
    return f"Spark lacks {jar} (class {name})", f"Run `{setup}`: {page('cluster', 'Jars')}"


def _find_jar(name: str) -> tuple[str, str]:
    """Returns the jar that contains a class and the command that provides it, or empty strings."""
    line = find_spark().line
    if name.startswith("software.amazon."):
        return line.aws.file_name, "loader setup aws"
    if name.startswith("org.apache.iceberg."):
        return line.iceberg.file_name, "loader setup"
    driver = next((d for start, d in _DRIVER_PACKAGES.items() if name.startswith(start)), None)
    if driver is None:
        return "", ""
    return DRIVERS[driver].jar.file_name, f"loader setup {driver}"
