"""The Py4J cache: Python looks up each Scala object of the JVM only once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession


def test_a_scala_object_is_looked_up_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark looks up this object for each statement of dbt."""
    session: Any = spark
    client, asked = session._jvm._gateway_client, []
    send = client.send_command

    def counted(command: str, *arguments: Any, **named: Any) -> Any:
        asked.append(command)
        return send(command, *arguments, **named)

    objects = "org.apache.spark.sql.catalyst.util.CharVarcharUtils$"
    of = session._jvm
    for name in objects.split("."):
        of = getattr(of, name)
    first = getattr(of, "MODULE$")
    monkeypatch.setattr(client, "send_command", counted)
    for _ in range(3):
        assert getattr(of, "MODULE$") is first
    assert asked == []
    assert "CharVarcharUtils" in first.toString()
    assert asked
