"""Lists, creates, reads and inspects the Iceberg tables of one namespace.

All code that uses Iceberg tables is in this package, which is independent of sources.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from loader.lake.iceberg_rows import Records
from loader.lake.location_check import confirm_place
from loader.rows.literal import text_literal
from loader.rows.version_order import quote_name


class Lake:
    """An Iceberg namespace that the loader writes to, together with a Spark session.

    Each writing thread needs a separate session, because Iceberg reads the id of a staged batch
    from a session setting.

    Args:
        separate: whether to use a separate session. It is created on first use, because most syncs
            find nothing new and read only Iceberg's metadata.

    Attributes:
        shared: the session that the whole process shares.
    """

    def __init__(self, spark: SparkSession, schema: str, separate: bool = False) -> None:
        self.shared = spark
        self._separate = separate
        self.schema = schema
        self._unchanging: str | None = None
        self._loaded: Any = None

    @contextmanager
    def unchanging(self, table: str) -> Iterator[None]:
        """Loads a locked table only once within this block, because no other run appends to it.

        The handle includes commits that this thread makes through it. To include commits by Spark
        and by other processes, call :meth:`fresh`.
        """
        self._unchanging = table
        try:
            yield
        finally:
            self._unchanging = self._loaded = None

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session in which this object reads and writes tables."""
        from loader.spark.session import sibling

        return sibling(self.shared) if self._separate else self.shared

    @property
    def jvm(self) -> Any:
        return self.shared._jvm

    def for_thread(self) -> Lake:
        """Returns a lake for the same namespace with a separate session."""
        lake = Lake(self.shared, self.schema, separate=True)
        lake.__dict__ |= {"catalog": self.catalog, "is_in_folders": self.is_in_folders}
        return lake

    @contextmanager
    def lend(self, sessions: list[SparkSession]) -> Iterator[Lake]:
        """Yields a lake with a separate session, which no other thread uses in the meantime.

        Sessions are reused for later tables, because each keeps its catalog connections open.

        Args:
            sessions: the separate sessions that are not in use. The session is put back afterwards.
        """
        lake = self.for_thread()
        with suppress(IndexError):
            lake.spark = sessions.pop()
        try:
            yield lake
        finally:
            if "spark" in lake.__dict__:
                sessions.append(lake.spark)

    def name(self, table: str) -> str:
        """Returns a table's qualified and quoted name."""
        return f"{quote_name(self.schema)}.{quote_name(table)}"

    def prepare(self) -> None:
        if not self.spark.catalog.databaseExists(quote_name(self.schema)):
            self.spark.sql(f"create namespace if not exists {quote_name(self.schema)}")

    def exists(self, table: str) -> bool:
        if table == self._unchanging:
            with suppress(Py4JJavaError, AnalysisException):
                self.handle(table)  # cheaper than a query; later steps need the handle, too
                return True
        try:
            return self.spark.catalog.tableExists(self.name(table))
        except UnsupportedOperationException:
            # In Spark 4, some catalogs that do not support views raise this error.
            return self._can_load(table)

    def _can_load(self, table: str) -> bool:
        try:
            self.handle(table)
        except AnalysisException:
            return False
        except Py4JJavaError as error:
            if "NoSuch" not in str(error.java_exception):
                raise
            return False
        return True

    def find_records(self, table: str) -> Records | None:
        """Returns the result of :meth:`records`, or None if the table does not exist."""
        try:
            return self.records(table)
        except (Py4JJavaError, AnalysisException):
            # Some catalogs raise an error if the namespace does not exist.
            exists = self.spark.catalog.databaseExists(quote_name(self.schema)) and self.exists(
                table
            )
            # If the table exists, either another process has just created it, or it is damaged. If
            # it is damaged, `records` raises an error.
            return self.records(table) if exists else None

    def frame(self, table: str) -> DataFrame:
        """Returns the table's published rows."""
        return self.spark.table(self.name(table))

    def create(
        self, table: str, schema: StructType | str, properties: Mapping[str, str] | None = None
    ) -> None:
        """Creates an empty table, without a snapshot. Its properties suit small appends.

        Does nothing if the table already exists.

        Args:
            schema: the columns, as a struct or as DDL.
            properties: additional Iceberg table properties.
        """
        if isinstance(schema, StructType):
            schema = self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL()
        all_properties = {**_PROPERTIES, **(properties or {})}
        listed = ", ".join(
            f"{text_literal(key)} = {text_literal(value)}" for key, value in all_properties.items()
        )
        self.spark.sql(
            f"create table if not exists {self.name(table)} ({schema}) using iceberg "
            f"tblproperties ({listed})"
        )

    def drop(self, table: str) -> None:
        self.spark.sql(f"drop table {self.name(table)}")
        if table == self._unchanging:
            self._loaded = None

    def set_properties(self, table: str, properties: Mapping[str, str]) -> None:
        update = self.handle(table).updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    def tables(self) -> list[str]:
        if not self.spark.catalog.databaseExists(quote_name(self.schema)):
            return []
        rows = self.spark.sql(f"show tables in {quote_name(self.schema)}").collect()
        return sorted(row["tableName"] for row in rows if not row["isTemporary"])

    def records(self, table: str) -> Records:
        """Returns an object that reads and appends a few rows without a Spark job."""
        return Records(self.shared, self.handle(table))

    def schema_of(self, table: str, fresh: bool = False) -> StructType:
        """Returns a table's columns with Spark types. Runs no Spark query.

        Args:
            fresh: whether to reload the table, in case another process has altered it.
        """
        return self.columns_of(self.fresh(table) if fresh else self.handle(table))

    def columns_of(self, handle: Any) -> StructType:
        convert = self.jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
        return StructType.fromJson(json.loads(convert(handle.schema()).json()))

    def handle(self, table: str) -> Any:
        """Returns Iceberg's handle for a table.

        Raises a TableError if the warehouse was copied or moved.
        """
        if table != self._unchanging:
            return self._load(table)
        if self._loaded is None:
            self._loaded = self._load(table)
        return self._loaded

    def fresh(self, table: str) -> Any:
        """Loads a table's current version, including commits by other processes.

        Reloads the table, because refreshing the handle is unsafe. In a Hadoop catalog, a refresh
        after many commits by other processes could miss the newest version. In a REST catalog, it
        would reuse credentials that may have expired.
        """
        if table == self._unchanging:
            self._loaded = None
        return self.handle(table)

    def delete_orphan_files(self, table: str, age: float) -> int:
        """Deletes the files in a table's folder that are older than `age` seconds and that no
        snapshot refers to. Returns the number of files.
        """
        actions = self.jvm.org.apache.iceberg.spark.actions.SparkActions
        action = actions.get(self.spark._jsparkSession).deleteOrphanFiles(self.handle(table))
        before = int((time.time() - age) * 1000)
        return sum(1 for _ in action.olderThan(before).execute().orphanFileLocations())

    def properties(self, table: str) -> dict[str, str]:
        # Transfers one JSON string, because reading a Java map takes several JVM calls per entry.
        mapper = self.jvm.com.fasterxml.jackson.databind.ObjectMapper()
        properties: dict[str, str] = json.loads(
            mapper.writeValueAsString(self.handle(table).properties())
        )
        return properties

    def _load(self, table: str) -> Any:
        # Iceberg looks up catalogs in the settings of the thread's active session.
        self.jvm.org.apache.spark.sql.SparkSession.setActiveSession(self.shared._jsparkSession)
        handle = self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.shared._jsparkSession, f"{quote_name(self.catalog)}.{self.name(table)}"
        )
        if self.is_in_folders:
            confirm_place(handle, f"{self.schema}.{table}")
        return handle

    @cached_property
    def is_in_folders(self) -> bool:
        """Whether the catalog is a Hadoop catalog, whose folders can be copied or moved."""
        kind = self.shared.conf.get(f"spark.sql.catalog.{self.catalog}.type", None)
        return (kind or "").lower() == "hadoop"

    @cached_property
    def catalog(self) -> str:
        """The default catalog, which contains the namespace."""
        return self.shared.conf.get("spark.sql.defaultCatalog", None) or "spark_catalog"


FEW_MANIFESTS = {"commit.manifest.min-count-to-merge": "8"}
"""Makes Iceberg merge manifests early, because each commit adds one and each reader opens all.

By default, Iceberg waits for a hundred manifests, which slows down tables with small batches.
"""

_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    # The default level, 3, takes 14 % more CPU time in a first load (see benchmarks/README.md).
    "write.parquet.compression-level": "1",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    **FEW_MANIFESTS,
}
