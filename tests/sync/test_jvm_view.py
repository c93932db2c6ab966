"""The JVM resolves a name once, but is asked again if the name did not exist before."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, java_import
from pyspark import SparkContext
from pyspark.sql import SparkSession


def test_names_of_the_jvm_are_asked_for_once(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    assert jvm is SparkContext._jvm is spark.sparkContext._gateway.jvm
    before = jvm.java.time.Duration, jvm.functions
    asked: list[str] = []
    client = jvm._gateway_client
    send = client.send_command
    client.send_command = lambda *given, **more: asked.append(given[0]) or send(*given, **more)
    try:
        assert (jvm.java.time.Duration, jvm.functions) == before
        assert asked == []
        assert jvm.java.time.Duration.ofDays(1).toHours() == 24
        assert asked
    finally:
        del client.send_command
    assert isinstance(jvm.ChronoUnit, JavaPackage)
    java_import(jvm, "java.time.temporal.ChronoUnit")
    assert jvm.ChronoUnit.DAYS.toString() == "Days"
