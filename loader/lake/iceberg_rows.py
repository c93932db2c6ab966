"""Reads a few rows from an Iceberg table, or appends a few, without starting a Spark job.

Each sync reads and writes one or two rows of the state and the ledger. The first Spark job in a JVM
takes seconds, but Iceberg's generic readers and writers need no job.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from loader.errors import TableError
from loader.spark.spark_version import record_writers

_PLAIN = frozenset({"string", "long", "int", "boolean"})


class Records:
    """The rows of one table, as of the time when its handle was loaded."""

    def __init__(self, spark: SparkSession, handle: Any) -> None:
        self.handle = handle
        jvm: Any = spark._jvm
        self._java = jvm.java
        self._jackson = jvm.com.fasterxml.jackson.databind
        self._iceberg = jvm.org.apache.iceberg

    def files(self) -> int:
        """Returns the number of data files, according to the current snapshot's summary."""
        snapshot = self.handle.currentSnapshot()
        return int(snapshot.summary().get("total-data-files") or 0) if snapshot else 0

    def rows(self) -> int:
        """Returns the number of rows, according to the current snapshot's summary."""
        current = self.handle.currentSnapshot()
        return int(current.summary().get("total-records") or 0) if current is not None else 0

    def select(
        self, columns: Sequence[str], equal: Mapping[str, Any], at_least: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Returns the matching rows in any order. Uses file statistics to skip files.

        Timestamps are in UTC.

        Args:
            equal: the required value of each column; None means null.
            at_least: the lowest accepted value of each column.
        """
        expressions = self._iceberg.expressions.Expressions
        scan = self._iceberg.data.IcebergGenerics.read(self.handle)
        scan = scan.caseInsensitive().select(list(columns))
        for column, value in equal.items():
            null = value is None
            scan = scan.where(
                expressions.isNull(column) if null else expressions.equal(column, value)
            )
        for column, value in at_least.items():
            scan = scan.where(expressions.greaterThanOrEqual(column, value))
        read = scan.build()
        try:
            records = self._iceberg.relocated.com.google.common.collect.Lists.newArrayList(read)
        finally:
            read.close()
        return self._values(records, columns)

    def _values(self, records: Any, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Converts records to Python values.

        Needs only one JVM call if all columns are strings, integers or booleans.
        """
        if not records.size():
            return []
        types = [self._columns.get(name.lower(), ("", ""))[1] for name in columns]
        # In tables with delete files, each record has an additional value.
        deletes = self.handle.currentSnapshot().summary().get("total-delete-files")
        if not _PLAIN.issuperset(types) or deletes not in (None, "0"):
            return [{name: self._value(record, name) for name in columns} for record in records]
        kind = records.get(0).struct()
        listed = self._iceberg.types.Types.ListType.ofRequired(kind.fields().size() + 1, kind)
        values = json.loads(self._iceberg.SingleValueParser.toJson(listed, records))
        ids = {name: str(kind.caseInsensitiveField(name).fieldId()) for name in columns}
        return [{name: row.get(ids[name]) for name in columns} for row in values]

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows in one durable commit. Respects the table's write properties.

        Args:
            rows: the values of each row, keyed by column. Values are strings, integers, booleans or
                timezone-aware times. Missing columns are null.
        """
        schema, spec = self.handle.schema(), self._spec()
        file_format = self._iceberg.FileFormat.fromString(
            self.handle.properties().get("write.format.default") or "parquet"
        )
        files = self._iceberg.io.OutputFileFactory.builderFor(self.handle, 1, 1).format(file_format)
        files, commit = files.build(), self.handle.newAppend()
        open_writer = record_writers(self._iceberg, self.handle, spec, file_format)
        for partition, records in self._group_by_partition(spec, self._records(schema, rows)):
            is_unpartitioned = partition is None
            output = (
                files.newOutputFile() if is_unpartitioned else files.newOutputFile(spec, partition)
            )
            writer = open_writer(output, partition)
            try:
                for record in records:
                    writer.write(record)
            finally:
                writer.close()
            commit.appendFile(writer.toDataFile())
        commit.commit()

    def _spec(self) -> Any:
        """Returns the partition spec for new files.

        Prefers an unpartitioned spec, even an older one, because all rows then fit in one file.
        """
        current = self.handle.spec()
        if current.isUnpartitioned():
            return current
        specs = list(self.handle.specs().values())
        return next((spec for spec in specs if spec.isUnpartitioned()), current)

    def _group_by_partition(self, spec: Any, records: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        if spec.isUnpartitioned():
            return [(None, list(records))]
        schema = self.handle.schema()
        wrapper = self._iceberg.data.InternalRecordWrapper(schema.asStruct())
        groups: dict[str, tuple[Any, list[Any]]] = {}
        for record in records:
            key = self._iceberg.PartitionKey(spec, schema)
            key.partition(wrapper.wrap(record))
            groups.setdefault(key.toPath(), (key, []))[1].append(record)
        return list(groups.values())

    def _records(self, schema: Any, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        features = self._jackson.DeserializationFeature
        # Jackson must read all integers as longs. By default, it reads small ones as ints.
        mapper = self._jackson.ObjectMapper().configure(features.USE_LONG_FOR_INTS, True)
        kind = self._java.lang.Class.forName("java.util.List")
        given = [{self._name(k): v for k, v in row.items() if v is not None} for row in rows]
        plain = [{k: v for k, v in row.items() if self._is_plain(k, v)} for row in given]
        empty = self._iceberg.data.GenericRecord.create(schema)
        records = []
        read = mapper.readValue(json.dumps(plain), kind)
        for place, row in enumerate(given):
            values = read.get(place)
            for name in row.keys() - plain[place].keys():
                values.put(name, self._convert(name, row[name]))
            records.append(empty.copy(values))
        return records

    @cached_property
    def _columns(self) -> dict[str, tuple[str, str]]:
        """The name and type of each column, keyed by lower-case name."""
        fields = json.loads(self._iceberg.SchemaParser.toJson(self.handle.schema()))["fields"]
        return {field["name"].lower(): (field["name"], str(field["type"])) for field in fields}

    def _name(self, column: str) -> str:
        if column in self._columns:
            return self._columns[column][0]
        raise TableError(
            f"it has no column {column}",
            where=f"table {self.handle.name()}",
            remedy="Add the column. If another program created the table, rename it",
        )

    def _is_plain(self, name: str, value: Any) -> bool:
        return isinstance(value, str | bool) or (
            isinstance(value, int) and self._columns[name.lower()][1] == "long"
        )

    def _convert(self, name: str, value: Any) -> Any:
        """Converts a value to the column's type, which another program may have chosen."""
        data_type = self._columns[name.lower()][1]
        time = self._java.time
        if isinstance(value, dt.datetime):
            value = value.astimezone(dt.timezone.utc)
            local = value.replace(tzinfo=None)
            if data_type == "timestamp":
                return time.LocalDateTime.parse(local.isoformat())
            if data_type == "date":
                return time.LocalDate.parse(local.date().isoformat())
            if data_type == "string":
                return local.isoformat(sep=" ")
            return time.OffsetDateTime.parse(value.isoformat())
        if data_type.startswith("decimal"):
            return self._java.math.BigDecimal(str(value))
        return str(value) if data_type == "string" else value

    def _value(self, record: Any, column: str) -> Any:
        name, data_type = self._columns.get(column, (column, ""))
        value = record.getField(name)
        if isinstance(value, Decimal):
            return int(value)
        if value is None or data_type not in ("timestamptz", "timestamp", "date"):
            return value
        if data_type == "date":
            value = value.atStartOfDay()
        zone = () if data_type == "timestamptz" else (self._java.time.ZoneOffset.UTC,)
        text = value.toInstant(*zone).toString()
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
