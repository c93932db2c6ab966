"""An error about a missing class names the jar, and where the jar has to be."""

from __future__ import annotations

import pytest

from loader.spark.missing_jars import find_missing_jar
from loader.spark.spark_version import find_spark

# As Spark 4.1 reported them on a cluster whose workers had no jars.
ON_EXECUTOR = """\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost \
task 0.3 in stage 0.0 (TID 3) (127.0.0.1 executor 1): java.lang.ClassNotFoundException: {}
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)"""
ON_DRIVER = ON_EXECUTOR.replace("executor 1", "executor driver")


@pytest.mark.parametrize(
    ("name", "jar"),
    [
        ("org.apache.iceberg.spark.source.SparkWrite$WriterFactory", "iceberg-spark-runtime-"),
        ("software/amazon/awssdk/core/exception/SdkException", "iceberg-aws-bundle-"),
        ("org.postgresql.Driver", "postgresql-"),
        ("com.mysql.cj.jdbc.Driver", "mysql-connector-j-"),
    ],
)
def test_the_missing_jar_is_named(name: str, jar: str) -> None:
    found = find_missing_jar(ON_EXECUTOR.format(name))
    assert found is not None
    what, remedy = found
    assert what.startswith(f"the executors lack {jar}")
    assert what.endswith(f"(class {name.replace('/', '.')})")
    assert "each worker's Spark" in remedy
    assert "STRANDLINE_SPARK_JARS" in remedy
    here = find_missing_jar(ON_DRIVER.format(name))
    assert here is not None
    assert here[0].startswith(f"Spark lacks {jar}")


def test_a_lambda_of_a_class_that_executors_lack() -> None:
    """Java's message does not name the class."""
    field = "org.apache.spark.rdd.MapPartitionsRDD.f of type scala.Function3 in instance of"
    text = f"cannot assign instance of java.lang.invoke.SerializedLambda to field {field} …"
    found = find_missing_jar(ON_EXECUTOR.partition("java.lang")[0] + text)
    iceberg = find_spark().line.iceberg.file_name
    assert found is not None
    assert found[0] == f"the executors lack {iceberg} (or run another version of Spark)"


def test_s3_without_its_client() -> None:
    text = 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"'
    aws = find_spark().line.aws.file_name
    found = find_missing_jar(text)
    assert found is not None
    assert found[0] == f"Spark lacks {aws}, without which it cannot use s3:// (no FileSystem)"
    assert found[1].startswith("Run `loader setup aws`")


@pytest.mark.parametrize(
    "text",
    [
        ON_EXECUTOR.format("com.example.Codec"),
        "java.lang.NoClassDefFoundError: Could not initialize class org.apache.iceberg.x.Y",
        'No FileSystem for scheme "gs"',
        "ERROR: relation does not exist",
    ],
)
def test_other_errors_stay_as_they_are(text: str) -> None:
    assert find_missing_jar(text) is None
