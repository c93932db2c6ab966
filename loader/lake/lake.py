"""The lake: create, evolve, stage, publish.

All of Iceberg is here, and nothing of sources. A batch is written as a staged snapshot (Iceberg's
write-audit-publish), which no reader sees, and published by one metadata commit. The batch number
is the snapshot's ``wap.id``: Iceberg refuses to publish the same one twice, also when another
machine tries.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from filelock import FileLock, Timeout
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from loader.errors import SpecError, TableError
from loader.lake.commits import BATCH, STATE, SYNC, Commit, newest_commit
from loader.lake.lease import Lease
from loader.lake.locks import TableLocks
from loader.lake.records import Records
from loader.lake.schema.drift import Drift, drift, unchanged
from loader.lake.schema.source_schema import PROPERTY, SourceSchema, property_of, remembered
from loader.lake.schema.terms import Terms
from loader.lake.schema.widening import kept_as
from loader.rows.delta import COLUMNS
from loader.rows.order import quoted

IDENTITY = "strandline.table-id"
"""Tells a raw table from a dropped one of its name: SQL does not show Iceberg's own UUID."""

FIRST_BATCH = "strandline.first-batch"
"""The number of a raw table's first batch; the ledger may know earlier ones, of a dropped table."""

_shared = threading.Lock()


