"""Writes raw tables like the loader's: batches, commits, state and ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import SparkSession

from tests.dbt.icebergrows import IcebergRows

STATE_COLUMNS = "key string, value string, version bigint, updated_at timestamp"
LEDGER_COLUMNS = (
    "run_id string, source_name string, table_name string, batch bigint, generation bigint, "
    "mode string, status string, cursor_field string, cursor_type string, cursor_low string, "
    "cursor_high string, rows_read bigint, rows_appended bigint, rows_redelivered bigint, "
    "rows_null_cursor bigint, lookback string, started_at timestamp, finished_at timestamp, "
    "snapshot_id bigint, schema_changes string, error string, loader_version string, "
    "read_from string, read_to string, log_bytes bigint, rows_below_cursor bigint, "
    "rows_at_cursor bigint, rows_cursor_unmoved bigint, complete_until timestamp, "
    "receipt string"
)
META_COLUMNS = (
    "_cq_source_name string, _cq_sync_time timestamp, _cq_batch bigint, _cq_seq bigint, "
    "_cq_row_hash bigint, _cq_deleted boolean, _cq_generation bigint"
)
# with a time zone, because Spark would read a naive time in the machine's zone
EPOCH = datetime(2025, 1, 1, tzinfo=timezone.utc)

Row = Mapping[str, Any]


def row_hash(row: Row) -> int:
    """Returns a 64-bit hash of a row's payload; tests need no particular hash."""
    payload = repr(sorted((k, v) for k, v in row.items() if not k.startswith("_")))
    return int.from_bytes(hashlib.sha256(payload.encode()).digest()[:8], "big", signed=True)


def sync_time(batch: int) -> datetime:
    """Returns the start of a batch's sync; there is one sync a day."""
    return EPOCH + timedelta(days=batch)


@dataclass
class RawSchema:
    """A schema like the ones that the loader writes.

    Args:
        spark: the session that writes.
        schema: its name; it is created with an empty state table and ledger.
        state_table: the state table's name.
        syncs_table: the ledger's name.
    """

    spark: SparkSession
    schema: str
    state_table: str = "_cq_state"
    syncs_table: str = "_cq_syncs"

    def __post_init__(self) -> None:
        self.spark.sql(f"create schema if not exists {self.schema}")
        self.spark.sql(
            f"create table {self.schema}.{self.state_table} ({STATE_COLUMNS}) using iceberg"
        )
        self.spark.sql(
            f"create table {self.schema}.{self.syncs_table} ({LEDGER_COLUMNS}) using iceberg"
        )

    def create(self, table: str, columns: str) -> None:
        """Creates an empty raw table with the source's columns (DDL) before the ``_cq_`` ones."""
        self.spark.sql(
            f"create table {self.schema}.{table} ({columns}, {META_COLUMNS}) using iceberg "
            "tblproperties ('write.metadata.metrics.default' = 'truncate(16)')"
        )

    def append(
        self,
        table: str,
        batch: int,
        rows: Sequence[Row],
        generation: int = 1,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Appends one batch as one commit, rows in emission order.

        A row's key ``_deleted`` makes it a tombstone; ``_generation`` overrides the batch's, and
        ``_source`` the table's source.

        Args:
            state: the state that the commit carries.
        """
        target = IcebergRows(self.spark, f"{self.schema}.{table}")
        metas = (
            {
                **row,
                "_cq_source_name": row.get("_source", "shop"),
                "_cq_sync_time": sync_time(batch),
                "_cq_batch": batch,
                "_cq_seq": seq,
                "_cq_row_hash": row_hash(row),
                "_cq_deleted": bool(row.get("_deleted", False)),
                "_cq_generation": row.get("_generation", generation),
            }
            for seq, row in enumerate(rows)
        )
        values = [[meta.get(name) for name in target.columns] for meta in metas]
        sync = {"source_name": "shop", "table_name": table}
        summary = {"strandline.batch": str(batch), "strandline.sync": json.dumps(sync)}
        if state is not None:
            summary["strandline.state"] = json.dumps(state)
        target.append(values, summary)

    def states(self, table: str, values: Iterable[tuple[int | None, Any]]) -> None:
        """Appends state rows (version, value); a string is stored as it is, JSON or not."""
        self.insert(self.state_table, self.state_rows(table, values))

    def state_rows(
        self, table: str, values: Iterable[tuple[int | None, Any]], source: str = "shop"
    ) -> list[tuple[Any, ...]]:
        """Returns what :meth:`states` appends."""
        return [
            (
                f"{source}.{table}",
                value if isinstance(value, str) else json.dumps(value),
                version,
                EPOCH + timedelta(days=version or 0),
            )
            for version, value in values
        ]

    def syncs(self, table: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Appends ledger rows, one sync a day from the first day on.

        Missing columns get the values that a successful incremental sync writes.
        """
        self.insert(self.syncs_table, self.sync_rows(table, entries))

    def sync_rows(self, table: str, entries: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """Returns what :meth:`syncs` appends."""
        names = [column.split()[0] for column in LEDGER_COLUMNS.split(", ")]
        rows = []
        for run, entry in enumerate(entries, start=1):
            row = {
                "run_id": f"run-{run}",
                "source_name": "shop",
                "table_name": table,
                "generation": 1,
                "mode": "incremental",
                "status": "synced" if entry.get("batch") is not None else "nothing new",
                "rows_redelivered": 0,
                "rows_null_cursor": 0,
                "started_at": sync_time(run),
                "finished_at": sync_time(run) + timedelta(minutes=1),
                "loader_version": "0.1.0",
                **entry,
            }
            rows.append(tuple(row.get(name) for name in names))
        return rows

    def insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Appends rows as they are, in one commit."""
        if not rows:
            return
        IcebergRows(self.spark, f"{self.schema}.{table}").append(rows)
