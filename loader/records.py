"""A few rows of an Iceberg table, read and appended by Iceberg itself.

State and ledger are asked for a row or two, and get a row or two, at every sync. A Spark job for
that takes seconds in a JVM that has run none yet; Iceberg's own readers and writers need none.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession


class Records:
    """Rows of one table, as it is now.

    Args:
        handle: Iceberg's object for the table, freshly loaded.
    """

    def __init__(self, spark: SparkSession, handle: Any) -> None:
        self.handle = handle
        jvm: Any = spark._jvm
        self._java = jvm.java
        self._jackson = jvm.com.fasterxml.jackson.databind
        self._iceberg = jvm.org.apache.iceberg

    def files(self) -> int:
        """How many data files hold the rows; known without listing them."""
        snapshot = self.handle.currentSnapshot()
        return int(snapshot.summary().get("total-data-files") or 0) if snapshot else 0

    def select(
        self, columns: Sequence[str], equal: Mapping[str, Any], at_least: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The rows that match, in no order; statistics pass over the files of all others.

        Timestamps come in UTC.

        Args:
            equal, at_least: what columns must be, None for a null.
        """
        expressions = self._iceberg.expressions.Expressions
        scan = self._iceberg.data.IcebergGenerics.read(self.handle).select(list(columns))
        for column, value in equal.items():
            null = value is None
            scan = scan.where(
                expressions.isNull(column) if null else expressions.equal(column, value)
            )
        for column, value in at_least.items():
            scan = scan.where(expressions.greaterThanOrEqual(column, value))
        found = []
        records = scan.build()
        try:
            each = records.iterator()
            while each.hasNext():
                record = each.next()
                found.append({name: _plain(record.getField(name)) for name in columns})
        finally:
            records.close()
        return found

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows in one commit, durably, as the table's properties say.

        Args:
            rows: column by column: texts, whole numbers, booleans, aware times; nulls where absent.
        """
        properties = self.handle.properties()
        # Its first spec, without partitions: a file may be of it also where somebody added some.
        schema, spec = self.handle.schema(), self.handle.specs().get(0)
        form = self._iceberg.FileFormat.fromString(
            properties.get("write.format.default") or "parquet"
        )
        files = self._iceberg.io.OutputFileFactory.builderFor(self.handle, 1, 1).format(form)
        writer = self._iceberg.data.GenericAppenderFactory(
            self.handle, schema, spec, properties, None, None, None
        ).newDataWriter(files.build().newOutputFile(), form, None)
        try:
            empty = self._iceberg.data.GenericRecord.create(schema)
            for values in self._maps(rows):
                writer.write(empty.copy(values))
        finally:
            writer.close()
        self.handle.newAppend().appendFile(writer.toDataFile()).commit()

    def _maps(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The rows in Java, whole numbers as longs: calls from Python pass small ones as ints."""
        features = self._jackson.DeserializationFeature
        mapper = self._jackson.ObjectMapper().configure(features.USE_LONG_FOR_INTS, True)
        plain = [{k: v for k, v in row.items() if not isinstance(v, dt.datetime)} for row in rows]
        kind = self._java.lang.Class.forName("java.util.List")
        maps = list(mapper.readValue(json.dumps(plain), kind))
        for row, values in zip(rows, maps, strict=True):
            for name, value in row.items():
                if isinstance(value, dt.datetime):
                    values.put(name, self._java.time.OffsetDateTime.parse(value.isoformat()))
        return maps


def _plain(value: Any) -> Any:
    """A value as Python has it."""
    if not hasattr(value, "toInstant"):
        return value
    text = value.toInstant().toString()
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