class Lake:
    """One namespace of an Iceberg catalog, seen by one Spark session.

    A session per thread: the id of a staged snapshot is a setting of the session.
    """

    def __init__(self, spark: SparkSession, schema: str) -> None:
        self.spark = spark
        self.schema = schema

    def for_thread(self) -> Lake:
        """The same lake with a session of its own."""
        from loader.runtime.spark import sibling

        return Lake(sibling(self.spark), self.schema)

    def name(self, table: str) -> str:
        """The qualified, quoted name of a table."""
        return f"{quoted(self.schema)}.{quoted(table)}"

    def prepare(self) -> None:
        """Makes the namespace, where it is not there yet."""
        if not self.spark.catalog.databaseExists(quoted(self.schema)):
            self.spark.sql(f"create namespace if not exists {quoted(self.schema)}")

    def exists(self, table: str) -> bool:
        """Whether the table is there."""
        return self.spark.catalog.tableExists(self.name(table))

    def frame(self, table: str) -> DataFrame:
        """The table's published rows."""
        return self.spark.table(self.name(table))

    def create(
        self, table: str, schema: StructType | str, properties: Mapping[str, str] | None = None
    ) -> None:
        """Makes an empty table, without a snapshot, set for append-only small batches.

        Another process may have made it a moment ago: then it stays as it is.

        Args:
            schema: the columns, as a struct or as DDL.
            properties: Iceberg table properties beyond ours.
        """
        if isinstance(schema, StructType):
            jvm: Any = self.spark._jvm
            schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL()
        given = {**_PROPERTIES, **(properties or {})}
        listed = ", ".join(f"'{_text(key)}' = '{_text(value)}'" for key, value in given.items())
        self.spark.sql(
            f"create table if not exists {self.name(table)} ({schema}) using iceberg "
            f"tblproperties ({listed})"
        )

    def ensure(self, table: str, schema: str) -> None:
        """Makes a shared table (state, ledger), unless it is there; two runs may ask at once."""
        if self.exists(table):
            return
        with _shared, self.lock(table):
            if not self.exists(table):
                self.create(table, schema)

    def complete(self, table: str, columns: Mapping[str, str]) -> None:
        """Adds columns that a shared table of an older version lacks.

        Args:
            columns: types by name.
        """
        if not self._lacking(table, columns):
            return
        with _shared, self.lock(table):
            for name in self._lacking(table, columns):
                self.spark.sql(
                    f"alter table {self.name(table)} add column {quoted(name)} {columns[name]}"
                )

    def _lacking(self, table: str, columns: Mapping[str, str]) -> list[str]:
        schema = self.handle(table).schema()
        return [name for name in columns if schema.caseInsensitiveFindField(name) is None]

    def create_raw(
        self, table: str, schema: StructType, cursor_field: str | None, first_batch: int = 1
    ) -> None:
        """Makes a raw table: the source's columns, then ours, with statistics that prune.

        Args:
            first_batch: the number that its life begins with: a dropped table of its name may
                have had batches before.

        Raises:
            TableError: where the source has a column that only we may write.
        """
        taken = [name for name in schema.names if name.lower() in COLUMNS]
        if taken:
            raise TableError(
                f"the source has a column {taken[0]!r}, which the loader writes itself",
                where=f"table {table}",
                remedy="Rename it, or select the others through a view in the source",
            )
        # Iceberg keeps statistics of a table's first 100 columns only; ours come last.
        measured = [*COLUMNS, *([cursor_field] if cursor_field else [])]
        properties = {
            "write.wap.enabled": "true",
            IDENTITY: uuid.uuid4().hex,
            FIRST_BATCH: str(first_batch),
            **{f"write.metadata.metrics.column.{name}": "full" for name in measured},
            PROPERTY: SourceSchema.of(schema).text,
        }
        fields = [StructField(field.name, kept_as(field.dataType)) for field in schema.fields]
        for name, data_type in COLUMNS.items():
            fields.append(StructField(name, data_type))
        self.create(table, StructType(fields), properties)

    def drift(self, table: str, schema: StructType, terms: Terms) -> Drift:
        """How a raw table follows the source's columns as they are now; changes nothing.

        Raises:
            TableError: where it cannot, or may not.
        """
        if not self.exists(table):
            return unchanged(schema)
        said = remembered(dict(self.handle(table).properties()), terms.source, f"table {table}")
        return drift(self.frame(table).schema, said, schema, terms)

    def evolve(self, table: str, followed: Drift, source: str = "") -> None:
        """Brings a raw table's columns up to the source's, before rows of the new form arrive.

        What is remembered of the source stays as it was until they are published; after a crash
        in between the same is found to do, as far as it was not done.

        Args:
            source: of a shared table, whose columns these are.
        """
        if not followed.alterations:
            return
        self.set_properties(table, {property_of(source): followed.before.text})
        for alteration in followed.alterations:
            self.spark.sql(f"alter table {self.name(table)} {alteration.sql}")

    def set_properties(self, table: str, properties: Mapping[str, str]) -> None:
        """Sets properties of a table, in one commit."""
        update = self.handle(table).updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    def tables(self) -> list[str]:
        """All tables of the namespace."""
        if not self.spark.catalog.databaseExists(quoted(self.schema)):
            return []
        rows = self.spark.sql(f"show tables in {quoted(self.schema)}").collect()
        return sorted(row["tableName"] for row in rows if not row["isTemporary"])

    def raw_tables(self) -> tuple[list[str], dict[str, Exception]]:
        """The tables that batches are published to; and those that cannot be read, and why."""
        found: list[str] = []
        unreadable: dict[str, Exception] = {}
        for name in self.tables():
            try:
                if self.handle(name).properties().get("write.wap.enabled") == "true":
                    found.append(name)
            except Exception as problem:
                unreadable[name] = problem
        return found, unreadable

    def stage(self, table: str, rows: DataFrame, batch: int, facts: Mapping[str, Any]) -> int:
        """Writes a batch that nobody sees yet; returns its snapshot's id.

        Args:
            rows: all columns of the table, by name; created in this lake's session.
            facts: ``state`` (JSON text) and ``sync`` (a ledger row), kept in the commit.
        """
        columns = [quoted(name) for name in self.frame(table).columns]
        present = {name.lower() for name in rows.columns}
        full = rows.selectExpr(
            *(
                c if n.lower() in present else f"null as {c}"
                for n, c in zip(self.frame(table).columns, columns, strict=False)
            )
        )
        before = {snapshot.snapshotId() for snapshot in self.handle(table).snapshots()}
        self.spark.conf.set("spark.wap.id", str(batch))
        try:
            (
                full.writeTo(self.name(table))
                .option(f"snapshot-property.{BATCH}", str(batch))
                .option(f"snapshot-property.{STATE}", facts["state"])
                .option(f"snapshot-property.{SYNC}", json.dumps(facts["sync"], default=str))
                .append()
            )
        finally:
            self.spark.conf.unset("spark.wap.id")
        staged = [s for s in self.handle(table).snapshots() if s.snapshotId() not in before]
        mine = [s for s in staged if s.summary().get("wap.id") == str(batch)]
        return int(mine[-1].snapshotId())

    def staged_rows(self, table: str, snapshot_id: int) -> int:
        """How many rows a staged snapshot adds."""
        snapshot = self.handle(table).snapshot(snapshot_id)
        return int(snapshot.summary().get("added-records") or 0)

    def publish(
        self, table: str, snapshot_id: int, columns: SourceSchema | None = None, source: str = ""
    ) -> Commit:
        """Makes a staged batch visible, whole, in one commit.

        Args:
            columns: what the same commit remembers of the source.
            source: of a shared table, which one.

        Raises:
            TableError: where that batch number was published already.
        """
        handle = self.handle(table)
        transaction = handle.newTransaction()
        try:
            transaction.manageSnapshots().cherrypick(snapshot_id).commit()
            name = property_of(source)
            if columns is not None and columns.text != handle.properties().get(name):
                transaction.updateProperties().set(name, columns.text).commit()
            transaction.commitTransaction()
        except Py4JJavaError as error:
            if "DuplicateWAPCommit" in str(error.java_exception):
                raise TableError(
                    "another run has published this batch number",
                    where=f"table {table}",
                    remedy="Nothing was lost or doubled; run again",
                ) from error
            raise
        return newest_commit(self, table)

    def discard(self, table: str, snapshot_id: int | None = None) -> int:
        """Deletes staged batches that were never published, with their files; returns how many."""
        handle = self.handle(table)
        published = set()
        snapshot = handle.currentSnapshot()
        while snapshot is not None:
            published.add(snapshot.snapshotId())
            parent = snapshot.parentId()
            source = snapshot.summary().get("source-snapshot-id")
            if source is not None:
                published.add(int(source))
            snapshot = handle.snapshot(parent) if parent is not None else None
        orphans = [
            s.snapshotId()
            for s in handle.snapshots()
            if s.summary().get("wap.id") is not None
            and s.snapshotId() not in published
            and snapshot_id in (None, s.snapshotId())
        ]
        if orphans:
            # None by age: without a limit, Iceberg also expires what the table's properties allow.
            expiry = handle.expireSnapshots().expireOlderThan(0)
            for orphan in orphans:
                expiry = expiry.expireSnapshotId(orphan)
            expiry.commit()
        return len(orphans)

    def append(self, table: str, rows: DataFrame) -> None:
        """A plain append to a shared table: one writer at a time."""
        with self._alone(table):
            rows.writeTo(self.name(table)).append()

    def add(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A plain append of a few rows to a shared table, without a Spark job; see :meth:`append`.

        Args:
            rows: column by column, as :meth:`loader.lake.records.Records.append` takes them.
        """
        with self._alone(table):
            self.records(table).append(rows)

    def records(self, table: str) -> Records:
        """A few of the table's rows, without a Spark job."""
        return Records(self.spark, self.handle(table))

    @contextmanager
    def _alone(self, table: str) -> Iterator[None]:
        try:
            with _shared, self.lock(table):
                yield
        except Timeout:
            raise TableError(
                f"another process has been writing {self.schema}.{table} for a minute",
                where=f"table {table}",
                remedy="Run again: what this run published is recorded by the next",
            ) from None

    def lock(self, table: str, timeout: float = 60) -> FileLock:
        """The lock of a table across processes; released by the system when its holder dies.

        It lies beside the table where the warehouse is a local folder, for a Hadoop catalog
        cannot tell two writers apart there; else in a folder of this user's own.
        """
        return self._locks.lock(table, timeout)

    def lease(self, table: str, where: str, run_id: str) -> Lease:
        """The right to write a table, not yet taken; of a shared catalog also for other machines.

        Args:
            where: the table's name in messages.
        """
        return Lease(table, where, self.lock(table), self._locks.owners, run_id)

    def sweep_owners(self, age: float) -> int:
        """Deletes owners' records that runs left which died so many seconds ago; says how many."""
        return self._locks.sweep(age)

    @property
    def catalog(self) -> str:
        """The catalog that two-part names belong to."""
        return self.spark.conf.get("spark.sql.defaultCatalog", None) or "spark_catalog"

    @cached_property
    def _locks(self) -> TableLocks:
        return TableLocks(self)

    def handle(self, table: str) -> Any:
        """Iceberg's own object for a table, freshly loaded."""
        jvm: Any = self.spark._jvm
        # Catalogs are looked up in the settings of the session that is active in the thread.
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(self.spark._jsparkSession)
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{quoted(self.catalog)}.{self.name(table)}"
        )


@contextmanager
def iceberg_present(spark: SparkSession) -> Iterator[None]:
    """Turns a missing Iceberg runtime into one clear error."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Class.forName("org.apache.iceberg.spark.Spark3Util")
    except Py4JJavaError as error:
        raise SpecError(
            "Spark has no Iceberg runtime", where="Spark", remedy="Run `loader setup`"
        ) from error
    yield


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
