"""Appends rows through Iceberg's Java API: a Spark job takes half a second for a few rows."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession


class IcebergRows:
    """A handle on the current state of a table, which must be unpartitioned.

    Args:
        name: its name, with the schema, in the session's current catalog.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._jvm: Any = spark._jvm
        session = spark._jsparkSession
        # Catalogs are looked up in the settings of the thread's active session.
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session)
        self._iceberg = self._jvm.org.apache.iceberg
        self._handle = self._iceberg.spark.Spark3Util.loadIcebergTable(session, name)
        assert self._handle.spec().isUnpartitioned()
        self._schema = json.loads(self._iceberg.SchemaParser.toJson(self._handle.schema()))

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [field["name"] for field in self._schema["fields"]]

    def append(
        self, rows: Sequence[Sequence[Any]], summary: Mapping[str, str] | None = None
    ) -> None:
        """Adds rows in one commit.

        Args:
            rows: values in the order of the columns, as Spark would take them.
            summary: the commit's properties.
        """
        commit = self._handle.newAppend()
        for key, value in (summary or {}).items():
            commit.set(key, value)
        if rows:
            commit.appendFile(self._write_file(rows))
        commit.commit()

    def count_deleted_as(self, number: int) -> None:
        """Changes the record count of the newest commit's only position-delete file."""
        found = self._handle.currentSnapshot().addedDeleteFiles(self._handle.io())
        file = found.iterator().next()
        builder = self._iceberg.FileMetadata.deleteFileBuilder(self._handle.spec()).copy(file)
        claimed = builder.withRecordCount(number).build()
        self._handle.newRowDelta().removeDeletes(file).addDeletes(claimed).commit()

    def _write_file(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Writes rows to a data file; returns Iceberg's description of it."""
        form = self._iceberg.FileFormat.PARQUET
        place = self._handle.locationProvider().newDataLocation(f"{uuid.uuid4().hex}.parquet")
        output = self._handle.io().newOutputFile(place)
        schema = self._handle.schema()
        all_rows = self._iceberg.types.Types.ListType.ofRequired(2**31 - 1, schema.asStruct())
        text = json.dumps([_json(self._schema, row) for row in rows])
        appender = self._iceberg.InternalData.write(form, output).schema(schema).build()
        appender.addAll(self._iceberg.SingleValueParser.fromJson(all_rows, text).iterator())
        appender.close()
        file = self._iceberg.DataFiles.builder(self._handle.spec()).withPath(place)
        return (
            file.withFormat(form)
            .withFileSizeInBytes(appender.length())
            .withMetrics(appender.metrics())
            .withSplitOffsets(appender.splitOffsets())
            .build()
        )


def _json(kind: Any, value: Any) -> Any:
    """Returns a value as JSON, in the form that Iceberg's specification gives for its type."""
    if value is None:
        return None
    if isinstance(kind, dict):
        return _nested(kind, value)
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        return str(Decimal(value).quantize(Decimal(1).scaleb(-scale)))
    if kind == "timestamptz":
        return value.astimezone(dt.timezone.utc).isoformat()
    if kind in ("timestamp", "date"):
        return value.isoformat()
    if kind == "binary":
        return bytes(value).hex()
    return {
        "boolean": bool,
        "int": int,
        "long": int,
        "float": float,
        "double": float,
        "string": str,
    }[kind](value)


def _nested(kind: Mapping[str, Any], value: Any) -> Any:
    if kind["type"] == "list":
        return [_json(kind["element"], one) for one in value]
    if kind["type"] == "map":
        return {
            "keys": [_json(kind["key"], one) for one in value],
            "values": [_json(kind["value"], one) for one in value.values()],
        }
    fields = kind["fields"]
    values = [value.get(f["name"]) for f in fields] if isinstance(value, Mapping) else value
    return {
        str(field["id"]): _json(field["type"], one)
        for field, one in zip(fields, values, strict=True)
    }
