"""The lake: raw tables that follow their source, tables that runs share, and their locks.

Everything about Iceberg is in this folder, and nothing about sources.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from filelock import FileLock, Timeout
from pyspark.sql.types import StructField, StructType

from loader.errors import TableError
from loader.lake.lease import Lease
from loader.lake.locks import TableLocks
from loader.lake.records import Records
from loader.lake.schema.drift import Drift, drift, plan_creation
from loader.lake.schema.evolution_policy import Terms
from loader.lake.schema.source_schema import PROPERTY, SourceSchema, property_of, read_source_schema
from loader.lake.schema.widening import raw_type
from loader.lake.snapshot_cache import append_and_note
from loader.lake.staging import Staging
from loader.lake.system_tables import PREFIX
from loader.rows.delta import COLUMNS
from loader.rows.order import quote_name

IDENTITY = "strandline.table-id"
"""Identifies a raw table, also against a dropped one of its name: SQL hides Iceberg's own
UUID."""

FIRST_BATCH = "strandline.first-batch"
"""A raw table's first batch number; the ledger may have earlier batches, of a dropped table."""

# A quarter of Parquet's own: a task holds that much while it writes, and a large load has as many
# tasks as there are cores.
_ROW_GROUP_BYTES = 32 * 1024 * 1024

_shared = threading.Lock()


class Lake(Staging):
    """One namespace of an Iceberg catalog that the loader writes to."""

    def ensure(self, table: str, schema: str) -> Records:
        """Returns a shared table (state, ledger); creates it, and its namespace, if it is missing.

        Two runs may call at once.
        """
        there = self.find_records(table)
        if there is not None:
            return there
        self.prepare()
        with _shared, self.lock(table):
            if not self.exists(table):
                self.create(table, schema)
        return self.records(table)

    def complete(self, table: str, there: Records, columns: Mapping[str, str]) -> None:
        """Adds columns that a shared table from an older version lacks.

        Args:
            there: the table, as it was a moment ago.
            columns: types by name.
        """
        if not self._lacking(there.handle, columns):
            return
        with _shared, self.lock(table):
            for name in self._lacking(self.handle(table), columns):
                self.spark.sql(
                    f"alter table {self.name(table)} add column {quote_name(name)} {columns[name]}"
                )

    def _lacking(self, handle: Any, columns: Mapping[str, str]) -> list[str]:
        there = {name.lower() for name in self._columns_of(handle).names}
        return [name for name in columns if name.lower() not in there]

    def create_raw(
        self,
        table: str,
        schema: StructType,
        cursor_field: str | None,
        first_batch: int,
        more: Mapping[str, str],
    ) -> None:
        """Creates a raw table: the source's columns, then ours, with statistics to prune by.

        Args:
            first_batch: its first batch number: a dropped table of the same name may have had
                batches before.
            more: properties that it has besides.

        Raises:
            TableError: if the source has a column that only the loader may write.
        """
        taken = [name for name in schema.names if name.lower() in COLUMNS]
        if taken:
            raise TableError(
                f"the source has a column {taken[0]!r}, which the loader writes itself",
                where=f"table {table}",
                remedy="Rename it, or read the others through a view in the source",
            )
        # Iceberg keeps statistics of a table's first 100 columns only; ours come last.
        measured = [*COLUMNS, *([cursor_field] if cursor_field else [])]
        properties = {
            "write.wap.enabled": "true",
            "write.parquet.row-group-size-bytes": str(_ROW_GROUP_BYTES),
            IDENTITY: uuid.uuid4().hex,
            FIRST_BATCH: str(first_batch),
            **{f"write.metadata.metrics.column.{name}": "full" for name in measured},
            PROPERTY: SourceSchema.of(schema).text,
            **more,
        }
        fields = [StructField(field.name, raw_type(field.dataType)) for field in schema.fields]
        for name, data_type in COLUMNS.items():
            fields.append(StructField(name, data_type))
        self.create(table, StructType(fields), properties)

    def unmake(self, table: str, schema: StructType) -> None:
        """Drops a raw table that never had a batch if the source's columns are others by now.

        It has no rows whose columns would have to be kept, so it is created again.
        """
        if not self.exists(table):
            return
        handle = self.handle(table)
        before = handle.properties().get(PROPERTY)  # no other table has it
        if before in (None, SourceSchema.of(schema).text) or list(handle.snapshots()):
            return
        self.drop(table)

    def drift(self, table: str, schema: StructType, terms: Terms) -> Drift:
        """Plans how a raw table follows the source's current columns; changes nothing.

        Raises:
            TableError: if it cannot, or may not.
        """
        if not self.exists(table):
            return plan_creation(schema)
        properties = self.properties(table)
        if properties.get("write.wap.enabled") != "true":
            raise TableError(
                "it has lost the property write.wap.enabled, so a batch would be seen before it "
                "is whole: another program has made or replaced this table",
                where=f"table {self.schema}.{table}",
                remedy="If its rows are the loader's (a copy that was put back, say), set it: "
                f"alter table {self.name(table)} set tblproperties ('write.wap.enabled' = 'true')",
            )
        said = read_source_schema(properties, terms.source, f"table {table}")
        return drift(self.schema_of(table), said, schema, terms)

    def evolve(self, table: str, followed: Drift, source: str = "") -> None:
        """Alters a raw table's columns as planned, before rows with the new columns are staged.

        The remembered source schema stays as it was until those rows are published. After a crash
        in between, the next run plans the same change, less what is already done.

        Args:
            source: whose columns these are, if the table is shared.
        """
        if not followed.alterations:
            return
        self.set_properties(table, {property_of(source): followed.before.text})
        for alteration in followed.alterations:
            self.spark.sql(f"alter table {self.name(table)} {alteration.sql}")
        self.fresh(table)

    def raw_tables(self) -> tuple[list[str], dict[str, Exception]]:
        """Lists the raw tables, with the error of each table that cannot be read."""
        found: list[str] = []
        unreadable: dict[str, Exception] = {}
        for name in self.tables():
            if name.startswith(PREFIX):
                continue
            try:
                if self.handle(name).properties().get("write.wap.enabled") == "true":
                    found.append(name)
            except Exception as problem:
                unreadable[name] = problem
        return found, unreadable

    def add(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        note: Callable[[dict[Any, Any]], None] | None = None,
    ) -> None:
        """Appends a few rows to a shared table, without a Spark job: one writer at a time.

        Args:
            rows: values by column, as :meth:`loader.lake.records.Records.append` takes them.
            note: adds them to the table's cache (:mod:`loader.lake.snapshot_cache`); None if
                nothing is cached.
        """
        with self._alone(table):
            records = self.records(table)
            if note is None:
                records.append(rows)
            else:
                append_and_note(records.handle, lambda: records.append(rows), note)

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
        """Returns a table's file lock; the system releases it when its process dies.

        If the warehouse is a local folder, the lock file is beside the table, as a Hadoop catalog
        cannot tell two writers apart there. Otherwise it is in a folder of this user.
        """
        return self._locks.lock(table, timeout)

    def lease(self, table: str, where: str, run_id: str) -> Lease:
        """Returns a table's lease, not yet taken; in a shared catalog, other machines see it too.

        Args:
            where: the table's name in messages.
        """
        return Lease(table, where, self.lock(table), self._locks.owners, run_id)

    def sweep_owners(self, age: float) -> int:
        """Deletes leftovers of runs that died over `age` seconds ago; returns their number."""
        return self._locks.sweep(age)

    @cached_property
    def _locks(self) -> TableLocks:
        return TableLocks(self)
